"""What corpora leave in `paths.cache`, so that a start reads no text that was read before.

Surprising: a file is taken for the one that it was where its path, size and both of its times are the same.
What was written in the last two seconds is hashed again each time: a clock may be too coarse to tell two
writings apart.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from attnlab.data.task import fingerprint
from attnlab.store.files import read_json, replacing, write_json

VERSION = 1  # of what is kept: raise it where the same files give another text, or another record of it
SETTLED = 2 * 10**9  # nanoseconds after which another writing has another time


def known(cache: str, kind: str, files: Sequence[Path], find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `find` says of files, kept until one of them changes. Plain values; its errors are not kept."""
    before = _state(files)
    path = Path(cache) / "corpora" / f"{fingerprint(version=VERSION, kind=kind, files=before)[:32]}.json"
    kept = read_json(path)
    if isinstance(kept, dict):
        return kept
    newest = max((time for file in before for time in file[2:]), default=0)
    settled = time.time_ns() - newest > SETTLED
    found = find()
    if settled and _state(files) == before:
        with suppress(OSError):  # nothing leans on it
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, found)
    return found


def _state(files: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    """Path, size, and the times of the content and of the file itself, which nobody can set."""
    states = []
    for file in files:
        status = file.stat()
        states.append((os.path.abspath(file), status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return states


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `folder`: complete or not there at all, also when several
    processes do it at once. What is in it must be on the disk on leaving.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{uuid4().hex}")
    partial.mkdir()
    try:
        yield partial
        partial.rename(folder)
    except OSError:  # where another process was faster, it wrote the same
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write(path: Path, data: bytes) -> None:
    """All of the file or none of it, whatever happens meanwhile and whoever else writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(data)
