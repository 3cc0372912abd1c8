"""Repair of finished runs: outdated measurements, an edited result, a broken file.

Measurements are repeated from intact weights. Weights, curves and attention maps come only from training. A
report shows curves and maps, so the same command trains a run again if they are broken. Users delete weights
to save space, so a run is trained again for its weights only if they are needed or under `retry_failed`.
"""

from collections.abc import Iterable
from pathlib import Path

from attnlab.store import file_names, run_directories
from attnlab.store.guards import digests
from attnlab.store.run_schema import RunConfig, RunResult

# Fields of a run result that remeasuring derives from the weights.
MEASURED_FIELDS = {
    "metrics", "undefined", "censored", "by_position", "targets_by_position", "head_scores", "leakage",
    "by_token_category", "generated_text", "measured_by",
}  # fmt: skip


def needs_repair(run: RunConfig, record: RunResult, root: Path, retry_failed: bool) -> bool:
    """Return whether a finished run has outdated measurements or broken files.

    Weights are checked only under `retry_failed`; otherwise only the plotted files are.
    """
    if not record.is_done:
        return False
    names = digests.RUN_FILES if retry_failed else digests.PLOTTED_FILES
    return bool(
        record.list_outdated_parts(run.estimate) or digests.find_broken_files(root / run.id, record, names)
    )


def explain_unusable_weights(folder: Path) -> str:
    """Explain why a finished run's weights are missing or broken; empty if they are usable."""
    record = run_directories.load_run_result(folder)
    faults = (
        digests.find_broken_files(folder, record, [file_names.WEIGHTS_FILE])
        if record and record.is_done
        else {}
    )
    return " ".join(f"{folder / name} {fault}" for name, fault in faults.items())


def find_faults(folder: Path, max_bytes: int | None = None) -> dict[str, str]:
    """Map each edited or broken file of an ended run to its fault.

    Args:
        folder: the run directory.
        max_bytes: larger files are not hashed; None hashes all.
    """
    record = run_directories.load_run_result(folder)
    changed = list[str]()
    if record is None:
        record, changed = run_directories.load_edited_result(folder)
    faults = {"run.json": f"was edited: {', '.join(changed)}"} if changed else {}
    return faults | (
        digests.find_broken_files(folder, record, max_bytes=max_bytes) if record and record.is_done else {}
    )


def print_faults(planned_runs: Iterable[RunConfig], to_launch: Iterable[RunConfig], root: Path) -> None:
    """Print a line per run with faults, and the command or action that repairs it."""
    launched_ids = {run.id for run in to_launch}
    for run in {run.id: run for run in planned_runs}.values():
        if faults := find_faults(root / run.id, digests.LARGE_FILE_BYTES):
            fault_list = "; ".join(f"{name} {fault}" for name, fault in faults.items())
            action = (
                "this command repairs it"
                if run.id in launched_ids
                else "sweep.retry_failed=true trains the run again"
            )
            print(f"{run.arm} seed={run.seed}: {fault_list}; {action}", flush=True)


def reopen_for_remeasurement(folder: Path) -> RunResult | None:
    """Mark an edited result as outdated if remeasuring from the weights can restore every edited field.

    The edited run.json is set aside first.

    Returns:
        The result with all measurements outdated; None if there is no edited result, or only training can
        restore it.
    """
    record, changed = run_directories.load_edited_result(folder)
    if record is None:
        return None
    (folder / run_directories.EDITED_RESULT_FILE).write_bytes((folder / "run.json").read_bytes())
    measurable = (
        bool(run_directories.load_run_config(folder).estimate.measured_by) and set(changed) <= MEASURED_FIELDS
    )
    if not record.is_done or not measurable or digests.find_broken_files(folder, record):
        return None
    record = record.model_copy(update={"measured_by": {}})
    run_directories.write_run_result(folder, record)
    return record


def restore_edited_result(folder: Path) -> None:
    """Put the edited run.json back after a failed remeasurement; it stays untrusted."""
    if (folder / run_directories.EDITED_RESULT_FILE).exists():
        (folder / run_directories.EDITED_RESULT_FILE).replace(folder / "run.json")
