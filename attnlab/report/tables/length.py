"""Loss by length and accuracy by condition, where an experiment measures them.

A metric that names a table stands in it with its family: `length/<multiple>`, the loss at that multiple of
the trained length on the same target tokens, or `recall/<condition>/<distance>`, an accuracy. What follows
the family's name is the condition.
"""

import re
from typing import Any

from attnlab import stats
from attnlab.report.schema import ConditionCell, ConditionRow, ConditionTable
from attnlab.report.verdicts.runs import Sweep


def _natural(name: str) -> list[Any]:
    return [
        (0, float(part)) if re.fullmatch(r"[\d.]+", part) else (1, part)
        for part in re.split(r"([\d.]+)", name)
        if part
    ]


def _place(condition: str) -> float | None:
    """The number that places a condition on an axis: `4x`, `4` and `distance/4` are at 4."""
    last = re.fullmatch(r"(\d+(?:\.\d+)?)x?", condition.rsplit("/", 1)[-1])
    return float(last[1]) if last else None


def length(sweep: Sweep) -> list[ConditionTable]:
    """One table per family: rows are conditions, cells the arms; empty where nothing was measured.

    `undefined`: the arms that have no such figure, as learned positions have none past their table.
    """
    records = {arm: [run.record for run in sweep.done(arm) if run.record] for arm in sweep.arms}
    undefined = {
        arm: {name for record in arm_records for name in record.undefined}
        for arm, arm_records in records.items()
    }
    names = {name for arm_records in records.values() for record in arm_records for name in record.metrics}
    families: dict[str, list[str]] = {}
    for name in sorted(names.union(*undefined.values())):
        if sweep.metric(name).table:
            families.setdefault(name.partition("/")[0], []).append(name)
    return [
        ConditionTable(
            key=family,
            title=sweep.metric(members[0]).table,
            axis=sweep.metric(members[0]).axis,
            rows=[
                _row(sweep, name, undefined)
                for name in sorted(members, key=lambda name: _natural(_condition(name)))
            ],
        )
        for family, members in families.items()
    ]


def _condition(name: str) -> str:
    return name.partition("/")[2]


def _row(sweep: Sweep, name: str, undefined: dict[str, set[str]]) -> ConditionRow:
    condition = _condition(name)
    cells = []
    for arm in sweep.arms:
        values = sweep.values(arm, name)
        if values:
            estimate = stats.paired(values)
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
        x=_place(condition),
        series=condition.rpartition("/")[0],
        cells=cells,
        undefined=[arm for arm in sweep.arms if name in undefined[arm]],
    )
