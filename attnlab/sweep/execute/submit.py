"""Runs on their way to a launcher: parents before children, and what ran out of memory in smaller parts."""

import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store import runs as store
from attnlab.store.schema import RunSpec
from attnlab.sweep.execute.microbatch import halved

FAILED = 1


def todo(runs: Sequence[RunSpec], root: Path, retry_failed: bool) -> list[RunSpec]:
    """The runs to launch, each once: those without a record, the failed ones where that is asked for or what
    failed was none of theirs, and the finished ones in which something was measured by other code than
    today's.
    """
    wanted = []
    for run in {run.id: run for run in runs}.values():
        record = store.record(root / run.id)
        failure = record.failure if record is not None and not record.done else None
        again = failure is not None and (retry_failed or fingerprint.outside(failure.message))
        old = record is not None and record.done and record.outdated(run.estimate)
        if record is None or old or again:
            wanted.append(run)
    return wanted


def launch(
    runs: Sequence[RunSpec], root: Path, experiments: Mapping[str, str], launcher: Any, halving: bool
) -> int:
    """Train the runs; `experiments` names the one that each is for. 1 where the launcher itself failed."""
    status = _submit(runs, root, experiments, launcher)
    while halving and status == 0 and (smaller := [run for run in runs if halved(run, root)]):
        for run in smaller:
            parts = store.split(root / run.id)
            print(f"{run.arm} seed={run.seed} ran out of memory: once more, its batches in {parts} parts")
        status = _submit(smaller, root, experiments, launcher)
    return status


def _submit(runs: Sequence[RunSpec], root: Path, experiments: Mapping[str, str], launcher: Any) -> int:
    for run in runs:
        use = {"experiment": experiments.get(run.id), "split": store.split(root / run.id)}
        store.write_spec(root, run.but(use=run.use.model_copy(update=use)))
    waiting, index = list(runs), 0
    while waiting:
        ready = _ready(waiting, root)
        waiting = [run for run in waiting if run not in ready]
        ready = [run for run in ready if _parent_is_done(run, root)]
        jobs = [[*run.use.overrides, f"paths.runs='{root.absolute()}'", f"id='{run.id}'"] for run in ready]
        try:
            launcher.launch(jobs, initial_job_idx=index)
        except Refused:
            raise
        except Exception:  # a third party's launcher: what it did manage is in the store
            traceback.print_exc()
            print("the launcher failed: the report says which runs are missing", file=sys.stderr)
            return FAILED
        index += len(ready)
    return 0


def _ready(waiting: Sequence[RunSpec], root: Path) -> list[RunSpec]:
    """Those whose parent is not waiting itself; one whose parent has failed is told of."""
    pending = {run.id for run in waiting}
    ready = [run for run in waiting if run.config.get("parent") not in pending]
    for run in ready:
        if not _parent_is_done(run, root):
            print(f"not started: {run.arm} seed={run.seed}, whose parent {run.config['parent']} is not done")
    return ready


def _parent_is_done(run: RunSpec, root: Path) -> bool:
    parent = run.config.get("parent")
    return not parent or store.is_done(root / str(parent))


def refuse_unknown_parents(runs: Sequence[RunSpec], root: Path) -> None:
    """A parent is an arm of the same command, or a finished run of the store."""
    ours = {run.id for run in runs}
    for run in runs:
        parent = run.config.get("parent")
        if parent and parent not in ours and not store.is_done(root / str(parent)):
            raise Refused(
                f"parent={parent} of {run.arm}: no arm, and no finished run in {root}; train it first"
            )
