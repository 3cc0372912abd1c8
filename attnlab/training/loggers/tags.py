"""The tag of an experiment on a stored run that it uses too.

Surprising: W&B's files only ever grow, so a tag is a W&B run of its own beside the first one: the same id and
config, all tags, no numbers. Whatever sends the one sends the other, and W&B has one run. It is written as a
file, since to begin a run by `wandb.init` takes a second each.
"""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from attnlab.store.files import replacing
from attnlab.training.loggers.files import encoded, records


def add(folder: Path, tag: str) -> bool:
    """Has the W&B run of a run's folder carry a tag; whether it lacked it. False where there is no such run.

    OSError where that cannot be written.
    """
    name = folder.name
    begun = [_begin(file) for file in sorted(folder.glob(f"wandb/*run-*-{name}/run-{name}.wandb"))]
    whole = [(header, run) for header, run in begun if run is not None]
    tags = {tag for _, run in whole for tag in run.run.tags}
    if not whole or tag in tags:
        return False
    header, run = whole[0]
    del run.run.tags[:]
    run.run.tags.extend(sorted({*tags, tag}))
    file = _new(folder / "wandb", name) / f"run-{name}.wandb"
    with replacing(file) as temporary:
        temporary.write_bytes(encoded([*header, run, _exit(run)]))
    return True


def _begin(file: Path) -> tuple[list[Any], Any]:
    """What comes before the message that names the run, and that one; None where there is none."""
    before = list[Any]()
    for record in records(file.read_bytes()):
        if record.HasField("run"):
            return before, record
        before.append(record)
    return before, None


def _exit(run: Any) -> Any:
    record = type(run)()
    record.num = run.num + 1
    record._info.CopyFrom(run._info)
    record.exit.exit_code = 0
    return record


def _new(folder: Path, name: str) -> Path:
    """A folder as W&B calls those of an offline run."""
    now, there = int(datetime.now().timestamp()), _times(folder.iterdir())
    while (time := f"{datetime.fromtimestamp(now):%Y%m%d_%H%M%S}") in there:
        now += 1
    made = folder / f"offline-run-{time}-{name}"
    made.mkdir()
    return made


def _times(folders: Iterable[Path]) -> set[str]:
    return {path.name.split("-")[-2] for path in folders if path.name.count("-") >= 2}
