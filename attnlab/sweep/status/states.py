"""State of each run, read from its run directory and lock, whichever process trains it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attnlab.store import run_directories
from attnlab.store.file_names import CHECKPOINT_NAMES
from attnlab.store.guards import digests
from attnlab.store.lease import is_locked
from attnlab.store.run_schema import RunConfig, RunResult
from attnlab.sweep.execute import repair
from attnlab.sweep.execute.progress import compute_fraction_done

UNFINISHED_STATES = ("to train", "running", "stopped")  # status of a run that has not ended


@dataclass(frozen=True)
class RunState:
    """State of a run.

    `status` is the status of its result, or "running", "stopped" (partly trained, no process holds it) or
    "to train"; `detail` adds steps, loss or faults.
    """

    status: str
    detail: str
    fraction_done: float  # 0 to 1

    def __str__(self) -> str:
        return f"{self.status}  {self.detail}".rstrip()


def load_run_state(folder: Path, check_weights: bool = False) -> RunState:
    """Load the state of the run in `folder`.

    With `check_weights` large files are hashed too, which takes a second per gigabyte.
    """
    files = tuple(get_file_version(folder / name) for name in ("run.json", *digests.RUN_FILES))
    ended_state, fault_list = _load_ended_state(folder, check_weights, files)
    if ended_state is not None:
        return ended_state
    progress = run_directories.read_progress(folder)
    steps = f"step {progress['step']}/{progress.get('max_steps', '?')}" if "step" in progress else ""
    if is_locked(folder):
        loss = progress.get("loss")
        detail = steps + (f" loss {loss:.4f}" if steps and loss else "")
        return RunState("running", detail, compute_fraction_done(progress))
    if any((folder / name).exists() for name in CHECKPOINT_NAMES):
        return RunState("stopped", steps, compute_fraction_done(progress))
    return RunState("to train", fault_list, 0.0)


@lru_cache(maxsize=4096)
def _load_ended_state(
    folder: Path, check_weights: bool, _files: tuple[tuple[int, ...], ...]
) -> tuple[RunState | None, str]:
    """Load the state of an ended run (None if it has not ended or must be trained again) and its file faults.

    Cached by the versions of the files.
    """
    run_record = load_cached_result(folder)
    faults = repair.find_faults(folder, None if check_weights else digests.LARGE_FILE_BYTES)
    fault_list = "; ".join(f"{name} {fault}" for name, fault in faults.items())
    if run_record is not None and not run_record.is_done:
        return RunState(
            run_record.status, run_record.failure.message if run_record.failure else "", 1.0
        ), fault_list
    if run_record is None or faults.keys() & digests.PLOTTED_FILES:
        return None, fault_list
    loss = run_record.metrics.get("val/loss")
    loss_text = "" if loss is None else f"val/loss {loss:.4f}"
    return RunState("done", "; ".join(filter(None, (loss_text, fault_list))), 1.0), fault_list


def load_cached_result(folder: Path) -> RunResult | None:
    """Load a run's result, as `run_directories.load_run_result`, but once per version of its file.

    `status --watch` reads all results every second.
    """
    return _load_result_version(folder, get_file_version(folder / "run.json"))


@lru_cache(maxsize=4096)
def _load_result_version(folder: Path, _version: tuple[int, ...]) -> RunResult | None:
    return run_directories.load_run_result(folder)


def get_file_version(path: Path) -> tuple[int, ...]:
    """Return a tuple that changes with every new file at `path`; () if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def load_run_states(
    runs: Sequence[RunConfig], root: Path, check_weights: bool = False
) -> dict[str, RunState]:
    """Load the state of each run, by run id."""
    return {run.id: load_run_state(root / run.id, check_weights) for run in runs}


def load_finished_results(root: Path) -> list[RunResult]:
    """Load the results of all finished runs below `root`, sorted by run id."""
    folders = sorted(path.parent for path in root.glob("*/run.json"))
    return [result for result in map(load_cached_result, folders) if result and result.is_done]
