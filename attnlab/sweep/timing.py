"""Timing after the training: one exclusive process over all arms' final weights, while nothing else runs.

Kept in `runs/timing/`, named by the runs that were timed; trouble here is noted and never fatal.
"""

import importlib
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from attnlab.errors import Refused
from attnlab.report.schema import Timing
from attnlab.store import fingerprint, runs
from attnlab.store.files import read_json, write_json
from attnlab.store.guards import trust
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.sweep.execute import mend, node, slots
from attnlab.sweep.execute import process as child
from attnlab.sweep.plan.fork_server import Context
from attnlab.sweep.plan.trainer import trainer, trainer_of
from attnlab.sweep.waiting import waiting

MEASURE = "attnlab.measure.timing"
_NOT_HERE = 3  # exit status: the runs were trained on another kind of device


@waiting("timing the arms, one after the other")
def timing(
    folders: dict[str, Path], kind: str, context: Context | None, composed: Sequence[str] = ()
) -> tuple[Timing | None, str]:
    """The arms' times (measured now, or found) and a note: why there are none, where there are none. Beside
    parts of attnlab, what the runs name must be `composed` by the command.
    """
    if len(folders) < 2:
        return None, "timing needs two arms with a finished run"
    root = next(iter(folders.values())).parent / "timing"
    path = root / f"{fingerprint.digest({arm: folder.name for arm, folder in folders.items()})}.json"
    if (times := _read(path)) is not None:
        return times, ""
    for folder in folders.values():
        if lack := mend.unusable(folder):
            return None, lack
    root.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".log")
    arguments = [str(path), json.dumps({arm: str(folder) for arm, folder in folders.items()})]
    arguments.append(json.dumps(list(composed)))
    slot = slots.slots(kind, 1)[0] if kind != "cpu" else slots.Slot(0, None, 1)  # one thread, as each run had
    process = slots.start(slot, context, __name__, arguments, log)
    try:
        while process.code() is None:
            time.sleep(0.02)
    finally:
        slots.end([process] if process.code() is None else [])
    if process.code() == _NOT_HERE:
        return None, f"there is no {kind} here; the same command on a machine that has one takes the times"
    times = _read(path) if process.code() == 0 else None
    if times is None:
        return None, f"timing failed with status {process.code()}: see {log}"
    return times, ""


def _read(path: Path) -> Timing | None:
    """The times in a file; None where there are none that can be trusted: then they are taken anew."""
    with suppress(ValidationError):
        return Timing.model_validate(read_json(path))
    return None


def _trained(folder: Path, composed: Sequence[str]) -> RunRecord:
    """The record of a run that is to be timed. Refused where it names what nobody has composed or trusts."""
    record = runs.record(folder)
    assert record is not None, folder
    trust.refuse_strange(record.config, folder / "run.json", composed)
    return record


def main(arguments: list[str]) -> int:
    """Measure, and write what was measured to the first argument."""
    path = Path(arguments[0])
    folders = {arm: Path(folder) for arm, folder in json.loads(arguments[1]).items()}
    records = [_trained(folder, json.loads(arguments[2])) for folder in folders.values()]
    spec = RunSpec(id=records[0].id, config=records[0].config, estimate=records[0].estimate)
    try:
        node.refuse_other_device(trainer(trainer_of(spec.config)), spec)
    except Refused as error:
        print(error)
        return _NOT_HERE
    times = Timing.model_validate(importlib.import_module(MEASURE).measure(folders))
    write_json(path, times.plain())
    return 0


if __name__ == "__main__":
    sys.exit(child.guarded(main, sys.argv[1:]))
