"""The store: one folder per run, named by its id. A run is done when its record validates, not before."""

import math
import os
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab.errors import Refused
from attnlab.store.files import read_json, write_json

SCHEMA = 1
STATUSES = ("done", "diverged", "out_of_memory", "crashed", "timed_out", "killed")
_ALWAYS = ("id", "status", "seed", "config", "failure")
_WHEN_DONE = ("data", "budget", "metrics", "environment")


def record(folder: Path) -> dict[str, Any] | None:
    """The validated record of a run, done or failed; None where there is none that can be trusted."""
    found = read_json(folder / "run.json")
    if not isinstance(found, dict):
        return None
    _refuse_other_schema(found, folder / "run.json")
    if (
        any(key not in found for key in _ALWAYS)
        or found["status"] not in STATUSES
        or found["id"] != folder.name
    ):
        return None
    if found["status"] == "done":
        metrics = found.get("metrics")
        if any(key not in found for key in _WHEN_DONE) or not isinstance(metrics, dict) or not metrics:
            return None
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in metrics.values()):
            return None
    return found


def is_done(folder: Path) -> bool:
    found = record(folder)
    return found is not None and found["status"] == "done"


def _refuse_other_schema(found: Mapping[str, Any], path: Path) -> None:
    if found.get("schema") != SCHEMA:
        raise Refused(
            f"{path} has schema {found.get('schema')}, this version reads {SCHEMA}: "
            f"move that store away, or point paths.runs at another folder"
        )


def spec(folder: Path) -> dict[str, Any]:
    """What a run is, as written before it was launched."""
    found = read_json(folder / "spec.json")
    if not isinstance(found, dict):
        raise Refused(f"{folder / 'spec.json'} is missing or cut short: run the experiment's command again")
    _refuse_other_schema(found, folder / "spec.json")
    return found


def write_spec(folder: Path, **content: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "spec.json", {**content, "schema": SCHEMA, "id": folder.name})


def split(folder: Path) -> int:
    """In how many parts a run trains each batch; 1 unless memory has asked for more."""
    return ((read_json(folder / "spec.json") or {}).get("use") or {}).get("split", 1)


def progress(folder: Path) -> dict[str, Any]:
    """Where a run stands: step, max_steps, loss, time; empty before its first step."""
    found = read_json(folder / "progress.json")
    return found if isinstance(found, dict) else {}


def tail(folder: Path, lines: int = 20) -> list[str]:
    """The last lines of a worker's output."""
    try:
        with (folder / "log.txt").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def write_failure(folder: Path, status: str, message: str, started: float, step: int | None = None) -> None:
    """Record a run that did not end well: failure is data, with the step it reached (the one it last told of,
    where the caller knows none) and its last lines.
    """
    assert status in STATUSES, status
    assert status != "done"
    wanted = spec(folder)
    step = progress(folder).get("step") if step is None else step
    figures = wanted.get("figures") or {}
    failure = {"message": message, "step": step if isinstance(step, int) else None, "tail": tail(folder)}
    content = {
        "schema": SCHEMA, "id": folder.name, "status": status, "seed": wanted["config"].get("seed"),
        "failure": failure, "config": wanted["config"], "data": figures.get("data") or {}, "environment": {},
        "budget": {key: value for key, value in figures.items() if key != "data"}, "metrics": {},
        "memory": {}, "speed": {}, "kernels": {},
        "head_scores": {}, "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "seconds": round(time.time() - started, 3),
    }  # fmt: skip
    write_json(folder / "run.json", content)


def refuse_unwritable(root: Path) -> None:
    """A store that cannot be written to is found out before anything is trained."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise Refused(
            f"paths.runs={root} cannot be written ({error.strerror}): choose another folder"
        ) from error
