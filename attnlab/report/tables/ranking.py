"""What else ranks the arms where a page has many of them: the other metrics, and the loss past the trained
length.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnlab import stats
from attnlab.report.schema import ConditionCell, Effect, ReachedMean, Report, Word

MANY = 8  # arms; of more, a page lets its reader pick one out
STATES = {  # how an arm stands to the baseline, in a table of many
    Word.BETTER_MORE: "better",
    Word.BETTER: "better",
    Word.WORSE_MORE: "worse",
    Word.WORSE: "worse",
    Word.EQUIVALENT: "equivalent",
    Word.NOT_WORSE: "non-inferior",
    Word.INCONCLUSIVE: "inconclusive",
}
BYTES = ("kv_bytes_per_token", "carried_bytes")  # two arms keep as much where both are the same


@dataclass(frozen=True)
class Column:
    """A metric that ranks the arms of many; of each arm its mean with its interval."""

    label: str
    unit: str
    digits: int
    cells: Mapping[str, ReachedMean | ConditionCell]


def reached(values: list[float]) -> ReachedMean:
    """The mean over seeds and its 95 % interval; None of each where there are no values."""
    found = stats.paired(values) if values else None
    low, high = (found and found.interval) or (None, None)
    return ReachedMean(mean=found.mean if found else None, low=low, high=high, n=len(values))


def by_seed(rows: Iterable[Effect], arm: str, baseline: str) -> dict[int, float]:
    """Seed -> what an arm reached in its complete pairs, by the effects of one metric; of the baseline those
    with the arm that has most.
    """
    own = [row.pairs for row in rows if arm in (baseline, row.arm)]
    pairs = max(own, key=len, default=[])
    return {pair.seed: pair.against if arm == baseline else pair.value for pair in pairs}


def columns(report: Report) -> list[Column]:
    """What the arms of many are ranked by beside the experiment's metric."""
    arms = report.experiment.arms
    if len(arms) <= MANY:
        return []
    found: dict[str, list[Effect]] = {}
    for row in report.effects:
        if not row.primary:
            found.setdefault(row.metric, []).append(row)
    own = [
        Column(
            label=rows[0].label,
            unit=rows[0].unit,
            digits=max(row.digits for row in rows),
            cells={arm: reached([*by_seed(rows, arm, report.experiment.baseline).values()]) for arm in arms},
        )
        for rows in found.values()
    ]
    return [*own, *_longest(report)]


def _longest(report: Report) -> list[Column]:
    """The loss at the longest text, where losses at several lengths were measured."""
    rows = [row for table in report.length if table.key == "length" for row in table.rows]
    plain = [(row.x, row) for row in rows if not row.series and row.x is not None and row.x > 1]
    return [
        Column(
            label=f"loss at {x:g} times the trained length",
            unit="nats",
            digits=3,
            cells={cell.arm: cell for cell in row.cells},
        )
        for x, row in sorted(plain, key=lambda pair: pair[0])[-1:]
    ]
