"""The store: one folder per run, named by its id. A run is done when its record validates, not before."""

import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlab.errors import Refused
from attnlab.store.files import read_json, write_json
from attnlab.store.guards import digests
from attnlab.store.schema import Failure, RunRecord, RunSpec, Status, reading, refuse_other_version

BEFORE = "before.json"  # the record of a finished run while it is trained again
EDITED = "edited.json"  # what somebody made of a record, kept beside the one that was made again


def record(folder: Path) -> RunRecord | None:
    """The validated record of a run, done or failed; None where there is none that can be trusted."""
    answer = _read(folder)
    return answer if isinstance(answer, RunRecord) else None


def fault(folder: Path) -> str:
    """Why a run's record cannot be trusted, in a line."""
    answer = _read(folder)
    return "" if isinstance(answer, RunRecord) else answer


def edited(folder: Path) -> tuple[RunRecord | None, list[str]]:
    """A record that was changed since it was written, and its changed fields; None and [] for any other."""
    content = read_json(folder / "run.json")
    changed = digests.edited(content) if isinstance(_read(folder), str) and isinstance(content, dict) else []
    try:
        return (RunRecord.model_validate(content), changed) if changed else (None, [])
    except ValidationError:
        return None, []


def _read(folder: Path) -> RunRecord | str:
    path = folder / "run.json"
    content = read_json(path)
    if not isinstance(content, dict):
        return f"{path} is missing or cut short"
    refuse_other_version(content, path)
    try:
        run_record = RunRecord.model_validate(content)
    except ValidationError as error:
        return str(reading(error, str(path)))
    if run_record.id != folder.name:
        return f"{path} is the record of run {run_record.id}"
    if changed := digests.edited(content):
        return f"{path} was edited after the run wrote it: {', '.join(changed)}"
    return run_record


def is_done(folder: Path) -> bool:
    run_record = record(folder)
    return run_record is not None and run_record.done


def spec(folder: Path) -> RunSpec:
    """What a run is, as written before it was launched."""
    path = folder / "spec.json"
    content = read_json(path)
    if not isinstance(content, dict):
        raise Refused(f"{path} is missing or cut short: run the experiment's command again")
    refuse_other_version(content, path)
    try:
        return RunSpec.model_validate(content)
    except ValidationError as error:
        raise reading(error, str(path)) from error


def write_spec(root: Path, run: RunSpec) -> None:
    """What a run is, in its folder of the store."""
    folder = root / run.id
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "spec.json", run.plain())


def set_aside(folder: Path) -> None:
    """A finished run that is to be trained again: its record waits, and comes back where that fails."""
    if (folder / "run.json").exists():
        (folder / "run.json").replace(folder / BEFORE)


def put_back(folder: Path) -> bool:
    """Ends what `set_aside` began: the earlier record returns, True, unless there is a new one."""
    before = folder / BEFORE
    if record(folder) is not None or not before.exists():
        before.unlink(missing_ok=True)
        return False
    before.replace(folder / "run.json")
    return True


def write_record(folder: Path, run_record: RunRecord) -> None:
    """What a run left, sealed; with that it has ended."""
    content = json.loads(json.dumps(run_record.plain(), allow_nan=False))  # as whoever reads it will have it
    write_json(folder / "run.json", {**content, "seal": digests.seal(content)})


def split(folder: Path) -> int:
    """In how many parts a run trains each batch; 1 unless memory has asked for more."""
    return int(((read_json(folder / "spec.json") or {}).get("use") or {}).get("split", 1))


def progress(folder: Path) -> dict[str, Any]:
    """Where a run stands, as `training.callbacks.Heartbeat` writes it: step, max_steps, loss, time,
    timed_steps, timed_seconds; empty before its first step.
    """
    content = read_json(folder / "progress.json")
    return content if isinstance(content, dict) else {}


def tail(folder: Path, lines: int = 20) -> list[str]:
    """The last lines of a worker's output."""
    try:
        with (folder / "log.txt").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def write_failure(
    folder: Path, status: Status, message: str, started: float, step: int | None = None
) -> None:
    """Record a run that did not end well: failure is data, with the step it reached (the one it last told of,
    where the caller knows none) and its last lines. One that was finished before stays finished.
    """
    assert status != "done"
    if put_back(folder):
        return
    wanted = spec(folder)
    reached = progress(folder).get("step") if step is None else step
    failure = Failure(
        message=message, step=reached if isinstance(reached, int) else None, tail=tuple(tail(folder))
    )
    ended = RunRecord(
        id=folder.name,
        status=status,
        seed=wanted.config.get("seed"),
        failure=failure,
        config=wanted.config,
        estimate=wanted.estimate,
        started=datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - started, 3),
    )
    write_record(folder, ended)


def refuse_unwritable(root: Path, key: str = "paths.runs") -> None:
    """A folder that cannot be written to is found out before anything is trained."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise Refused(f"{key}={root} cannot be written ({error.strerror}): choose another folder") from error
