"""What is this store's own: the mark in its folder, the marks of a run, and the files that it writes.

A store's folder holds `.attnlab`, written with its first run. A run's folder is named by the digest of the
identity that its spec.json holds, which no folder has by chance. Only what has both marks is ever removed.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from attnlab.errors import Refused
from attnlab.store import fingerprint, runs
from attnlab.store.files import CHECKPOINTS, read_json, write_json
from attnlab.store.guards.digests import FILES
from attnlab.store.lease import elsewhere
from attnlab.store.schema import RunSpec

MARK = ".attnlab"
LOCK = ".attnlab.lock"
WHAT = "a store of attnlab's runs"
REMOVING = ".removing"  # a folder for runs that are being removed
USERS = "users"  # who uses the runs: attnlab/store/guards/users.py
LOG = "declarations.jsonl"  # what was declared: attnlab/store/guards/declared.py
BESIDE_RUNS = ("timing", "wandb", "mlflow", "slurm", USERS)  # folders that a sweep makes in its store
ID = re.compile(r"[0-9a-f]{16}")

# What a run writes into its folder.
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
    if not is_marked(root):
        raise Refused(
            f"paths.runs={root} is no store of attnlab's: it has no {MARK}; name the store, as in "
            "paths.runs=runs (any run of this version marks its store)"
        )


def strangers(root: Path) -> list[str]:
    """The names in a store of what is neither a run nor made by a sweep."""
    known = (MARK, LOCK, LOG, REMOVING, *BESIDE_RUNS)
    return sorted(path.name for path in root.iterdir() if path.name not in known and own(path) is None)


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


def written(folder: Path) -> list[Path]:
    """What a run wrote into its folder: files, and folders of W&B's with all that is in them. No link is
    followed.
    """
    found = [
        path
        for path in folder.iterdir()
        if (path.name in WRITTEN or _HALF.fullmatch(path.name)) and path.is_file() and not path.is_symlink()
    ]
    for name, files in _LOGS.items():
        if not (folder / name).is_symlink():
            inner = [Path(at, file) for at, _, names in os.walk(folder / name) for file in names]
            found += [path for path in inner if files.fullmatch(path.name)]
    if not (folder / "wandb").is_symlink():
        found += [path for path in (folder / "wandb").glob("*") if _WANDB.fullmatch(path.name)]
    return found


def remove(folder: Path) -> list[str]:
    """Removes what a run wrote, and its folder where it is then empty; returns the names that are left.

    The run is moved aside first, so that it is whole or gone whenever this is interrupted.
    `list_interrupted_removals` finds the rest, which this function removes too. Raises filelock's Timeout (an
    OSError), nothing removed, where a process holds the run.
    """
    if folder.parent.name == REMOVING:
        return _finish(folder)
    with FileLock(folder / "lock", timeout=0):
        if elsewhere(folder):
            raise Timeout(str(folder / "lock"))
        aside = folder.parent / REMOVING / folder.name
        aside.parent.mkdir(exist_ok=True)
        folder.rename(aside)
        return _finish(aside)


def list_interrupted_removals(root: Path) -> list[Path]:
    """What interrupted removals have left of runs."""
    folder = root / REMOVING
    return [] if folder.is_symlink() else [path for path in folder.glob("*") if ID.fullmatch(path.name)]


def _finish(aside: Path) -> list[str]:
    for path in written(aside):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        for parent in path.parents[: len(path.relative_to(aside).parts) - 1]:
            with suppress(OSError):  # something else lies in it
                parent.rmdir()
    left = sorted(path.name for path in aside.iterdir())
    if left:
        aside.rename(aside.parents[1] / aside.name)
    else:
        aside.rmdir()
    with suppress(OSError):  # others are being removed
        aside.parent.rmdir()
    return left
