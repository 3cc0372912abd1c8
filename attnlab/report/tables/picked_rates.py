"""The learning rates of a search, each with the statistic over tuning seeds that picked it."""

from statistics import fmean

from attnlab.report.number_format import format_number
from attnlab.report.schema import LearningRateRow, Report, SelectionStatistic, TrialValue


def get_selection_statistic(report: Report) -> SelectionStatistic:
    """Return the statistic that picks a rate; in reports that do not store it, by the preregistered rule."""
    tuning = report.budget.tuning
    if tuning and tuning.statistic:
        return tuning.statistic
    rule = report.reproduce.preregistered.get("tune") or {}
    return "median" if rule.get("robust") is None else "mean"


def average_trials(row: LearningRateRow, statistic: SelectionStatistic) -> TrialValue:
    """Average a rate over all tuning seeds; None if a seed was not tried, "diverged" if it has no number."""
    if statistic == "median" or row.median is None:
        return row.median
    numbers = [value for value in row.values if isinstance(value, float)]
    return fmean(numbers) if len(numbers) == len(row.values) else "diverged"


def describe_picked_rates(report: Report) -> str:
    """Describe each arm's rate: `Learning rates: mha 0.006 (1.714), by the mean loss of 3 tuning seeds.`"""
    tuning = report.budget.tuning
    assert tuning is not None
    statistic = get_selection_statistic(report)
    rates = [
        f"{entry.arm} {format_number(row.lr)} ({format_number(average_trials(row, statistic), 3)})"
        for entry in tuning.arms
        for row in entry.rows
        if row.picked
    ]
    count = f"{len(tuning.seeds)} tuning seeds"
    return f"Learning rates: {', '.join(rates) or 'none'}, by the {statistic} {tuning.metric} of {count}."
