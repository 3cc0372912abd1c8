"""Where every run of a plan stands, read from the store and its locks, whoever is training it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from filelock import FileLock, Timeout

from attnlab.store import runs as store
from attnlab.store.files import CHECKPOINTS
from attnlab.store.guards import digests
from attnlab.store.lease import elsewhere
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.sweep.execute import mend
from attnlab.sweep.execute.progress import fraction

OPEN = ("to train", "running", "stopped")  # words of a run that has not ended


@dataclass(frozen=True)
class State:
    """`word`: one of the recorded endings, or running, stopped (half-trained, nobody trains it), to train."""

    word: str
    detail: str
    done: float  # the part of the run that is behind us, 0 to 1

    def __str__(self) -> str:
        return f"{self.word}  {self.detail}".rstrip()


def state(folder: Path, weights: bool = False) -> State:
    """With `weights`, the digests of large files are looked at too, which takes a second per gigabyte."""
    files = tuple(version(folder / name) for name in ("run.json", *digests.FILES))
    ended, wrong = _ended(folder, weights, files)
    if ended is not None:
        return ended
    at = store.progress(folder)
    where = f"step {at['step']}/{at.get('max_steps', '?')}" if "step" in at else ""
    if locked(folder):
        loss = at.get("loss")
        return State("running", where + (f" loss {loss:.4f}" if where and loss else ""), fraction(at))
    half = any((folder / name).exists() for name in CHECKPOINTS)
    return State("stopped", where, fraction(at)) if half else State("to train", wrong, 0.0)


@lru_cache(maxsize=4096)
def _ended(folder: Path, weights: bool, _files: tuple[tuple[int, ...], ...]) -> tuple[State | None, str]:
    """The state of a run that has ended, else None, and what is wrong with its files. Asked once for as long
    as they stay as they are.
    """
    run_record = record(folder)
    faults = mend.faults(folder, None if weights else digests.LARGE)
    wrong = "; ".join(f"{name} {fault}" for name, fault in faults.items())
    if run_record is not None and not run_record.done:
        return State(run_record.status, run_record.failure.message if run_record.failure else "", 1.0), wrong
    if run_record is None or faults.keys() & digests.PICTURED:
        return None, wrong
    loss = run_record.metrics.get("val/loss")
    said = "" if loss is None else f"val/loss {loss:.4f}"
    return State("done", "; ".join(filter(None, (said, wrong))), 1.0), wrong


def record(folder: Path) -> RunRecord | None:
    """A run's record (`store.runs.record`), read once per process while its file stays as it is: `watch`
    looks every second.
    """
    return _record(folder, version(folder / "run.json"))


@lru_cache(maxsize=4096)
def _record(folder: Path, _version: tuple[int, ...]) -> RunRecord | None:
    return store.record(folder)


def version(path: Path) -> tuple[int, ...]:
    """Another one for every file that was put there; () where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def locked(folder: Path) -> bool:
    """Whether a process holds the run. Only those who wait a moment for its lock may ask this beside them."""
    if not (folder / "lock").exists():
        return False
    try:
        with FileLock(folder / "lock", timeout=0):
            return elsewhere(folder)
    except Timeout:
        return True
    except OSError:  # a store that may only be read: a worker could not hold a lock in it
        return False


def states(runs: Sequence[RunSpec], root: Path, weights: bool = False) -> dict[str, State]:
    """Run id -> its state."""
    return {run.id: state(root / run.id, weights) for run in runs}


def records(root: Path) -> list[RunRecord]:
    """The records of all finished runs of a store, in the order of their ids."""
    folders = sorted(path.parent for path in root.glob("*/run.json"))
    return [found for found in map(record, folders) if found and found.done]
