"""Steps to a threshold, such as to 90% accuracy: which runs reached it, when, and the steps an arm saved.

A run result has them in `censored`: {metric: {"value": steps or null, "budget": steps}}; null: not reached.

- Every estimate uses min(value, budget), so that a run that did not reach the threshold counts with the whole
  budget. Intervals and verdicts of claims and effects use only that such a run takes more steps than that: a
  claim that an arm takes at most 100 steps more is not SUPPORTED by runs that never reach the threshold.
- A diverged run did not reach the threshold. A run that crashed, ran out of memory or left no result shows
  nothing about learning: its pair is left out, and stays in the denominator.
- Fewer steps are better, unless the `direction` of a claim or of the experiment differs.
"""

from dataclasses import asdict

from attnlab import stats
from attnlab.report.schema import (
    BudgetCheck,
    StepsToThresholdComparison,
    StepsToThresholdRow,
    StepsToThresholdTable,
)
from attnlab.report.verdicts import comparability
from attnlab.report.verdicts.results import SweepResults


def build_threshold_tables(sweep: SweepResults, budget: BudgetCheck) -> list[StepsToThresholdTable]:
    """Build a table per censored metric: fraction reached, median, and comparison with the baseline."""
    return [
        _build_threshold_table(
            sweep, metric, censoring_budget, comparability.find_incomparable_arms(sweep, budget, metric)
        )
        for metric, censoring_budget in sorted(sweep.censoring_budgets.items())
    ]


def _build_threshold_table(
    sweep: SweepResults, metric: str, budget: float, incomparable_arms: set[str]
) -> StepsToThresholdTable:
    rows = []
    for arm in sweep.arms:
        seeds = [seed for seed in sweep.seeds if sweep.get_value(arm, seed, metric) is not None]
        if not seeds:
            continue
        steps = [sweep.get_steps_to_threshold(arm, seed, metric) for seed in seeds]
        shared_seeds = [seed for seed in seeds if sweep.get_value(sweep.baseline, seed, metric) is not None]
        comparison = None
        if arm not in (sweep.baseline, *incomparable_arms) and shared_seeds:
            arm_steps, baseline_steps = (
                [sweep.get_steps_to_threshold(name, seed, metric) for seed in shared_seeds]
                for name in (arm, sweep.baseline)
            )
            comparison = StepsToThresholdComparison(
                **asdict(stats.compare_steps(arm_steps, baseline_steps, budget))
            )
        rows.append(
            StepsToThresholdRow(
                **asdict(stats.summarize_steps(steps, budget)),
                arm=arm,
                planned=len(sweep.get_runs(arm)),
                comparison=comparison,
            )
        )
    return StepsToThresholdTable(
        metric=metric,
        label=sweep.get_metric(metric).display_name,
        unit=sweep.get_metric(metric).unit,
        budget=budget,
        against=sweep.baseline,
        rows=rows,
    )
