"""Who trains a run: the lock in its folder, which falls with its process, and a heartbeat for other hosts.

File locks do not reach across hosts on every network file system, so the holder of the lock also writes
`owner.json` every ten seconds, whatever its training does. Surprising: no two clocks are compared. Another
host's heartbeat is alive as long as it changes while we watch, and dead once it has not for `STALE` seconds.
A process that was stopped for longer may find its run taken over: it asks before it writes, and ends at once.
"""

import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from attnlab.store.files import owners, read_json, replacing

TAKEN_OVER = 75  # the exit status of a process whose run has become another's; it records nothing
BEAT = 10.0
STALE = 35.0  # seconds: a stale heartbeat has missed three
SEEN = 120.0  # for onlookers, who read it once, and trust the other clock that far
HOST = socket.gethostname()


@contextmanager
def owning(folder: Path, patience: float = float("inf")) -> Iterator[None]:
    """Holds the run of `folder`, waiting while another process holds it, here or on another host.

    With a `patience` in seconds, filelock's Timeout: after that long for a process here, and as soon as one
    on another host gives a sign of life.
    """
    path = folder / "owner.json"
    token = uuid.uuid4().hex
    with FileLock(folder / "lock", timeout=-1 if patience == float("inf") else patience):
        _claim(path, token, patient=patience == float("inf"))
        over = threading.Event()
        beats = threading.Thread(target=_beat, args=(path, token, over), daemon=True, name="owner")
        beats.start()
        owners[folder.absolute()] = lambda temporary: _end_where_taken_over(path, token, temporary)
        try:
            yield
        finally:
            owners.pop(folder.absolute(), None)
            over.set()
            beats.join()
            if _token(path) == token:
                path.unlink(missing_ok=True)


def elsewhere(folder: Path) -> bool:
    """Whether another host seems to train the run; asked by those who only look."""
    owner = read_json(folder / "owner.json")
    return (
        isinstance(owner, dict)
        and owner.get("host") != HOST
        and abs(time.time() - float(owner.get("time") or 0)) < SEEN
    )


def _claim(path: Path, token: str, *, patient: bool) -> None:
    seen = ""
    since = time.monotonic()
    while True:
        with suppress(FileExistsError):  # created by one process alone, on network file systems too
            _create(path, token)
            return
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            text = ""
        if _host(text) == HOST:  # of a process that died here: the lock is ours
            _take(path, token)
            return
        if text != seen:
            if seen and not patient:
                raise Timeout(str(path))
            seen = text
            since = time.monotonic()
        if time.monotonic() - since >= STALE:
            _take(path, token)
            time.sleep(STALE / 5)  # another may have found it stale too: the last to write has it
            if _token(path) == token:
                return
        time.sleep(min(1.0, STALE / 10))


def _beat(path: Path, token: str, over: threading.Event) -> None:
    while not over.wait(BEAT):
        with suppress(OSError):  # a full disk is training's to notice
            _end_where_taken_over(path, token)
            _take(path, token)


def _end_where_taken_over(path: Path, token: str, temporary: Path | None = None) -> None:
    """Ends the process where the run is another's now, at once: no checkpoint is saved, nothing recorded.

    No owner at all and a record: whoever took it over has ended it since.
    """
    found = read_json(path)
    if isinstance(found, dict) and found.get("token") != token:
        who = taken_over(path.parent)
    elif found is None and (path.parent / "run.json").exists():
        who = "another process, which has ended it"
    else:
        return
    if temporary is not None:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):
        print(f"{path.parent.name}: taken over by {who}", file=sys.stderr, flush=True)
    os._exit(TAKEN_OVER)


def taken_over(folder: Path) -> str:
    """Who owns the run of a folder, in words: host and process."""
    owner = read_json(folder / "owner.json")
    return f"{owner.get('host')}, pid {owner.get('pid')}" if isinstance(owner, dict) else "another process"


def _create(path: Path, token: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
        try:
            file.write(_words(token))
            file.flush()
        except OSError as error:  # an empty one would be taken for another host's
            path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error


def _take(path: Path, token: str) -> None:
    with replacing(path, sync=False) as temporary:
        temporary.write_text(_words(token), encoding="utf-8")


def _words(token: str) -> str:
    return json.dumps({"host": HOST, "pid": os.getpid(), "time": time.time(), "token": token})


def _host(text: str) -> str | None:
    with suppress(ValueError):
        return str(json.loads(text)["host"])
    return None


def _token(path: Path) -> str | None:
    owner = read_json(path)
    return owner.get("token") if isinstance(owner, dict) else None
