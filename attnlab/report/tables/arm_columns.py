"""Additional columns of a table of many arms: other metrics, and loss beyond the trained length."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnlab import stats
from attnlab.report.schema import ConditionCell, Effect, PairedMean, Report

MANY_ARMS = 8  # with more arms, a page lets its reader highlight one


@dataclass(frozen=True)
class ArmColumn:
    """A metric of many arms; cells hold each arm's mean with its interval."""

    label: str
    unit: str
    digits: int
    cells: Mapping[str, PairedMean | ConditionCell]


def average_seeds(values: list[float], *, is_proportion: bool = False) -> PairedMean:
    """Average over seeds with a 95% interval, that of a proportion in [0, 1]; all None without values."""
    estimate = stats.estimate_paired_difference(values) if values else None
    low, high = (estimate and estimate.interval) or (None, None)
    mean = PairedMean(mean=estimate.mean if estimate else None, low=low, high=high, n=len(values))
    return mean.clip((0.0, 1.0)) if is_proportion else mean


def get_values_by_seed(rows: Iterable[Effect], arm: str, baseline: str) -> dict[int, float]:
    """Return seed -> value of an arm in its complete pairs, from the effects of one metric.

    The baseline's values are those paired with the arm that has the most pairs.
    """
    pairs_by_arm = [row.pairs for row in rows if arm in (baseline, row.arm)]
    pairs = max(pairs_by_arm, key=len, default=[])
    return {pair.seed: pair.against if arm == baseline else pair.value for pair in pairs}


def average_arm(report: Report, arm: str) -> PairedMean:
    """Average an arm over its complete pairs in the experiment's metric, or its runs if none is paired."""
    effects = [row for row in report.effects if row.primary]
    values = [*get_values_by_seed(effects, arm, report.experiment.baseline).values()]
    if not report.is_paired:
        numbers = (run.metrics[report.experiment.metric] for run in report.runs if run.arm == arm)
        values = [value for value in numbers if value is not None]
    return average_seeds(values, is_proportion=any(row.is_proportion for row in effects))


def build_arm_columns(report: Report) -> list[ArmColumn]:
    """Build the columns of many arms in addition to the experiment's metric."""
    arms = report.experiment.arms
    if len(arms) <= MANY_ARMS:
        return []
    effects_by_metric: dict[str, list[Effect]] = {}
    for row in report.effects:
        if not row.primary:
            effects_by_metric.setdefault(row.metric, []).append(row)
    metric_columns = [
        ArmColumn(
            label=rows[0].label,
            unit=rows[0].unit,
            digits=max(row.digits for row in rows),
            cells={
                arm: average_seeds(
                    [*get_values_by_seed(rows, arm, report.experiment.baseline).values()],
                    is_proportion=rows[0].is_proportion,
                )
                for arm in arms
            },
        )
        for rows in effects_by_metric.values()
    ]
    return [*metric_columns, *_build_longest_text_columns(report)]


def _build_longest_text_columns(report: Report) -> list[ArmColumn]:
    """Build the loss at the longest text, if losses at several lengths were measured."""
    rows = [row for table in report.length if table.key == "length" for row in table.rows]
    plain = [(row.x, row) for row in rows if not row.series and row.x is not None and row.x > 1]
    return [
        ArmColumn(
            label=f"loss at {x:g} times the trained length",
            unit="nats",
            digits=3,
            cells={cell.arm: cell for cell in row.cells},
        )
        for x, row in sorted(plain, key=lambda pair: pair[0])[-1:]
    ]
