"""Logging of finished runs that a logger lacks, by a separate process at the end of a command."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.errors import escape_unprintable
from attnlab.store import run_directories
from attnlab.store.guards.trust import DEFAULT_TRAINER
from attnlab.sweep.execute import worker_slots
from attnlab.sweep.plan.fork_server import Context
from attnlab.sweep.plan.trainer import get_trainer_name
from attnlab.training.loggers import logger_notes

MODULE = "attnlab.training.loggers.finished_runs"
RUN_SECONDS = 5.0  # for logging one run, in addition to the server's patience


def log_missing_runs(
    folders: Sequence[Path],
    logger_settings: Mapping[str, Any],
    tags_by_run: Mapping[str, str],
    context: Context | None,
) -> None:
    """Log the finished runs of attnlab's own trainer that a configured logger lacks.

    Args:
        folders: run directories of the command, at least one.
        logger_settings: the config group `logger`.
        tags_by_run: run id -> W&B tag; a run without its tag counts as missing from W&B.
        context: fork server of the logging process; None starts a new interpreter.
    """
    names = logger_notes.list_loggers(logger_settings)
    missing_runs = [
        folder
        for folder in folders
        if any(logger_notes.is_run_missing(folder, name, tags_by_run.get(folder.name)) for name in names)
        and run_directories.is_done(folder)
        and get_trainer_name(run_directories.load_run_config(folder).config) == DEFAULT_TRAINER
    ]
    if not missing_runs:
        return
    print(f"logging {len(missing_runs)} finished runs to {', '.join(names)}", flush=True)
    task = {
        "folders": [str(folder.absolute()) for folder in missing_runs],
        "logger": dict(logger_settings),
        "tags": dict(tags_by_run),
    }
    timeout = 4 * float(logger_settings.get("patience", 20.0)) + RUN_SECONDS * len(missing_runs)
    run_logging_process(MODULE, task, folders[0].parent / "wandb" / "stored.log", context, timeout)


def run_logging_process(
    module: str, task: Mapping[str, Any], log: Path, context: Context | None, timeout: float
) -> bool:
    """Run a module that logs to W&B for at most `timeout` seconds and print its messages.

    Returns:
        Whether it logged everything.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        child = worker_slots.start_child(
            worker_slots.WorkerSlot(0, None, 1), context, module, [json.dumps(task)], log
        )
        try:
            deadline = time.monotonic() + timeout
            while child.poll_exit_code() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            code = child.poll_exit_code()
        finally:
            worker_slots.stop_children([child], grace_seconds=0.5)
        log_lines = log.read_text(errors="replace").splitlines()
        lines = [
            line
            for line in log_lines
            if line.startswith("W&B ") or line.endswith(logger_notes.ON_DISK_MESSAGE)
        ]
        if code is None:
            lines = [f"uploads of the loggers still pending after {timeout:g} s; the results are on disk"]
        elif code and not lines:
            lines = [f"logging failed: see {log}"]
    except (OSError, EOFError) as error:  # EOFError: the fork server ended
        lines = [f"logging failed: {error or 'the fork server exited'}"]
        code = 1
    for line in lines:
        print(escape_unprintable(line), flush=True)
    return code == 0
