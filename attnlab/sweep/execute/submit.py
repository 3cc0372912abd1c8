"""Runs on their way to a launcher: parents before children, and what ran out of memory in smaller parts.

Our launchers train the folders of stored runs. Any other one of Hydra's is given overrides that compose each
run again and end in its id, which `hydra_job` reads.
"""

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attnlab.errors import Refused, no_space
from attnlab.store import fingerprint
from attnlab.store import runs as store
from attnlab.store.files import CHECKPOINTS
from attnlab.store.guards import trust
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.sweep.execute import mend
from attnlab.sweep.execute.ranks import devices

FAILED = 1
RETRIES = 2  # of a run that its infrastructure failed, within one command


@runtime_checkable
class StoredRunLauncher(Protocol):
    """A launcher that trains stored runs."""

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        """Returns when all have ended, however they did."""


def todo(runs: Sequence[RunSpec], root: Path, retry_failed: bool) -> list[RunSpec]:
    """The runs to launch, each once: those without a record, the failed ones where that is asked for or what
    failed was none of theirs (a machine, a key), and the finished ones that `mend` has something to do for.
    """
    by_id = {run.id: run for run in runs}
    wanted = {}
    for run in by_id.values():
        record = store.record(root / run.id)
        failure = record.failure if record is not None and not record.done else None
        again = failure is not None and (retry_failed or fingerprint.outside(failure.message))
        if record is None or again or is_retried(record) or mend.wanted(run, record, root, retry_failed):
            wanted[run.id] = run.used(instead=record and record.failed)
    queue = list(wanted.values())
    while queue:
        parent = by_id.get(str(queue.pop().config.get("parent")))
        if parent and parent.id not in wanted and mend.unusable(root / parent.id):
            wanted[parent.id] = parent
            queue.append(parent)
    return list(wanted.values())


def launch(
    runs: Sequence[RunSpec],
    root: Path,
    experiments: Mapping[str, str],
    launcher: Any,
    settings: Mapping[str, Any],
    composed: Sequence[str] = (),
) -> int:
    """Train the runs; retry those that infrastructure failed, after all others and from their checkpoints.

    `experiments` names the experiment of each run, `composed` what the whole command names of a user's own.
    1 where the launcher itself failed.
    """
    halving = bool(settings.get("halve_batch"))
    again = not settings.get("fail_fast")
    runs = [run.used(composed=tuple(composed)) for run in runs]
    status = _submit(runs, root, experiments, launcher, settings)
    while halving and status == 0 and (smaller := [run for run in runs if halved(run, root)]):
        for run in smaller:
            parts = store.split(root / run.id)
            print(f"{run.arm} seed={run.seed} ran out of memory: once more, its batches in {parts} parts")
        status = _submit(smaller, root, experiments, launcher, settings)
    for number in range(1, RETRIES + 1):
        if status or not again or not (failed := list(_retried(runs, root, number))):
            break
        children = [run for run in runs if run.config.get("parent") and not store.record(root / run.id)]
        status = _submit([*failed, *children], root, experiments, launcher, settings)
    return status


def is_retried(record: RunRecord) -> bool:
    """Whether a failed run is trained again without being asked to: its infrastructure failed, or its device
    had no memory left, which other processes may have held.
    """
    return record.lost or record.status == "out_of_memory"


def _retried(runs: Sequence[RunSpec], root: Path, number: int) -> Iterator[RunSpec]:
    """The runs of retry `number`, asked for anew."""
    for run in runs:
        record = store.record(root / run.id)
        if record is not None and is_retried(record) and record.failure:
            why = f"retry {number} of {RETRIES}, since {record.failure.message}"
            print(f"{run.arm} seed={run.seed}: {why}", flush=True)
            yield run.used(instead=record.failed)


