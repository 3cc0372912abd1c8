"""Cache of corpora in `paths.cache`, so that a start reads no text twice.

A file counts as unchanged if its path, size, modification time and change time are the same. Files changed in
the last two seconds are hashed every time: a clock may be too coarse to separate two writes.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from attnlab.data.task import compute_fingerprint
from attnlab.store.atomic_files import read_json, replace_atomically, write_json

VERSION = 3  # raise it when the same files give another text or other metadata
MIN_AGE_NS = 2 * 10**9  # minimum age at which another write has another timestamp


def load_or_compute(
    cache: str, kind: str, files: Sequence[Path], compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the result of `compute` for these files, cached until one of them changes.

    The result must be plain values. Errors are not cached.
    """
    file_states = _stat_files(files)
    path = (
        Path(cache)
        / "corpora"
        / f"{compute_fingerprint(version=VERSION, kind=kind, files=file_states)[:32]}.json"
    )
    cached_value = read_json(path)
    if isinstance(cached_value, dict):
        return cached_value
    newest = max((timestamp for state in file_states for timestamp in state[2:]), default=0)
    is_old_enough = time.time_ns() - newest > MIN_AGE_NS
    value = compute()
    if is_old_enough and _stat_files(files) == file_states:
        with suppress(OSError):  # the cache is optional
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, value)
    return value


def _stat_files(files: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    """Return path, size, modification time and change time of each file; users cannot set the change time."""
    states = []
    for file in files:
        status = file.stat()
        states.append((os.path.abspath(file), status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return states


@contextmanager
def write_folder_atomically(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder`, complete or not at all.

    Several processes may do so at once. The caller must flush the contents to disk before leaving the
    context.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary_folder = folder.with_name(f".{uuid4().hex}")
    temporary_folder.mkdir()
    try:
        yield temporary_folder
        temporary_folder.rename(folder)
    except OSError:  # another process was faster and wrote the same contents
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)


def write_file_atomically(path: Path, data: bytes) -> None:
    """Write the whole file or nothing, regardless of crashes and concurrent writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(path) as temporary_file:
        temporary_file.write_bytes(data)
