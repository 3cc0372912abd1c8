"""Finished runs, logged from their records: for a logger that was added after training or lost its process.

All that a logger gets while a run trains is in the run's folder: its curves, attention maps and figures.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from attnlab.store import runs
from attnlab.training.callbacks import show_maps
from attnlab.training.end import summary
from attnlab.training.loggers import notes
from attnlab.training.loggers.group import open_loggers


def log(folder: Path, group: Mapping[str, Any], tag: str | None) -> None:
    """Logs a finished run to the loggers of the group `logger` that lack it; `tag` is one more for W&B."""
    names = [name for name in notes.list_loggers(group) if notes.lacks(folder, name, tag)]
    record = runs.record(folder)
    if not names or record is None or not record.done:
        return
    if notes.WANDB in names and not notes.read(folder, notes.WANDB).get("done"):
        for broken in notes.wandb_folder(folder).glob(f"offline-run-*-{folder.name}"):
            shutil.rmtree(broken)  # its process was lost: all of the run is logged again
            notes.update(folder, notes.WANDB, last={})
    known = notes.read(folder, notes.WANDB).get("tags", ())
    spec = runs.spec(folder).but(estimate=record.estimate)
    opened = open_loggers(group, spec, folder, names, [*known, *([tag] if tag else [])])
    for step, named in sorted(_rows(folder).items()):
        for logger in opened:
            logger.log_metrics(named, step=step)
    _show(folder, opened)
    for logger in opened:
        logger.end(summary(record), 0)


def _rows(folder: Path) -> dict[int, dict[str, float]]:
    """Step -> the numbers that were logged after it."""
    rows: dict[int, dict[str, float]] = {}
    if (folder / "curves.parquet").exists():
        for row in pq.read_table(folder / "curves.parquet").to_pylist():
            rows.setdefault(row["step"], {})[row["name"]] = row["value"]
    return rows


def _show(folder: Path, opened: list[Any]) -> None:
    if (folder / "attention.npz").exists():
        with np.load(folder / "attention.npz") as saved:
            for step, maps in zip(saved["steps"].tolist(), saved["maps"], strict=True):
                show_maps(opened, maps, saved["layers"].tolist(), step)


def main(arguments: list[str]) -> int:
    """The process that a sweep starts at its end: logs finished runs. 0, or 1 after a line per failure."""
    task = json.loads(arguments[0])
    status = 0
    for folder in map(Path, task["folders"]):
        try:
            log(folder, task["logger"], task["tags"].get(folder.name))
        except Exception as error:  # a logger's own, or the disk's: the records stay as they are
            reason = f"{type(error).__name__}: {error}"
            print(f"logging {folder.name} failed ({reason}); {notes.ON_DISK}", file=sys.stderr, flush=True)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
