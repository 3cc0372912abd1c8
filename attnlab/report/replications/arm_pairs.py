"""Differences between two arms of a report, seed by seed, and the compute of their runs."""

from attnlab.report.schema import ClaimResult, Report

FAILED_STATUSES = ("diverged", "crashed", "timed_out")


def collect_values(report: Report, arm: str, metric: str) -> dict[int, float]:
    """Seed -> the metric of an arm's finished run, where it has one."""
    return {
        run.seed: float(value)
        for run in report.runs
        if run.arm == arm and run.is_done and (value := run.metrics.get(metric)) is not None
    }


def find_incomparability_reasons(report: Report, arm: str, against: str, metric: str) -> list[str]:
    """The reasons why a report does not compare two arms in a metric; [] where it does."""
    pairs = report.verdict.not_comparable
    pair = (arm, against, metric)
    return [text for row in pairs if (row.arm, row.against, row.metric) == pair for text in row.reasons]


def compute_differences(report: Report, arm: str, against: str, metric: str) -> list[float]:
    """The arm's value minus the other's, over the seeds that both have; [] where they are not compared."""
    if find_incomparability_reasons(report, arm, against, metric):
        return []
    arm_values = collect_values(report, arm, metric)
    against_values = collect_values(report, against, metric)
    return [
        arm_values[seed] - against_values[seed] for seed in sorted(arm_values.keys() & against_values.keys())
    ]


def count_failed_runs(report: Report, arm: str) -> int:
    """How many of an arm's runs failed by themselves; a failure of the machine is no outcome."""
    return sum(run.arm == arm and run.status in FAILED_STATUSES for run in report.runs)


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