def _submit(
    runs: Sequence[RunSpec],
    root: Path,
    experiments: Mapping[str, str],
    launcher: Any,
    settings: Mapping[str, Any],
) -> int:
    for run in runs:
        use = {"experiment": experiments.get(run.id), "split": store.split(root / run.id)}
        store.write_spec(root, run.used(**use))
    waiting = list(runs)
    index = 0
    while waiting:
        ready = _ready(waiting, root)
        waiting = [run for run in waiting if run not in ready]
        ready = [run for run in ready if not _lack(run, root)]
        try:
            if isinstance(launcher, StoredRunLauncher):
                launcher.train([root / run.id for run in ready], dict(settings))
            else:
                here = f"paths.runs='{root.absolute()}'"
                jobs = [[*run.use.overrides, here, f"id='{run.id}'"] for run in ready]
                launcher.launch(jobs, initial_job_idx=index)
        except Refused:
            raise
        except Exception as error:  # a third party's launcher: what it did manage is in the store
            if full := no_space(error, root):
                print(full, file=sys.stderr)
            else:
                traceback.print_exc()
            print("the launcher failed: the report says which runs are missing", file=sys.stderr)
            return FAILED
        index += len(ready)
    return 0


def _ready(waiting: Sequence[RunSpec], root: Path) -> list[RunSpec]:
    """Those whose parent is not waiting itself; one whose parent cannot be used is told of."""
    pending = {run.id for run in waiting}
    ready = [run for run in waiting if run.config.get("parent") not in pending]
    for run in ready:
        if lack := _lack(run, root):
            print(f"not started: {run.arm} seed={run.seed}, whose parent {run.config['parent']} {lack}")
    return ready


def _lack(run: RunSpec, root: Path) -> str:
    """Why a run's parent cannot be used; nothing where it can, or there is none."""
    parent = run.config.get("parent")
    if not parent or store.is_done(root / str(parent)):
        return mend.unusable(root / str(parent)) if parent else ""
    return "is not done"


def composed(runs: Sequence[RunSpec]) -> list[str]:
    """What of a user's own the runs of a command name."""
    return sorted(
        name
        for name in {name for run in runs for name in trust.names(run.config)}
        if not name.startswith(("attnlab.", "torch.", "pytorch_lightning."))
    )


def refuse_strangers(runs: Sequence[RunSpec], root: Path) -> None:
    """Refused where a finished run of the store has another config than its id is made of: what is measured
    or continued would be somebody else's. Specs need no such look: those that are launched are written anew.
    """
    own = composed(runs)
    for run in runs:
        record = store.record(root / run.id)
        if record is not None and record.done:
            file = root / run.id / "run.json"
            stored = fingerprint.canonical(fingerprint.kept(record.config))
            if stored != fingerprint.canonical(fingerprint.kept(run.config)):
                raise Refused(f"{file} has another config than run {run.id}: move that folder away")
            trust.refuse_unknown(record.config, file, own)
        parent = root / str(run.config.get("parent"))
        if run.config.get("convert") and (begun := store.record(parent)) is not None:
            trust.refuse_unknown(begun.config, parent / "run.json", own)


def refuse_unknown_parents(runs: Sequence[RunSpec], root: Path) -> None:
    """A parent is an arm of the same command, or a finished run of the store."""
    ours = {run.id for run in runs}
    for run in runs:
        parent = run.config.get("parent")
        if parent and parent not in ours and not store.is_done(root / str(parent)):
            raise Refused(
                f"parent={parent} of {run.arm}: no arm, and no finished run in {root}; train it first"
            )
        if parent and parent not in ours and (lack := mend.unusable(root / str(parent))):
            raise Refused(
                f"parent={parent} of {run.arm}: {lack}; give the command that trained it, with "
                "sweep.retry_failed=true"
            )


def halved(run: RunSpec, root: Path) -> bool:
    """Whether the run failed for want of memory and can be cut further; then its spec says so: once more with
    its batches in twice as many parts. The parts' gradients add up to the whole batch's, so the id stays.
    """
    folder = root / run.id
    record = store.record(folder)
    if record is None or record.status not in ("out_of_memory", "host_out_of_memory"):
        return False
    parts = 2 * store.split(folder)
    if run.config["data"]["batch_size"] % (parts * devices(run.config)):
        return False
    spec = store.spec(folder)
    store.write_spec(root, spec.used(split=parts))
    for name in ("run.json", *CHECKPOINTS):  # a checkpoint counts in parts of the old size
        (folder / name).unlink(missing_ok=True)
    return True
