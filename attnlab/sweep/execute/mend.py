"""What is made again of a finished run: measurements by other code, an edited record, a broken file.

Measurements are taken again from sound weights. Weights, curves and maps come from training alone: curves and
maps are what a page shows, so they are trained again by the same command; weights are what people delete to
have room, so a run is trained again for them only where they are needed, or sweep.retry_failed asks for it.
"""

from collections.abc import Iterable
from pathlib import Path

from attnlab.store import runs
from attnlab.store.guards import digests
from attnlab.store.schema import RunRecord, RunSpec

# The fields of a record that measuring again makes anew from the weights.
MEASURED = {
    "metrics", "undefined", "censored", "by_position", "targets_by_position", "head_scores", "leakage",
    "by_kind", "written", "measured_by",
}  # fmt: skip


def wanted(run: RunSpec, record: RunRecord, root: Path, retry_failed: bool) -> bool:
    """Whether a finished run, with this record, has parts to be made again."""
    if not record.done:
        return False
    names = digests.FILES if retry_failed else digests.PICTURED
    return bool(record.outdated(run.estimate) or digests.broken(root / run.id, record, names))


def unusable(folder: Path) -> str:
    """Why a finished run cannot give its weights to another; nothing where it can."""
    record = runs.record(folder)
    faults = digests.broken(folder, record, [digests.WEIGHTS]) if record and record.done else {}
    return " ".join(f"{folder / name} {fault}" for name, fault in faults.items())


def faults(folder: Path, most: int | None = None) -> dict[str, str]:
    """File name -> what is wrong with it, of an ended run whose record or files are not what it wrote."""
    record = runs.record(folder)
    changed = list[str]()
    if record is None:
        record, changed = runs.edited(folder)
    found = {"run.json": f"was edited: {', '.join(changed)}"} if changed else {}
    return found | (digests.broken(folder, record, most=most) if record and record.done else {})


def tell(asked: Iterable[RunSpec], todo: Iterable[RunSpec], root: Path) -> None:
    """A line per run that has faults, and what is done about it."""
    wanted = {run.id for run in todo}
    for run in {run.id: run for run in asked}.values():
        if found := faults(root / run.id, digests.LARGE):
            what = "; ".join(f"{name} {fault}" for name, fault in found.items())
            done = "it is made again" if run.id in wanted else "sweep.retry_failed=true trains it again"
            print(f"{run.arm} seed={run.seed}: {what}; {done}", flush=True)


def reopened(folder: Path) -> RunRecord | None:
    """The record of a run that was edited in nothing but what its weights still say: all of that outdated.
    None where there is none, or only training can tell.
    """
    record, changed = runs.edited(folder)
    if record is None:
        return None
    (folder / runs.EDITED).write_bytes((folder / "run.json").read_bytes())
    measurable = bool(runs.spec(folder).estimate.measured_by) and set(changed) <= MEASURED
    if not record.done or not measurable or digests.broken(folder, record):
        return None
    record = record.model_copy(update={"measured_by": {}})
    runs.write_record(folder, record)
    return record


def give_up(folder: Path) -> None:
    """What was edited and could not be measured again stays edited, and is not trusted."""
    if (folder / runs.EDITED).exists():
        (folder / runs.EDITED).replace(folder / "run.json")
