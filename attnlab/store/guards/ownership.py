"""Ownership marks of a store and its runs, and removal of run files.

A store folder holds `.attnlab`, written with its first run. A run folder is named by the digest of the
identity stored in its spec.json, which no other folder has by chance. Only folders with both marks are ever
removed.
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

from attnlab.errors import InvalidConfig
from attnlab.store import remote, run_directories
from attnlab.store.atomic_files import read_json_object, write_json
from attnlab.store.file_names import (
    CHECKPOINT_NAMES,
    MARK_FILE,
    PREREGISTRATION_LOG,
    REFERENCES_FOLDER,
    RUN_ID_PATTERN,
    STORE_KIND,
    TRUNK_CHECKPOINT,
    WORK_FOLDER,
)
from attnlab.store.guards.digests import RUN_FILES
from attnlab.store.lease import hold_lease, is_held_on_other_host
from attnlab.store.run_schema import RunConfig
from attnlab.store.safe_paths import resolve_below

LOCK_FILE = ".attnlab.lock"
REMOVAL_FOLDER = ".removing"  # holds runs while they are removed
# Folders that a sweep creates in its store.
SWEEP_FOLDERS = ("timing", "wandb", "mlflow", "slurm", "ray", REFERENCES_FOLDER, WORK_FOLDER)

# Files that a run writes into its folder.
RUN_FILE_NAMES = (
    "run.json", run_directories.PREVIOUS_RESULT_FILE, run_directories.EDITED_RESULT_FILE,
    *CHECKPOINT_NAMES, TRUNK_CHECKPOINT, *RUN_FILES, "progress.json", "log.txt", "spec.json", "owner.json",
    "lock", "loggers.json", "node.json",
)  # fmt: skip
# Temporary files of `replace_atomically`.
_TEMPORARY_PATTERN = re.compile(rf"\.({'|'.join(map(re.escape, RUN_FILE_NAMES))})\.[a-z0-9_]{{8}}(\.[a-z]+)?")
_LOGGER_FILES = {  # folders of other loggers -> their files
    "csv": re.compile(r"metrics\.csv|hparams\.yaml"),
    "tensorboard": re.compile(r"events\.out\.tfevents\..*|hparams\.yaml"),
    "mlflow": re.compile("run_id"),
}
_WANDB_PATTERN = re.compile(r"(offline-)?run-.*|latest-run|debug.*\.log")  # files of W&B in `wandb`


def mark_store(root: Path) -> None:
    """Mark a folder as a store, and create it if missing."""
    if is_store(root):
        return
    root.mkdir(parents=True, exist_ok=True)
    with lock_store(root):
        if not is_store(root):
            content = {"what": STORE_KIND, "id": uuid.uuid4().hex, "made": get_timestamp()}
            write_json(root / MARK_FILE, content)


def get_timestamp() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_store(root: Path) -> bool:
    mark = root / MARK_FILE
    return mark.is_file() and read_json_object(mark).get("what") == STORE_KIND


@contextmanager
def lock_store(root: Path) -> Iterator[None]:
    """Lock the whole store, for commands that add references to runs, preregister, join or remove runs.

    For a mirror, the files that hosts share are up to date within, and uploaded at the end.
    """
    with FileLock(root / LOCK_FILE):
        if remote.find_mirror(root) is None:
            yield
            return
        (root / WORK_FOLDER).mkdir(exist_ok=True)
        with hold_lease(root / WORK_FOLDER):
            yield


def require_store(root: Path) -> None:
    """Check that a folder is a store.

    Raises:
        InvalidConfig: The folder is missing or unmarked.
    """
    if not root.is_dir():
        raise InvalidConfig(
            f"paths.runs={root}: folder not found: give the folder of the run directories, as in "
            "paths.runs=runs"
        )
    if not is_store(root):
        raise InvalidConfig(
            f"paths.runs={root} is not a folder of attnlab runs, because it has no {MARK_FILE}: "
            "give the folder of the run directories, as in paths.runs=runs (every run of this "
            "version creates the file)"
        )


def list_foreign_names(root: Path) -> list[str]:
    """Return the names in a store that belong to neither a run nor a sweep."""
    known = (MARK_FILE, LOCK_FILE, PREREGISTRATION_LOG, REMOVAL_FOLDER, *SWEEP_FOLDERS)
    return sorted(
        path.name for path in root.iterdir() if path.name not in known and load_owned_run(path) is None
    )


def load_owned_run(folder: Path) -> RunConfig | None:
    """Load the run config of a folder that carries a run's marks; None for links and other folders."""
    file = folder / "spec.json"
    if (
        folder.is_symlink()
        or RUN_ID_PATTERN.fullmatch(folder.name) is None
        or file.is_symlink()
        or not file.is_file()
    ):
        return None
    with suppress(OSError, ValueError):  # InvalidConfig is a ValueError
        return run_directories.load_run_config(folder)
    return None


