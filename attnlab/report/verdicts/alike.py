"""Were the runs made alike, and are their files as they wrote them? By which versions of which packages, and
measured by which code.

A comparison whose arms were trained by different versions may show a difference of the versions; the page
says so, and what broken files cost it, before it says anything else.
"""

from typing import Any

from attnlab.report.verdicts.runs import Run, Sweep
from attnlab.store.guards import digests
from attnlab.store.schema import RunRecord

DECISIVE = ("torch", "pytorch-lightning")  # packages of which another version may train another model
COSTS = {  # what is lost on the page, and how it comes back
    digests.CURVES: ("its curve is not here", "the sweep's command trains it again"),
    digests.MAPS: ("its attention maps are not here", "the sweep's command trains it again"),
    digests.WEIGHTS: (
        "its numbers stand, and no run starts from it",
        "sweep.retry_failed=true trains it again",
    ),
    digests.VOCABULARY: (
        "its numbers stand, and generate and inspect refuse it",
        "sweep.retry_failed=true trains it again",
    ),
    "run.json": ("its numbers are not here", "the sweep's command makes them again"),
}
UNKNOWN = "without its run.json, the sweep's command trains it again"  # of a run that kept no digests


def versions(sweep: Sweep) -> dict[str, dict[str, int]]:
    """Package -> version -> how many runs were made by it."""
    tallies: dict[str, dict[str, int]] = {}
    for record in sweep.records:
        for package, version in packages(record).items():
            counts = tallies.setdefault(package, {})
            counts[version] = counts.get(version, 0) + 1
    return {package: dict(sorted(counts.items())) for package, counts in sorted(tallies.items())}


def packages(record: RunRecord) -> dict[str, str]:
    """What the run was made by; nothing of a run that was lost before it could say."""
    said: dict[str, Any] = record.environment.get("packages") or {}
    own = {"attnlab": record.environment.get("attnlab"), **said}
    return {name: str(version) for name, version in own.items() if version}


def unlike(sweep: Sweep) -> list[str]:
    """A sentence for each package that decides a result, and for each part of the records, in which the runs
    were not made alike.
    """
    out = []
    for package, counts in versions(sweep).items():
        if package in DECISIVE and len(counts) > 1:
            groups = [f"{version} ({runs} run{'' if runs == 1 else 's'})" for version, runs in counts.items()]
            out.append(
                f"The runs were made by different versions of {package}: {', '.join(groups)}. "
                "A difference between them may be the versions'."
            )
    for part, by in _measurers(sweep).items():
        if len(by) > 1:
            out.append(
                f"{part}: not all runs were measured by the same code, so their values need not compare."
            )
    for part, runs in sweep.asked.outdated.items():
        out.append(
            f"{part}: measured by an earlier version of the code in {runs} of {len(sweep.planned)} runs, and "
            "not to be had again without training."
        )
    return out


def _measurers(sweep: Sweep) -> dict[str, set[str]]:
    """Part of a record -> the digests of the code that measured it."""
    seen: dict[str, set[str]] = {}
    for record in sweep.records:
        if record.done:
            for part, digest in (record.measured_by | record.observed_by).items():
                seen.setdefault(part, set()).add(digest)
    return dict(sorted(seen.items()))


def broken(sweep: Sweep) -> list[str]:
    """A sentence for each file that is not as its run wrote it."""
    return [_sentence(run, name, fault) for run in sweep.planned for name, fault in run.broken.items()]


def _sentence(run: Run, name: str, fault: str) -> str:
    cost, again = COSTS[name]
    again = UNKNOWN if run.record and name not in run.record.files else again
    return f"{run.arm}, seed {run.seed}: {name} {fault}: {cost}; {again}."
