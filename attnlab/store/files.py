"""Files that are either the old ones or the new ones, whenever the power goes."""

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NO_FILES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
CHECKPOINTS = ("last.ckpt", "previous.ckpt")  # of a run that is not done, the newest first


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`; on a clean exit it is synced and renamed over it, else removed.

    `sync=False` is for what is worth nothing after a power cut; a reader still never meets half of it.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        if sync:
            _sync(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if sync:
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Replaces `path` atomically. ValueError for NaN and infinity, since JSON has none."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def no_file(path: Path) -> str | None:
    """`a pipe`, `a device` or `a socket` where that is what lies there; None for all else."""
    try:
        return _NO_FILES.get(stat.S_IFMT(path.stat().st_mode))
    except (OSError, ValueError):
        return None


def read_json(path: Path) -> Any | None:
    """The value, or None where the file is missing or cut short, or is none."""
    if no_file(path):
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
