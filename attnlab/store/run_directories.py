"""Run directories: one folder per run, named by its id. A run is finished once its result validates."""

import json
import os
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlab.errors import InvalidConfig, describe_path_error
from attnlab.store import fingerprint
from attnlab.store.atomic_files import read_json, read_json_object, write_json
from attnlab.store.guards import digests
from attnlab.store.run_schema import (
    Failure,
    RunConfig,
    RunResult,
    Status,
    Use,
    convert_validation_error,
    require_current_version,
)

PREVIOUS_RESULT_FILE = "before.json"  # result of a finished run while it is retrained
EDITED_RESULT_FILE = "edited.json"  # manually edited result, saved when the result is repaired
_REPEAT_HINT = "run the experiment's command again"


def load_run_result(folder: Path) -> RunResult | None:
    """Load the validated result of a finished or failed run; None if it is missing or untrusted."""
    result = _read_run_result(folder)
    return result if isinstance(result, RunResult) else None


def describe_result_fault(folder: Path) -> str:
    """Explain in one line why a run's result cannot be trusted; empty if it can."""
    result = _read_run_result(folder)
    return "" if isinstance(result, RunResult) else result


def load_edited_result(folder: Path) -> tuple[RunResult | None, list[str]]:
    """Load a result that was edited after the run wrote it, and its edited fields; else (None, [])."""
    content = read_json(folder / "run.json")
    edited_fields = (
        digests.find_edited_fields(content)
        if isinstance(_read_run_result(folder), str) and isinstance(content, dict)
        else []
    )
    try:
        return (RunResult.model_validate(content), edited_fields) if edited_fields else (None, [])
    except ValidationError:
        return None, []


def _read_document(path: Path) -> Any | None:
    try:
        return read_json(path)
    except OSError as error:
        if (message := describe_path_error(error)) is None:
            raise
        raise InvalidConfig(message) from error


def _read_run_result(folder: Path) -> RunResult | str:
    path = folder / "run.json"
    content = _read_document(path)
    if not isinstance(content, dict):
        return f"{path} is missing or truncated"
    require_current_version(content, path)
    try:
        run_result = RunResult.model_validate(content)
    except ValidationError as error:
        return str(convert_validation_error(error, str(path)))
    if run_result.id != folder.name:
        return f"{path} is the result of run {run_result.id}"
    if edited_fields := digests.find_edited_fields(content):
        return f"{path} was edited after the run wrote it: {', '.join(edited_fields)}"
    return run_result


def is_done(folder: Path) -> bool:
    run_result = load_run_result(folder)
    return run_result is not None and run_result.is_done


def load_run_config(folder: Path) -> RunConfig:
    """Load the config of a run, as written before launch.

    Raises:
        InvalidConfig: spec.json is missing, not a file, truncated, invalid, of another schema version, of
            another run, or edited.
    """
    path = folder / "spec.json"
    content = _read_document(path)
    if not isinstance(content, dict):
        raise InvalidConfig(f"{path} is missing or truncated: {_REPEAT_HINT}")
    require_current_version(content, path)
    try:
        run_config = RunConfig.model_validate(content)
        fault = _describe_config_fault(run_config, Path(os.path.abspath(folder)).name)
    except ValidationError as error:
        raise convert_validation_error(error, str(path)) from error
    except InvalidConfig as error:  # a value without a digest, such as NaN
        raise InvalidConfig(f"{path}: {error}") from error
    if fault:
        raise InvalidConfig(f"{path} {fault}")
    return run_config


def _describe_config_fault(run_config: RunConfig, folder_name: str) -> str:
    """Explain why a config is not the one that its run was planned with; empty if it is.

    The folder's name is the digest of the identity, which contains the config. Keys outside the identity,
    such as paths and loggers, may differ.
    """
    if run_config.id != folder_name:
        return f"is of run {run_config.id}: give the folder that name"
    if run_config.id != fingerprint.compute_digest(run_config.identity):
        return f"was edited: its `identity` is not that of run {run_config.id}: {_REPEAT_HINT}"
    configs = (fingerprint.strip_excluded_keys(run_config.config), run_config.identity.get("config"))
    if len({fingerprint.to_canonical_json(config) for config in configs}) == 1:
        return ""
    stored, planned = (
        {key: fingerprint.to_canonical_json(value) for key, value in fingerprint.flatten_config(config)}
        for config in configs
    )
    key = next((key for key in {**planned, **stored} if stored.get(key) != planned.get(key)), "a key")
    return (
        f"was edited: {key} is {stored.get(key, 'missing')}, its run was planned with "
        f"{planned.get(key, 'no such key')}: {_REPEAT_HINT}"
    )


