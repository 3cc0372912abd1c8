"""Atomic file writes, and reads of users' files.

After a power cut a file is either the old one or the new one. A file that a user or another program wrote is
opened by `open_user_file` alone.
"""

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from attnlab.errors import NO_SPACE

# Modules whose source is part of run ids import these names from here.
from attnlab.store.file_names import CHECKPOINT_NAMES as CHECKPOINT_NAMES
from attnlab.store.file_names import TRUNK_CHECKPOINT as TRUNK_CHECKPOINT

MAX_YAML_BYTES = 2**24  # of a config file
MAX_FILE_BYTES = 2**30  # of a file that is parsed in memory: beyond any config, result or log
_SPECIAL_FILES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

# Folder -> check before a file in it is replaced, set by the lease holder (`store.lease`). It receives the
# temporary file, and ends the process if another process has taken over the folder.
owner_checks: dict[Path, Callable[[Path | None], None]] = {}


@contextmanager
def replace_atomically(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path, which is synced and renamed over `path` on a clean exit, else removed.

    Args:
        sync: False for files that are worthless after a power cut; readers still never see a partial file.

    Raises:
        OSError: With ENOSPC and the path if the disk is full, whatever exception the writer raised.
    """
    _check_owner(path)
    temporary = None
    try:
        try:
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        except OSError as error:
            error.filename = str(path)  # in place of a name that the user does not know
            raise
        os.close(descriptor)
        temporary = Path(name)
        yield temporary
        if sync:
            _fsync_path(temporary)
        temporary.chmod(0o644)
        _check_owner(path, temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch and pyarrow hide the errno
        if _is_disk_full(error, temporary):
            if temporary is not None:
                os.truncate(
                    temporary, 0
                )  # frees space for the failure record; the exception may hold the file open
            raise OSError(errno.ENOSPC, NO_SPACE, str(path)) from error
        raise
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    if sync:
        _fsync_path(path.parent)


def _check_owner(path: Path, temporary: Path | None = None) -> None:
    if check := owner_checks.get(path.parent.absolute()):
        check(temporary)


def _is_disk_full(error: Exception, temporary: Path | None) -> bool:
    """Whether the disk is full, by the errno, or if there is none, by a trial write."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if temporary is None:
        return False
    try:
        with temporary.open("ab", buffering=0) as file:
            file.write(b"\0" * 65536)
            os.fsync(file.fileno())
    except OSError as write_error:
        return write_error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def _fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` atomically with JSON.

    Raises:
        ValueError: NaN or infinity, which JSON lacks.
    """
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    with replace_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append a line and sync it to disk.

    A truncated last line is terminated first and not lost; readers find it broken. Concurrent writers need a
    lock.
    """
    with path.open("a+b") as file:
        is_truncated = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            is_truncated = file.read(1) != b"\n"
        file.write(b"\n" * is_truncated + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    _fsync_path(path.parent)


class NotRegularFile(OSError):
    """A pipe, a device or a socket in place of a file: reading one may wait forever or never end."""


def open_user_file(path: Path, max_bytes: int | None = MAX_FILE_BYTES) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        NotRegularFile: it is a pipe, a device or a socket; `strerror` names the kind.
        OSError: it cannot be opened, is a folder, or has more than `max_bytes`.
    """
    # Opening a pipe for reading waits for its writer unless O_NONBLOCK is set; regular files ignore the flag.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if kind := _SPECIAL_FILES.get(stat.S_IFMT(status.st_mode)):
            raise NotRegularFile(errno.EINVAL, f"is {kind}, not a regular file", str(path))
        if max_bytes is not None and status.st_size > max_bytes:
            size = f"has {status.st_size:,} bytes, and the limit is {max_bytes:,}"
            raise OSError(errno.EFBIG, size, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_user_text(
    path: Path, encoding: str = "utf-8", max_bytes: int = MAX_FILE_BYTES, errors: str = "strict"
) -> str:
    """Return the text of a regular file.

    Raises:
        OSError: as from `open_user_file`.
        UnicodeDecodeError: it is not text of this encoding.
    """
    with open_user_file(path, max_bytes) as file:
        return file.read().decode(encoding, errors).replace("\r\n", "\n").replace("\r", "\n")


def read_text_or_empty(path: Path) -> str:
    """Read a config file for hints about it; empty if unreadable, so that a broken file hides no other."""
    try:
        return read_user_text(path, max_bytes=MAX_YAML_BYTES, errors="replace")
    except OSError:
        return ""


def describe_special_file(path: Path) -> str | None:
    """Return `a pipe`, `a device` or `a socket` for such a path; None for any other."""
    try:
        return _SPECIAL_FILES.get(stat.S_IFMT(path.stat().st_mode))
    except (OSError, ValueError):
        return None


def read_json(path: Path) -> Any | None:
    """Return the parsed value; None if the file is missing, truncated or not a regular file."""
    try:
        return parse_json(read_user_text(path))
    except (FileNotFoundError, NotADirectoryError, NotRegularFile, ValueError):
        return None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the parsed object; empty if `read_json` returns None or another value."""
    content = read_json(path)
    return content if isinstance(content, dict) else {}


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that may come from elsewhere.

    Raises:
        ValueError: It is invalid, or nested too deeply for Python's parser.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
