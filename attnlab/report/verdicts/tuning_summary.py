"""Summary of the learning-rate search: the rates tried, their outcomes, the rates picked, and the cost."""

import math
from collections.abc import Sequence

from attnlab.report.schema import (
    ArmTuning,
    ArmTuningResult,
    LearningRateResult,
    LearningRateRow,
    TuningResult,
    TuningSection,
)
from attnlab.report.verdicts.results import SweepResults
from attnlab.store import experiment_schema
from attnlab.store.run_schema import Metric

TUNING_TOKENS_METRIC = Metric(experiment_schema.TUNING_TOKENS, "tokens spent on tuning", kind="count")


def build_tuning_section(sweep: SweepResults) -> TuningSection | None:
    """Build a row per arm and rate; None if the experiment tunes nothing.

    Values by seed are "diverged" for a diverged run, and None for a seed that was not tried. The median is
    over all seeds, if none is missing.
    """
    tuning = sweep.context.tuning
    if not tuning:
        return None
    return TuningSection(
        metric=tuning.metric,
        seeds=tuning.seeds,
        committed=tuning.committed,
        statistic="median" if tuning.robust is None else "mean",
        arms=[
            ArmTuning(
                arm=arm,
                tokens=entry.tokens,
                comparison_ratio=_compute_tuning_ratio(sweep, [arm]),
                rows=[
                    LearningRateRow(
                        lr=row.lr,
                        values=row.values,
                        median=row.median,
                        picked=row.lr == entry.picked,
                        outcome=_describe_rate_outcome(row, entry, tuning),
                    )
                    for row in entry.rows
                ],
            )
            for arm in sweep.arms
            for entry in [tuning.arms[arm]]
        ],
    )


def _describe_rate_outcome(row: LearningRateResult, entry: ArmTuningResult, tuning: TuningResult) -> str:
    if None in row.values[: row.seeds_tried]:
        outcome = "not finished"
    elif row.seeds_tried < len(tuning.seeds):
        outcome = "dropped in the first rung"
    else:
        outcome = "selected" if row.lr == entry.picked else "second rung"
    return outcome if row.lr in tuning.lr else f"{outcome}, grid extension"


def _compute_tuning_ratio(sweep: SweepResults, arms: Sequence[str]) -> float | None:
    """Compute tuning tokens as a fraction of the tokens that the comparison of these arms needs so far."""
    assert sweep.context.tuning is not None
    searches = sweep.context.tuning.arms
    comparison_tokens = sum(
        searches[arm].comparison_tokens * len(sweep.get_runs(arm)) / len(sweep.seeds) for arm in arms
    )
    return sum(searches[arm].tokens for arm in arms) / comparison_tokens if comparison_tokens else None


def describe_tuning(sweep: SweepResults) -> str:
    """Describe in two sentences how the learning rates were tuned."""
    tuning = sweep.context.tuning
    if not tuning:
        return "not tuned, so differences apply to this learning rate only"
    first, *others = tuning.seeds
    other_seeds = ", ".join(map(str, others))
    rates = len(tuning.lr)
    origin = "stored with the experiment" if tuning.committed else "tuned for this report"
    ratio = _compute_tuning_ratio(sweep, sweep.arms)
    cost = (
        ""
        if ratio is None
        else f". Tuning took {_format_whole_percent(ratio)} of the training tokens of the comparison"
    )
    return (
        f"each arm ran {rates} learning rates with seed {first} (first rung), then the best rate and its "
        f"neighbors with seeds {other_seeds} too (second rung), each for "
        f"{_format_whole_percent(tuning.share)} of its steps; the comparison uses other seeds "
        f"({origin}). {_describe_selection_rule(tuning)}. "
        f"If the best rate was at the edge of the grid, the grid was extended, at most "
        f"{_format_times(tuning.extend)}{cost}"
    )


def _describe_selection_rule(tuning: TuningResult) -> str:
    if (tolerance := tuning.robust) is None:
        return f"Each arm uses the rate with the best median {tuning.metric}"
    return (
        f"Robust selection: each arm uses the lowest rate whose mean {tuning.metric} is at most "
        f"{tolerance:g} worse than the best, because a rate at which some "
        "runs diverge costs more than a rate that is slightly too low"
    )


def _format_times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _format_whole_percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def list_tuning_warnings(sweep: SweepResults) -> list[str]:
    """List warnings: no rate picked, a rate at the edge of the grid, or one tuned for other settings."""
    warnings = []
    for arm, entry in sweep.context.tuning.arms.items() if sweep.context.tuning else ():
        if entry.picked is None:
            warnings.append(f"{arm}: {entry.failure_reason}, so it has no runs.")
        elif entry.at_grid_edge:
            warnings.append(
                f"{arm}: the best learning rate is at the edge of the grid, which has reached its maximum "
                f"extension; a better rate than the selected {entry.picked:g} may lie beyond it."
            )
        elif robuster := _find_robuster_rate(sweep, entry):
            warnings.append(
                f"{arm}: the learning rate {robuster:g} has a better worst tuning seed than the selected "
                f"{entry.picked:g}, at which one seed failed: some runs of the comparison may fail too."
            )
        if not entry.same_settings:
            warnings.append(
                f"{arm}: its learning rate was tuned with other settings than those of this comparison: "
                "set tuned=none to tune it again."
            )
    return warnings


def _find_robuster_rate(sweep: SweepResults, entry: ArmTuningResult) -> float | None:
    """Find a rate whose worst seed beats the picked one's by more than the margin; None if none does."""
    sign = 1 if sweep.experiment.direction == "lower" else -1
    worst_by_rate = {
        row.lr: max(
            math.inf if value == "diverged" else sign * value for value in row.values if value is not None
        )
        for row in entry.rows
        if row.median is not None
    }
    assert entry.picked is not None
    best = min(worst_by_rate, key=lambda rate: worst_by_rate[rate])
    return best if worst_by_rate[best] + (sweep.margin or 0.0) < worst_by_rate[entry.picked] else None
