"""The temporary folder of multiprocessing's sockets: one that is removed however its process ends.

Its own `pymp-` folders stay behind a process that is killed. Ours are held by a lock, which falls with the
process, and removed by whoever is there: the process as it ends, the server that it has started, or the next
command.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from multiprocessing import process, util
from pathlib import Path
from typing import Any

PREFIX, VARIABLE = "attnlab-", "ATTNLAB_TEMPORARY"
LONGEST = 104  # bytes of the name of a socket


def claim() -> str:
    """The folder of this process, made where it has none; a forked child has its parent's. Removes those that
    processes of the same user have left in the same place.
    """
    config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    found = config.get("tempdir")
    if found is None:
        _remove_old(place := _place())
        found = config["tempdir"] = tempfile.mkdtemp(prefix=PREFIX, dir=place)
        _lock(Path(found))
        util.Finalize(None, _forget, args=(found,), exitpriority=-100)
    return str(found)


def _place() -> Path:
    """The usual place, or the system's where the name of a socket in it would be too long."""
    usual, system = Path(tempfile.gettempdir()), Path("/tmp")
    fits = len(str(usual)) + len(f"/{PREFIX}12345678/listener-12345678") < LONGEST
    return usual if fits or not os.access(system, os.W_OK) else system


def _lock(folder: Path) -> None:
    """Locked before it has its name: a folder without is still being made."""
    descriptor = os.open(folder / "new", os.O_RDWR | os.O_CREAT, 0o600)  # stays open as long as the process
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (folder / "new").rename(folder / "lock")


def _forget(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    process.current_process()._config["tempdir"] = None  # type: ignore[attr-defined]


def _remove_old(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid() and not folder.is_symlink() and _is_left(folder / "lock"):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove_in(pid: int, folder: str) -> None:
    if os.getpid() == pid:  # not in the children of the server
        shutil.rmtree(folder, ignore_errors=True)


# In the server of warm processes, which is told by its environment; it outlives a command that is killed.
if VARIABLE in os.environ:
    atexit.register(_remove_in, os.getpid(), os.environ.pop(VARIABLE))
