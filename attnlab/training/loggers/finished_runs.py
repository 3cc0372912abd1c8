"""Log finished runs from their files, for a logger that was added after training or lost its process.

The run's folder has everything that a logger receives during training: curves, attention maps and metrics.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.store import run_directories
from attnlab.training.callbacks import log_maps
from attnlab.training.final_metrics import summarize_metrics
from attnlab.training.loggers import logger_notes
from attnlab.training.loggers.logger_group import open_loggers


def log_finished_run(folder: Path, group: Mapping[str, Any], tag: str | None) -> None:
    """Log a finished run to the loggers of the group `logger` that lack it.

    Args:
        tag: An additional W&B tag.
    """
    names = [
        name for name in logger_notes.list_loggers(group) if logger_notes.is_run_missing(folder, name, tag)
    ]
    result = run_directories.load_run_result(folder)
    if not names or result is None or not result.is_done:
        return
    note = logger_notes.read_note(folder, logger_notes.WANDB)
    if logger_notes.WANDB in names and not note.get("done"):
        for incomplete_folder in logger_notes.get_wandb_folder(folder).glob(f"offline-run-*-{folder.name}"):
            shutil.rmtree(incomplete_folder)  # its process died: the whole run is logged again
            logger_notes.update_note(folder, logger_notes.WANDB, last={})
    run_config = run_directories.load_run_config(folder).with_changes(estimate=result.estimate)
    tags = [*note.get("tags", ()), *filter(None, [tag])]
    loggers = open_loggers(group, run_config, folder, names, tags)
    if (folder / "attention.npz").exists():
        with np.load(folder / "attention.npz") as saved:
            for step, maps in zip(saved["steps"].tolist(), saved["maps"], strict=True):
                log_maps(loggers, maps, saved["layers"].tolist(), step)
    for logger in loggers:
        logger.close(summarize_metrics(result), 0)


def main(arguments: list[str]) -> int:
    """Log finished runs, in the process that a sweep starts at its end.

    Returns:
        0, or 1 after one line per failure.
    """
    task = json.loads(arguments[0])
    status = 0
    for folder in map(Path, task["folders"]):
        try:
            log_finished_run(folder, task["logger"], task["tags"].get(folder.name))
        except Exception as error:  # an error of a logger or the disk leaves the results unchanged
            reason = f"{type(error).__name__}: {error}"
            print(
                f"logging {folder.name} failed ({reason}); {logger_notes.ON_DISK_MESSAGE}",
                file=sys.stderr,
                flush=True,
            )
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
