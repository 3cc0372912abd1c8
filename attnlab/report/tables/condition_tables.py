"""Loss by length and accuracy by condition, if an experiment measures them.

A metric that names a table appears in it with its family: `length/<multiple>`, the loss at that multiple of
the trained length on the same target tokens, or `recall/<condition>/<distance>`, an accuracy. The rest of the
name after the family is the condition.
"""

import re
from typing import Any

from attnlab import stats
from attnlab.report.schema import ConditionCell, ConditionRow, ConditionTable
from attnlab.report.verdicts.results import SweepResults


def _get_natural_sort_key(name: str) -> list[Any]:
    return [
        (0, float(part)) if re.fullmatch(r"[\d.]+", part) else (1, part)
        for part in re.split(r"([\d.]+)", name)
        if part
    ]


def _parse_condition_value(condition: str) -> float | None:
    """Parse the axis value of a condition: `4x`, `4` and `distance/4` are at 4."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)x?", condition.rsplit("/", 1)[-1])
    return float(number[1]) if number else None


def build_condition_tables(sweep: SweepResults) -> list[ConditionTable]:
    """Build one table per family: rows are conditions, cells are arms; empty if nothing was measured.

    `undefined` lists arms that lack such a figure, as learned positions do beyond their table.
    """
    results_by_arm = {arm: sweep.get_finished_results(arm) for arm in sweep.arms}
    undefined = {
        arm: {name for result in results for name in result.undefined}
        for arm, results in results_by_arm.items()
    }
    names = {name for results in results_by_arm.values() for result in results for name in result.metrics}
    families: dict[str, list[str]] = {}
    for name in sorted(names.union(*undefined.values())):
        if sweep.get_metric(name).table:
            families.setdefault(name.partition("/")[0], []).append(name)
    return [
        ConditionTable(
            key=family,
            title=sweep.get_metric(members[0]).table,
            axis=sweep.get_metric(members[0]).axis,
            kind=sweep.get_metric(members[0]).kind,
            rows=[
                _build_condition_row(sweep, name, undefined)
                for name in sorted(members, key=lambda name: _get_natural_sort_key(_get_condition(name)))
            ],
        )
        for family, members in families.items()
    ]


def _get_condition(name: str) -> str:
    return name.partition("/")[2]


def _build_condition_row(sweep: SweepResults, name: str, undefined: dict[str, set[str]]) -> ConditionRow:
    condition = _get_condition(name)
    cells = []
    for arm in sweep.arms:
        values = sweep.get_values(arm, name)
        if values:
            estimate = stats.estimate_paired_difference(values)
            cells.append(
                ConditionCell(
                    arm=arm,
                    n=estimate.n,
                    mean=estimate.mean,
                    low=estimate.low,
                    high=estimate.high,
                )
            )
    return ConditionRow(
        condition=condition,
        x=_parse_condition_value(condition),
        series=condition.rpartition("/")[0],
        cells=cells,
        undefined=[arm for arm in sweep.arms if name in undefined[arm]],
    )
