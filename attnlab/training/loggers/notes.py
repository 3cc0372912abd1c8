"""Notes about the loggers of a store, read without importing any of them: what each has of a run, why a
command went offline, and which W&B folders await `wandb sync`.
"""

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from attnlab.config import wandb_mode
from attnlab.store.files import read_json, replacing

NOTE = "loggers.json"  # in a run's folder
COMMAND = "ATTNLAB_COMMAND"  # the environment variable that names one command to all its processes
WANDB = "wandb"
WANDB_KEYS = ("mode", "project", "entity", "report", "workspace", "patience")  # of the group `logger`
# What `wandb.init` imports, half a second of a run's CPU time where its process has not done so before.
WANDB_IMPORTS = ("wandb", "wandb.apis.public", "requests", "yaml")
ON_DISK = "the run's records are on disk"  # ends each line about a logger that failed
_LOCK = threading.Lock()


def read(folder: Path, name: str) -> dict[str, Any]:
    """The note of a logger about a run: the last step of each name (`last`), `tags`, `done`, and W&B folders
    whose upload did not finish (`upload`).
    """
    content = read_json(folder / NOTE)
    found = content.get(name) if isinstance(content, dict) else None
    return dict(found) if isinstance(found, dict) else {}


def update(folder: Path, name: str, **values: Any) -> None:
    """Adds to the note of a logger."""
    with _LOCK:
        content = read_json(folder / NOTE)
        whole = dict(content) if isinstance(content, dict) else {}
        whole[name] = {**whole.get(name, {}), **values}
        with replacing(folder / NOTE, sync=False) as temporary:
            temporary.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def list_loggers(group: Mapping[str, Any]) -> list[str]:
    """The loggers that the group `logger` asks for, by name."""
    own = [name for name, part in group.items() if isinstance(part, Mapping) and "_target_" in part]
    return own + ([WANDB] if wandb_mode(group.get("mode")) != "disabled" else [])


def lacks(folder: Path, name: str, tag: str | None) -> bool:
    """Whether a logger lacks a finished run, or W&B its tag."""
    note = read(folder, name)
    if not note and name == WANDB and any(wandb_folder(folder).glob(f"*run-*-{folder.name}")):
        return False  # an earlier version logged it
    return not note.get("done") or (name == WANDB and bool(tag) and tag not in note.get("tags", ()))


def offline_reason(root: Path) -> str:
    """Why this command no longer contacts the W&B server; empty while it does."""
    path = _offline_file(root)
    return path.read_text(encoding="utf-8") if path and path.exists() else ""


def go_offline(root: Path, why: str) -> None:
    """Later runs of this command start offline."""
    if path := _offline_file(root):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(why, encoding="utf-8")


def end_command(root: Path) -> None:
    """The next command contacts the server again."""
    if path := _offline_file(root):
        path.unlink(missing_ok=True)


def _offline_file(root: Path) -> Path | None:
    name = os.environ.get(COMMAND)
    return root / WANDB / f"{name}.offline" if name else None


def wandb_folder(folder: Path) -> Path:
    """Where W&B puts the files of a run: below the run's folder, or below WANDB_DIR."""
    return Path(os.environ.get("WANDB_DIR") or folder) / "wandb"


def pending(folder: Path) -> list[Path]:
    """The W&B folders of a run, or of the reports (`runs/wandb`), that await `wandb sync`."""
    content = read_json(folder / NOTE)
    notes = content.values() if isinstance(content, dict) else ()
    late = [Path(path) for note in notes for path in note.get("upload", ())]
    name = folder.name if folder.name != WANDB else "*"
    found = [*wandb_folder(folder).glob(f"offline-run-*-{name}"), *late]
    return [path for path in found if path.is_dir() and not any(path.glob("*.synced"))]


def sync_command(root: Path, folders: Iterable[Path]) -> str:
    """The shell command that uploads such folders, from the working directory."""
    late = [quote(str(path)) for path in folders if not path.name.startswith("offline-")]
    there = os.environ.get("WANDB_DIR")
    offline = f"{quote(there)}/wandb/offline-run-*" if there else f"{quote(str(root))}/*/wandb/offline-run-*"
    some = any(path.name.startswith("offline-") for path in folders)
    words = ["wandb sync", *["--include-online"][: len(late)], *[offline][:some], *late]
    return " ".join(words)


def closing_line(root: Path, names: Iterable[str]) -> str:
    """The closing line of a command about W&B runs that are on disk only; empty where there are none."""
    folders = {name: pending(root / name) for name in {*names, WANDB}}
    waiting = [path for found in folders.values() for path in found]
    if not waiting:
        return ""
    number = sum(map(bool, folders.values()))
    why = offline_reason(root)
    runs = f"{number} run{'s'[: number != 1]}"
    because = f" ({why})" if why else ""
    return f"W&B: {runs} on disk only{because}; upload with: {sync_command(root, waiting)}"
