"""Files that are not as their runs wrote them: what that costs the page, said before anything else."""

from attnlab.report.verdicts.runs import Run, Sweep
from attnlab.store.guards import digests

COSTS = {  # what is lost on the page, and how it comes back
    digests.CURVES: ("its curve is not here", "the sweep's command trains it again"),
    digests.MAPS: ("its attention maps are not here", "the sweep's command trains it again"),
    digests.WEIGHTS: (
        "its numbers stand, and no run starts from it",
        "sweep.retry_failed=true trains it again",
    ),
    "run.json": ("its numbers are not here", "the sweep's command makes them again"),
}
UNKNOWN = "without its run.json, the sweep's command trains it again"  # of a run that kept no digests


def sentences(sweep: Sweep) -> list[str]:
    """One for each broken file."""
    return [_sentence(run, name, fault) for run in sweep.planned for name, fault in run.broken.items()]


def _sentence(run: Run, name: str, fault: str) -> str:
    cost, again = COSTS[name]
    again = UNKNOWN if run.record and name not in run.record.files else again
    return f"{run.arm}, seed {run.seed}: {name} {fault}: {cost}; {again}."
