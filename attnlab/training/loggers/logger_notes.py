"""Notes about the loggers of a store, readable without importing a logger.

They hold the steps that each logger has of a run, the reason why a command went offline, and the W&B folders
that await `wandb sync`.
"""

import json
import os
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from attnlab.config import resolve_wandb_mode
from attnlab.store.atomic_files import read_json_object, replace_atomically
from attnlab.store.config_groups import LoggerGroup

NOTE_FILE = "loggers.json"  # in a run's folder
COMMAND_VARIABLE = "ATTNLAB_COMMAND"  # identifies one command in all its processes
WANDB = "wandb"
DEFAULT_PROJECT = "attnlab"  # W&B project if none is configured
TOKENS_METRIC = "tokens"  # tokens seen in training, the x-axis
WANDB_KEYS = tuple(LoggerGroup.model_fields)
# Imports of `wandb.init`: half a second of CPU time for each process that lacks them.
WANDB_IMPORTS = ("wandb", "wandb.apis.public", "requests", "yaml")
ON_DISK_MESSAGE = "the run's results are on disk"  # ends each line about a failed logger
_LOCK = threading.Lock()


def read_note(folder: Path, logger_name: str) -> dict[str, Any]:
    """Return the note of a logger about a run.

    Its keys are `last` (last step of each name), `tags`, `done`, and `upload` (W&B folders with an unfinished
    upload).
    """
    return _read_notes(folder).get(logger_name, {})


def update_note(folder: Path, logger_name: str, **values: Any) -> None:
    """Update keys in the note of a logger."""
    with _LOCK:
        notes = _read_notes(folder)
        notes[logger_name] = {**notes.get(logger_name, {}), **values}
        with replace_atomically(folder / NOTE_FILE, sync=False) as temporary:
            temporary.write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")


def _read_notes(folder: Path) -> dict[str, dict[str, Any]]:
    content = read_json_object(folder / NOTE_FILE)
    return {name: note for name, note in content.items() if isinstance(note, dict)}


def list_loggers(group: Mapping[str, Any]) -> list[str]:
    """Return the names of the loggers that the validated group `logger` configures."""
    names = [name for name, logger_config in group.items() if isinstance(logger_config, Mapping)]
    return names + [WANDB] * (resolve_wandb_mode(group.get("mode")) != "disabled")


def is_run_missing(folder: Path, logger_name: str, tag: str | None) -> bool:
    """Whether a logger lacks a finished run, or W&B lacks its tag."""
    note = read_note(folder, logger_name)
    if logger_name != WANDB:
        return not note.get("done")
    if not note and any(get_wandb_folder(folder).glob(f"*run-*-{folder.name}")):
        return False  # logged by an earlier version
    return not note.get("done") or bool(tag and tag not in note.get("tags", ()))


def read_offline_reason(root: Path) -> str:
    """Return why this command no longer contacts the W&B server; empty while it does."""
    path = _get_offline_file(root)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def go_offline(root: Path, reason: str) -> None:
    """Start later runs of this command offline."""
    path = _get_offline_file(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(reason, encoding="utf-8")


def clear_offline(root: Path) -> None:
    """Let the next command contact the server again."""
    _get_offline_file(root).unlink(missing_ok=True)


def _get_offline_file(root: Path) -> Path:
    """Return the file with the reason; a process outside any command is a command of its own."""
    return root / WANDB / f"{os.environ.setdefault(COMMAND_VARIABLE, uuid.uuid4().hex[:12])}.offline"


def get_wandb_folder(folder: Path) -> Path:
    """Return the folder of a run's W&B files: below the run's folder, or below WANDB_DIR."""
    return Path(os.environ.get("WANDB_DIR") or folder) / "wandb"


def find_pending_uploads(folder: Path) -> list[Path]:
    """Return the W&B folders of a run, or of the reports (`runs/wandb`), that await `wandb sync`."""
    unfinished = [Path(path) for note in _read_notes(folder).values() for path in note.get("upload", ())]
    name = folder.name if folder.name != WANDB else "*"
    folders = [*get_wandb_folder(folder).glob(f"offline-run-*-{name}"), *unfinished]
    return [path for path in folders if path.is_dir() and not any(path.glob("*.synced"))]


def format_sync_command(root: Path, folders: Sequence[Path]) -> str:
    """Return the shell command that uploads the folders, run from the working directory."""
    online = [quote(str(path)) for path in folders if not path.name.startswith("offline-")]
    wandb_dir = os.environ.get("WANDB_DIR")
    offline = f"{quote(wandb_dir) if wandb_dir else f'{quote(str(root))}/*'}/wandb/offline-run-*"
    options = ["--include-online"] if online else []
    return " ".join(["wandb sync", *options, *[offline] * (len(folders) > len(online)), *online])


def format_pending_uploads(root: Path, names: Iterable[str]) -> str:
    """Return the closing line of a command about W&B runs that are only on disk; empty if none."""
    pending = [paths for name in {*names, WANDB} if (paths := find_pending_uploads(root / name))]
    if not pending:
        return ""
    reason = read_offline_reason(root)
    return (
        f"W&B: {len(pending)} run{'s' * (len(pending) > 1)} on disk only{reason and f' ({reason})'}; "
        f"upload with: {format_sync_command(root, [*chain(*pending)])}"
    )
