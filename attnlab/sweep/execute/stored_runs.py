"""Finished runs that a logger lacks, logged from their records by a process of its own at a command's end."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.errors import printable
from attnlab.store import runs
from attnlab.store.guards.trust import TRAINER
from attnlab.sweep.execute import slots
from attnlab.sweep.plan.fork_server import Context
from attnlab.sweep.plan.trainer import trainer_of
from attnlab.training.loggers import notes

MODULE = "attnlab.training.loggers.stored"
RUN_SECONDS = 5.0  # for logging one run, beside the server's time


def log(
    folders: Sequence[Path], group: Mapping[str, Any], tags: Mapping[str, str], context: Context | None
) -> None:
    """Logs the finished runs of attnlab's own trainer that a logger of `group` lacks, or W&B their tag."""
    names = notes.list_loggers(group)
    lacking = [
        folder
        for folder in folders
        if any(notes.lacks(folder, name, tags.get(folder.name)) for name in names)
        and runs.is_done(folder)
        and trainer_of(runs.spec(folder).config) == TRAINER
    ]
    if not lacking:
        return
    print(f"logging {len(lacking)} finished runs to {', '.join(names)}", flush=True)
    task = {"folders": [str(one.absolute()) for one in lacking], "logger": dict(group), "tags": dict(tags)}
    bound = 4 * float(group.get("patience", 20.0)) + RUN_SECONDS * len(lacking)
    run_child(MODULE, task, folders[0].parent / "wandb" / "stored.log", context, bound)


def run_child(module: str, task: Mapping[str, Any], log: Path, context: Context | None, bound: float) -> bool:
    """Runs a module that logs to W&B, for so many seconds, and prints its lines; whether it did all of it."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        child = slots.start(slots.Slot(0, None, 1), context, module, [json.dumps(task)], log)
        try:
            deadline = time.monotonic() + bound
            while child.code() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            code = child.code()
        finally:
            slots.end([child], grace=0.5)
        printed = log.read_text(errors="replace").splitlines()
        lines = [line for line in printed if line.startswith("W&B ") or line.endswith(notes.ON_DISK)]
        if code is None:
            lines = [f"the loggers did not take everything within {bound:g} s; the results are on disk"]
        elif code and not lines:
            lines = [f"logging failed; {log} shows the reason"]
    except (OSError, EOFError) as error:  # EOFError: the fork server ended
        lines = [f"logging failed: {error or 'the fork server ended'}"]
        code = 1
    for line in lines:
        print(printable(line), flush=True)
    return code == 0
