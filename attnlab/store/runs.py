"""The store: one folder per run, named by its id. A run is done when its record validates, not before."""

import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlab.errors import Refused
from attnlab.store.files import read_json, write_json
from attnlab.store.schema import Failure, RunRecord, RunSpec, Status, reading, refuse_other_version


def record(folder: Path) -> RunRecord | None:
    """The validated record of a run, done or failed; None where there is none that can be trusted."""
    answer = _read(folder)
    return answer if isinstance(answer, RunRecord) else None


def fault(folder: Path) -> str:
    """Why a run's record cannot be trusted, in a line."""
    answer = _read(folder)
    return "" if isinstance(answer, RunRecord) else answer


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
    return run_record if run_record.id == folder.name else f"{path} is the record of run {run_record.id}"


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


def write_record(folder: Path, run_record: RunRecord) -> None:
    """What a run left; with that it has ended."""
    write_json(folder / "run.json", run_record.plain())


def split(folder: Path) -> int:
    """In how many parts a run trains each batch; 1 unless memory has asked for more."""
    return int(((read_json(folder / "spec.json") or {}).get("use") or {}).get("split", 1))


def progress(folder: Path) -> dict[str, Any]:
    """Where a run stands: step, max_steps, loss, time; empty before its first step."""
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
    where the caller knows none) and its last lines.
    """
    assert status != "done"
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
