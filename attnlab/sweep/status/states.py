"""Where every run of a plan stands, read from the store and its locks, whoever is training it."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    record = store.record(folder)
    faults = mend.faults(folder, None if weights else digests.LARGE)
    wrong = "; ".join(f"{name} {fault}" for name, fault in faults.items())
    if record is not None and not record.done:
        return State(record.status, record.failure.message if record.failure else "", 1.0)
    if record is not None and not faults.keys() & digests.PICTURED:
        loss = record.metrics.get("val/loss")
        said = "" if loss is None else f"val/loss {loss:.4f}"
        return State("done", "; ".join(filter(None, (said, wrong))), 1.0)
    at = store.progress(folder)
    where = f"step {at['step']}/{at.get('max_steps', '?')}" if "step" in at else ""
    if locked(folder):
        loss = at.get("loss")
        return State("running", where + (f" loss {loss:.4f}" if where and loss else ""), fraction(at))
    half = any((folder / name).exists() for name in CHECKPOINTS)
    return State("stopped", where, fraction(at)) if half else State("to train", wrong, 0.0)


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
    return [record for record in map(store.record, folders) if record and record.done]