def require_file_paths(folder: Path) -> None:
    """Check before training that no folder and no link out of it replaces a file that a run writes."""
    resolve_below(folder.parent, folder.name)
    for name in RUN_FILE_NAMES:
        if (folder / name).is_symlink():
            resolve_below(folder, name)
        if (folder / name).is_dir():
            raise InvalidConfig(
                f"{folder / name}: a folder in place of a file of the run: move it away, and run the command "
                "again"
            )


def list_written_paths(folder: Path) -> list[Path]:
    """Return the files that a run wrote into its folder, and W&B's folders; links are not followed."""
    paths = [
        path
        for path in folder.iterdir()
        if (path.name in RUN_FILE_NAMES or _TEMPORARY_PATTERN.fullmatch(path.name))
        and path.is_file()
        and not path.is_symlink()
    ]
    for name, pattern in _LOGGER_FILES.items():
        if not (folder / name).is_symlink():
            logger_paths = [
                Path(subfolder, file) for subfolder, _, names in os.walk(folder / name) for file in names
            ]
            paths += [path for path in logger_paths if pattern.fullmatch(path.name)]
    if not (folder / "wandb").is_symlink():
        paths += [path for path in (folder / "wandb").glob("*") if _WANDB_PATTERN.fullmatch(path.name)]
    return paths


def remove_run(folder: Path) -> list[str]:
    """Remove the files a run wrote, and its folder if then empty; return the names that are left.

    The run is moved aside first, so that it is complete or gone whenever this is interrupted.
    `list_interrupted_removals` finds the rest, which this function removes too.

    Raises:
        Timeout: Another process holds the run (an OSError); nothing was removed.
    """
    if folder.parent.name == REMOVAL_FOLDER:
        return _finish_removal(folder)
    with FileLock(folder / "lock", timeout=0):
        if is_held_on_other_host(folder):
            raise Timeout(str(folder / "lock"))
        removal_folder = resolve_below(folder.parent, f"{REMOVAL_FOLDER}/{folder.name}")
        removal_folder.parent.mkdir(exist_ok=True)
        folder.rename(removal_folder)
        return _finish_removal(removal_folder)


def list_interrupted_removals(root: Path) -> list[Path]:
    """Return the folders left by interrupted removals."""
    folder = resolve_below(root, REMOVAL_FOLDER)
    return [path for path in folder.glob("*") if RUN_ID_PATTERN.fullmatch(path.name)]


def _finish_removal(removal_folder: Path) -> list[str]:
    for path in list_written_paths(removal_folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        for parent in path.parents[: len(path.relative_to(removal_folder).parts) - 1]:
            with suppress(OSError):  # it holds other files
                parent.rmdir()
    remaining = sorted(path.name for path in removal_folder.iterdir())
    if remaining:
        removal_folder.rename(removal_folder.parents[1] / removal_folder.name)
    else:
        removal_folder.rmdir()
    with suppress(OSError):  # other removals are in progress
        removal_folder.parent.rmdir()
    return remaining
