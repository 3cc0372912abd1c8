"""Differences between two arms of a report, seed by seed, and the compute of their runs."""

from collections.abc import Iterable
from itertools import combinations

from attnlab.report.schema import ClaimResult, Report, RunRow
from attnlab.store.run_schema import FAILED_STATUSES


def collect_values(report: Report, arm: str, metric: str) -> dict[int, float]:
    """Seed -> the metric of an arm's finished run, or one side of a contrast, where it has one."""
    weights = _find_side(report, arm)
    sums = dict[int, float]()
    counts = dict[int, int]()
    for run in report.runs:
        if run.arm in weights and run.is_done and (value := run.metrics.get(metric)) is not None:
            sums[run.seed] = sums.get(run.seed, 0.0) + weights[run.arm] * float(value)
            counts[run.seed] = counts.get(run.seed, 0) + 1
    return {seed: total for seed, total in sums.items() if counts[seed] == len(weights)}


def _find_side(report: Report, name: str) -> dict[str, float]:
    """Return the arms that a name stands for, with their weights: itself, or one side of a contrast."""
    for claim in report.verdict.claims:
        if claim.contrast and name in (claim.arm, claim.against):
            sign = 1 if name == claim.arm else -1
            return {arm: abs(weight) for arm, weight in claim.contrast.items() if sign * weight > 0}
    return {name: 1.0}


def find_incomparability_reasons(report: Report, arm: str, against: str, metric: str) -> list[str]:
    """The reasons why a report does not compare two arms in a metric; [] where it does."""
    pairs = {*combinations((*_find_side(report, arm), *_find_side(report, against)), 2)}
    return [
        text
        for row in report.verdict.not_comparable
        if (row.arm, row.against) in pairs and row.metric == metric
        for text in row.reasons
    ]


def compute_differences(report: Report, arm: str, against: str, metric: str) -> dict[int, float]:
    """Seed -> the arm's value minus the other's, where both have one; {} where they are not compared."""
    if find_incomparability_reasons(report, arm, against, metric):
        return {}
    arm_values = collect_values(report, arm, metric)
    against_values = collect_values(report, against, metric)
    return {
        seed: arm_values[seed] - against_values[seed]
        for seed in sorted(arm_values.keys() & against_values.keys())
    }


def count_failed_runs(report: Report, *arms: str) -> int:
    """How many runs of arms, or sides of a contrast, failed by themselves; not those that were lost."""
    return sum(run.status in FAILED_STATUSES for run in _list_runs(report, arms))


def count_unfinished_runs(report: Report, *arms: str) -> int:
    """How many runs of arms, or sides of a contrast, have no outcome: not yet trained, or lost."""
    return sum(run.status not in ("done", *FAILED_STATUSES) for run in _list_runs(report, arms))


def _list_runs(report: Report, names: Iterable[str]) -> list[RunRow]:
    return [run for name in names for run in report.runs if run.arm in _find_side(report, name)]


def get_training_flops(report: Report, arm: str) -> float | None:
    """Training FLOPs of an arm's run; None where unknown."""
    flops_of_runs = (run.budget.training_flops for run in report.runs if run.arm == arm)
    return next((flops for flops in flops_of_runs if flops), None)


def list_comparisons(report: Report) -> list[tuple[str, str]]:
    """Every compared pair of arms: each arm with the baseline, and the pairs that a claim compares."""
    experiment = report.experiment
    baseline_pairs = [(arm, experiment.baseline) for arm in experiment.arms if arm != experiment.baseline]
    claim_pairs = [
        (claim.arm, claim.against) for claim in report.verdict.claims if is_primary_difference(claim, report)
    ]
    return list(dict.fromkeys([*baseline_pairs, *claim_pairs]))


def is_primary_difference(claim: ClaimResult, report: Report) -> bool:
    """Whether seeds decide the claim and it is about differences of the experiment's metric."""
    is_primary = claim.metric == report.experiment.metric
    return bool(is_primary and claim.compare == "difference" and not claim.decision.exact)
