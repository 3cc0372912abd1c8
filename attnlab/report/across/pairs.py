"""What two arms of a report differ by, seed by seed, and what their runs took."""

from attnlab.report.schema import ClaimResult, Report

OUTCOMES = ("diverged", "crashed", "timed_out")


def values(report: Report, arm: str, metric: str) -> dict[int, float]:
    """Seed -> the metric of an arm's finished run, where it has one."""
    return {
        run.seed: float(value)
        for run in report.runs
        if run.arm == arm and run.done and (value := run.metrics.get(metric)) is not None
    }


def reasons_apart(report: Report, arm: str, against: str, metric: str) -> list[str]:
    """Why a report does not compare two arms in a metric; [] where it does, or is older than the reasons."""
    pairs = report.verdict.apart
    pair = (arm, against, metric)
    return [text for row in pairs if (row.arm, row.against, row.metric) == pair for text in row.reasons]


def differences(report: Report, arm: str, against: str, metric: str) -> list[float]:
    """The arm's value minus the other's, over the seeds that both have; [] where they are not compared."""
    if reasons_apart(report, arm, against, metric):
        return []
    ours = values(report, arm, metric)
    theirs = values(report, against, metric)
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def failed(report: Report, arm: str) -> int:
    """How many of an arm's runs failed by themselves; what a machine did to one is no outcome."""
    return sum(run.arm == arm and run.status in OUTCOMES for run in report.runs)


def flops(report: Report, arm: str) -> float | None:
    """Of the training of an arm's run; None where nobody knows."""
    spent = (run.budget.training_flops for run in report.runs if run.arm == arm)
    return next((flops for flops in spent if flops), None)


def comparisons(report: Report) -> list[tuple[str, str]]:
    """Every two arms of which something is asked: each with the baseline, and those that a claim compares."""
    experiment = report.experiment
    asked = [(arm, experiment.baseline) for arm in experiment.arms if arm != experiment.baseline]
    claimed = [(claim.arm, claim.against) for claim in report.verdict.claims if about(claim, report)]
    return list(dict.fromkeys([*asked, *claimed]))


def about(claim: ClaimResult, report: Report) -> bool:
    """Whether a claim is one about differences of the experiment's metric, which seeds decide."""
    same = claim.metric == report.experiment.metric
    return bool(same and claim.compare == "difference" and not claim.decision.exact)
