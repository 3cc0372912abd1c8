"""What is this store's own: the mark in its folder, the marks of a run, and the files that it writes.

A store's folder holds `.attnlab`, written with its first run. A run's folder is named by the digest of the
identity that its spec.json holds, which no folder has by chance. Only what has both marks is ever removed. A
store that an older version made has no `.attnlab`: it passes where nothing else lies in it than runs do.
"""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from attnlab.errors import Refused
from attnlab.store import fingerprint, runs
from attnlab.store.files import CHECKPOINTS, read_json, write_json
from attnlab.store.guards.digests import FILES
from attnlab.store.lease import owning
from attnlab.store.schema import RunSpec

MARK, LOCK, WHAT = ".attnlab", ".attnlab.lock", "a store of attnlab's runs"
USERS = "users"  # who uses the runs: attnlab/store/guards/users.py
LOG = "declarations.jsonl"  # what was declared: attnlab/store/guards/declared.py
BESIDE_RUNS = ("timing", "wandb", "mlflow", "slurm", USERS)  # folders that a sweep makes in its store
ID = re.compile(r"[0-9a-f]{16}")

# What a run writes into its folder, in the order in which it is removed: one that was cut short is first no
# longer done, and is known for a run to its end.
WRITTEN = (
    "run.json", runs.BEFORE, runs.EDITED, *CHECKPOINTS, *FILES, "progress.json", "log.txt", "spec.json",
    "owner.json", "lock", "loggers.json",
)  # fmt: skip
_HALF = re.compile(rf"\.({'|'.join(map(re.escape, WRITTEN))})\.[a-z0-9_]{{8}}(\.[a-z]+)?")  # `replacing`'s
_LOGS = {  # folders of other loggers in a run's: the files that these write
    "csv": re.compile(r"metrics\.csv|hparams\.yaml"),
    "tensorboard": re.compile(r"events\.out\.tfevents\..*|hparams\.yaml"),
    "mlflow": re.compile("run_id"),
}
_WANDB = re.compile(r"(offline-)?run-.*|latest-run|debug.*\.log")  # W&B's, in `wandb`


def mark(root: Path) -> None:
    """Marks a folder as a store, unless it is; one that is missing is made."""
    if is_marked(root):
        return
    root.mkdir(parents=True, exist_ok=True)
    with guarding(root):
        if not is_marked(root):
            made = datetime.now(UTC).isoformat(timespec="seconds")
            write_json(root / MARK, {"what": WHAT, "id": uuid.uuid4().hex, "made": made})


def is_marked(root: Path) -> bool:
    content = read_json(root / MARK) if (root / MARK).is_file() else None
    return isinstance(content, dict) and content.get("what") == WHAT


@contextmanager
def guarding(root: Path) -> Iterator[None]:
    """Holds the store as a whole: for who says that it uses runs, and for who removes some."""
    with FileLock(root / LOCK):
        yield


def refuse_foreign(root: Path) -> None:
    """Refused where a folder is no store."""
    if not root.is_dir():
        raise Refused(f"paths.runs={root}: there is no such folder; name the store, as in paths.runs=runs")
    if is_marked(root):
        return
    others = [path.name for path in sorted(root.iterdir()) if not _is_a_stores(path)]
    if others:
        raise Refused(
            f"paths.runs={root} is no store of attnlab's: it has no {MARK}, and holds {others[0]}; name the "
            "store, as in paths.runs=runs (any run of this version marks its store)"
        )


def _is_a_stores(path: Path) -> bool:
    if path.is_symlink():
        return False
    return path.name in (LOCK, LOG) or (
        path.is_dir() and (path.name in BESIDE_RUNS or ID.fullmatch(path.name) is not None)
    )


def own(folder: Path) -> RunSpec | None:
    """What a run is, where its folder carries a run's marks; None where it does not, or is a link."""
    file = folder / "spec.json"
    if folder.is_symlink() or ID.fullmatch(folder.name) is None or file.is_symlink() or not file.is_file():
        return None
    with suppress(OSError, ValueError, RecursionError):  # Refused is a ValueError
        spec = runs.spec(folder)
        if spec.id == folder.name == fingerprint.digest(spec.identity):
            return spec
    return None


def remove(folder: Path) -> list[str]:
    """Removes what a run wrote, and its folder where it is then empty; returns the names that are left.

    Raises filelock's Timeout, nothing removed, where a process holds the run. A heartbeat that another host
    left behind is watched first, for as long as who takes over its run would watch it.
    """
    with owning(folder, patience=0):
        if own(folder) is None:
            return sorted(path.name for path in folder.iterdir())
        half = sorted(path.name for path in folder.iterdir() if _HALF.fullmatch(path.name))
        _remove_wandb(folder / "wandb")
        for name, files in _LOGS.items():
            _remove_log(folder / name, files)
        for name in (*half, *WRITTEN):
            path = folder / name
            if path.is_file() and not path.is_symlink():
                path.unlink()
        left = sorted(path.name for path in folder.iterdir())
        if not left:
            folder.rmdir()
        return left


def _remove_wandb(folder: Path) -> None:
    """W&B's own files in a run's folder."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        if _WANDB.fullmatch(path.name):
            _remove_tree(path)
    with suppress(OSError):  # something else lies in it
        folder.rmdir()


def _remove_log(folder: Path, files: re.Pattern[str]) -> None:
    """Files of these names in a folder and below it, and what is empty then; no link is followed."""
    if folder.is_symlink():
        return
    for at, _, names in os.walk(folder, topdown=False):
        for name in names:
            if files.fullmatch(name):
                Path(at, name).unlink()
        with suppress(OSError):  # something else lies in it
            Path(at).rmdir()


def _remove_tree(path: Path) -> None:
    """A file, a link (never what it leads to), or a folder with all that is in it."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    for inner in path.iterdir():
        _remove_tree(inner)
    path.rmdir()
