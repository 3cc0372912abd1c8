"""Files that are either the old ones or the new ones, whenever the power goes."""

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnlab.errors import NO_SPACE

_NO_FILES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
CHECKPOINTS = ("last.ckpt", "previous.ckpt")  # of a run that is not done, the newest first

# Folder -> what is asked before a file in it is replaced, by the process that owns it (`store.lease`); it is
# told the temporary file, and does not return where the folder has become another's.
owners: dict[Path, Callable[[Path | None], None]] = {}


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`; on a clean exit it is synced and renamed over it, else removed.

    `sync=False` is for what is worth nothing after a power cut; a reader still never meets half of it.
    OSError, with ENOSPC and the path, where that is why it could not be written, whatever the writer raised.
    """
    _ask_owner(path)
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(descriptor)
        temporary = Path(name)
        yield temporary
        if sync:
            _sync(temporary)
        temporary.chmod(0o644)
        _ask_owner(path, temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch and pyarrow hide the system's reason behind their own
        if _is_full(error, temporary):
            if temporary is not None:
                os.truncate(temporary, 0)  # the exception may hold it open; the failure is to be recorded
            raise OSError(errno.ENOSPC, NO_SPACE, str(path)) from error
        raise
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    if sync:
        _sync(path.parent)


def _ask_owner(path: Path, temporary: Path | None = None) -> None:
    if owned := owners.get(path.parent.absolute()):
        owned(temporary)


def _is_full(error: Exception, temporary: Path | None) -> bool:
    """Whether the disk has no space, by the error, or where that does not say why, by trying."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if temporary is None:
        return False
    try:
        with temporary.open("ab", buffering=0) as file:
            file.write(b"\0" * 65536)
            os.fsync(file.fileno())
    except OSError as found:
        return found.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


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


def append(path: Path, line: str) -> None:
    """Adds a line, on the disk once this returns. Of a last one that was cut short nothing is lost: it gets
    its end, and whoever reads it finds it broken. Two at once need a lock.
    """
    with path.open("a+b") as file:
        torn = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
        file.write(b"\n" * torn + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    _sync(path.parent)


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
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