def store_run_config(root: Path, run_config: RunConfig) -> None:
    """Write spec.json unless it is this config already: a worker may read it at this moment."""
    with suppress(InvalidConfig):
        if load_run_config(root / run_config.id) == run_config:
            return
    write_run_config(root, run_config)


def write_run_config(root: Path, run_config: RunConfig) -> None:
    """Write spec.json into the run's folder, which is created if missing."""
    folder = root / run_config.id
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "spec.json", run_config.to_dict())


def restore_run_config(root: Path, planned: RunConfig) -> None:
    """Write the planned config in place of an edited one, whose provenance stays if it is valid."""
    try:
        use = Use.model_validate(read_json_object(root / planned.id / "spec.json").get("use"))
    except ValidationError:
        use = planned.use
    write_run_config(root, planned.with_changes(use=use))


def set_aside_result(folder: Path) -> None:
    """Rename the result of a finished run before retraining; `restore_result` undoes it on failure."""
    if (folder / "run.json").exists():
        (folder / "run.json").replace(folder / PREVIOUS_RESULT_FILE)


def restore_result(folder: Path) -> bool:
    """Put back the result that `set_aside_result` renamed, unless there is a new one; return success."""
    previous_result = folder / PREVIOUS_RESULT_FILE
    if load_run_result(folder) is not None or not previous_result.exists():
        previous_result.unlink(missing_ok=True)
        return False
    previous_result.replace(folder / "run.json")
    return True


def write_run_result(folder: Path, run_result: RunResult) -> None:
    """Write the sealed run.json, which ends the run."""
    # A JSON round trip, so that the seal covers the values that a reader will parse.
    content = json.loads(json.dumps(run_result.to_dict(), allow_nan=False))
    write_json(folder / "run.json", {**content, "seal": digests.compute_seal(content)})


def read_batch_split(folder: Path) -> int:
    """Return the number of micro-batches per batch; 1 unless the memory limit required more."""
    use = read_json_object(folder / "spec.json").get("use")
    return int(use.get("split", 1)) if isinstance(use, dict) else 1


def read_progress(folder: Path) -> dict[str, Any]:
    """Return the contents of progress.json, as written by `training.callbacks.ProgressWriter`.

    The keys are step, max_steps, loss, time, timed_steps and timed_seconds; empty before the first step.
    """
    return read_json_object(folder / "progress.json")


def read_log_tail(folder: Path, lines: int = 20) -> list[str]:
    """Return the last lines of a worker's output."""
    try:
        with (folder / "log.txt").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []


def write_failure(
    folder: Path, status: Status, message: str, started: float, step: int | None = None
) -> None:
    """Write the result of a failed run, with the step it reached and its last output lines.

    A run that was finished before keeps its earlier result.

    Args:
        started: Start time, in seconds since the epoch.
        step: Last step; read from progress.json if the caller does not know it.
    """
    assert status != "done"
    if restore_result(folder):
        return
    run_config = load_run_config(folder)
    last_step = read_progress(folder).get("step") if step is None else step
    failure = Failure(
        message=message,
        step=last_step if isinstance(last_step, int) else None,
        tail=tuple(read_log_tail(folder)),
    )
    run_result = RunResult(
        id=folder.name,
        status=status,
        seed=run_config.config.get("seed"),
        failure=failure,
        config=run_config.config,
        estimate=run_config.estimate,
        split=run_config.use.split,
        started=datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - started, 3),
    )
    write_run_result(folder, run_result)


def require_writable_folder(root: Path, key: str = "paths.runs") -> None:
    """Check before training that a folder can be written to; create it if missing."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise InvalidConfig(
            f"{key}={root} is not writable ({error.strerror}): choose another folder"
        ) from error
