"""A run that ran out of memory, once more with its batches in twice as many parts: slower, and the same run.

The parts' gradients add up to the whole batch's, so the effective batch, and with it the run's id, stays.
"""

from pathlib import Path

from attnlab.store import runs
from attnlab.store.files import CHECKPOINTS
from attnlab.store.schema import RunSpec
from attnlab.sweep.execute.ranks import devices


def halved(run: RunSpec, root: Path) -> bool:
    """Whether the run failed for want of memory and can be cut further; then its spec says so."""
    folder = root / run.id
    record = runs.record(folder)
    if record is None or record.status != "out_of_memory":
        return False
    parts = 2 * runs.split(folder)
    if run.config["data"]["batch_size"] % (parts * devices(run.config)):
        return False
    spec = runs.spec(folder)
    runs.write_spec(root, spec.but(use=spec.use.model_copy(update={"split": parts})))
    for name in ("run.json", *CHECKPOINTS):  # a checkpoint counts in parts of the old size
        (folder / name).unlink(missing_ok=True)
    return True
