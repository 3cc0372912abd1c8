"""Environments of the runs: package versions, measuring code, and broken files.

A difference between arms trained by different package versions may be due to the versions. The page warns of
that, and of the effect of broken files, before anything else.
"""

from typing import Any

from attnlab.report.verdicts.results import Run, SweepResults
from attnlab.store import file_names
from attnlab.store.run_schema import RunResult

RESULT_PACKAGES = ("torch", "pytorch-lightning")  # other versions may train a different model
RERUN_REMEDY = "run the sweep command again to restore it"
RETRY_REMEDY = "run the sweep command with sweep.retry_failed=true to train it again"
BROKEN_FILE_EFFECTS = {  # file -> effect on the page, remedy
    file_names.CURVES_FILE: ("its curve is missing from this report", RERUN_REMEDY),
    file_names.MAPS_FILE: ("its attention maps are missing from this report", RERUN_REMEDY),
    file_names.WEIGHTS_FILE: (
        "its numbers are valid, but no run can start from it",
        RETRY_REMEDY,
    ),
    file_names.VOCABULARY_FILE: (
        "its numbers are valid, but generate and inspect reject it",
        RETRY_REMEDY,
    ),
    "run.json": ("its numbers are missing from this report", RERUN_REMEDY),
}
UNDIGESTED_REMEDY = (
    "delete its run.json and run the sweep command again to train it again"  # for a run without digests
)


def count_package_versions(sweep: SweepResults) -> dict[str, dict[str, int]]:
    """Count the runs per package and version."""
    tallies: dict[str, dict[str, int]] = {}
    for result in sweep.run_results:
        for package, version in get_package_versions(result).items():
            counts = tallies.setdefault(package, {})
            counts[version] = counts.get(version, 0) + 1
    return {package: dict(sorted(counts.items())) for package, counts in sorted(tallies.items())}


def get_package_versions(result: RunResult) -> dict[str, str]:
    """Return the package versions of a run; empty if it was lost before it recorded them."""
    packages: dict[str, Any] = result.environment.get("packages") or {}
    versions = {"attnlab": result.environment.get("attnlab"), **packages}
    return {name: str(version) for name, version in versions.items() if version}


def describe_mixed_environments(sweep: SweepResults) -> list[str]:
    """Describe the packages and parts of run results in which the runs differ, a sentence each."""
    sentences = []
    for package, counts in count_package_versions(sweep).items():
        if package in RESULT_PACKAGES and len(counts) > 1:
            groups = [f"{version} ({runs} run{'' if runs == 1 else 's'})" for version, runs in counts.items()]
            sentences.append(
                f"The runs used different versions of {package}: {', '.join(groups)}. "
                "Differences between these runs may be due to the versions."
            )
    for part, part_digests in _collect_code_digests(sweep).items():
        if len(part_digests) > 1:
            sentences.append(
                f"{part}: measured by different versions of the code, so the values may not be comparable."
            )
    for part, runs in sweep.context.outdated_counts.items():
        sentences.append(
            f"{part}: measured by an earlier version of the code in {runs} of {len(sweep.planned_runs)} "
            "runs; measuring it again requires training."
        )
    return sentences


def _collect_code_digests(sweep: SweepResults) -> dict[str, set[str]]:
    """Collect, per part of a run result, the digests of the code that measured it."""
    digests: dict[str, set[str]] = {}
    for result in sweep.run_results:
        if result.is_done:
            for part, digest in (result.measured_by | result.observed_by).items():
                digests.setdefault(part, set()).add(digest)
    return dict(sorted(digests.items()))


def describe_broken_files(sweep: SweepResults) -> list[str]:
    """Describe each file that differs from the one its run wrote, a sentence each."""
    return [
        _format_broken_file(run, name, fault)
        for run in sweep.planned_runs
        for name, fault in run.broken_files.items()
    ]


def _format_broken_file(run: Run, name: str, fault: str) -> str:
    effect, remedy = BROKEN_FILE_EFFECTS[name]
    remedy = UNDIGESTED_REMEDY if run.result and name not in run.result.files else remedy
    return f"{run.arm}, seed {run.seed}: {name} {fault}: {effect}; {remedy}."
