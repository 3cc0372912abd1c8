"""Lease of a run: a file lock in its folder, released with the process, plus a heartbeat for other hosts.

File locks do not reach across hosts on every network file system, so the lock holder also writes `owner.json`
every ten seconds, whatever its training does. No two clocks are compared: a heartbeat is alive as long as it
changes while this process watches, and dead once it has not changed for `STALE_SECONDS`, or at once if its
process has ended on this kernel (`store.process_identity`). A process that was suspended for longer may lose
its lease, so it checks the owner before each write, and exits at once if another process holds the lease.

A folder of a mirror (`store.remote`) also has a lease in the bucket, under which it is synchronized.
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
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from attnlab.store import remote
from attnlab.store.atomic_files import owner_checks, read_json, read_json_object, replace_atomically
from attnlab.store.process_identity import get_process_state, identify_process
from attnlab.store.remote_lease import RemoteLease

TAKEN_OVER_EXIT_CODE = 75  # of a process that lost its lease; it records nothing
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 35.0  # three missed heartbeats
OBSERVER_STALE_SECONDS = 120.0  # for observers, who read once and must compare clocks
HOST = socket.gethostname()  # for messages: several machines and containers may have this name


@contextmanager
def hold_lease(folder: Path, timeout_seconds: float = float("inf")) -> Iterator[None]:
    """Hold the lease of the run in `folder`, waiting while another process on any host holds it.

    Args:
        timeout_seconds: Longest wait for a process on this host.

    Raises:
        Timeout: The timeout passed, or with a finite timeout a process on another host is alive.
    """
    path = folder / "owner.json"
    token = uuid.uuid4().hex
    wait_forever = timeout_seconds == float("inf")
    with FileLock(folder / "lock", timeout=-1 if wait_forever else timeout_seconds):
        _acquire_lease(path, token, wait_forever=wait_forever)
        stop = threading.Event()
        heartbeat = threading.Thread(
            target=_run_heartbeat, args=(path, token, stop), daemon=True, name="owner"
        )
        heartbeat.start()
        owner_checks[folder.absolute()] = lambda temporary: _exit_if_taken_over(path, token, temporary)
        try:
            with _hold_remote_lease(folder, token, wait_forever=wait_forever):
                yield
        finally:
            owner_checks.pop(folder.absolute(), None)
            stop.set()
            heartbeat.join()
            if _read_token(path) == token:
                path.unlink(missing_ok=True)


@contextmanager
def _hold_remote_lease(folder: Path, token: str, *, wait_forever: bool) -> Iterator[None]:
    """Hold the lease in the bucket while its files and those in the folder are synchronized.

    For a folder outside mirrors, do nothing.
    """
    mirror = remote.find_mirror_of(folder)
    if mirror is None:
        yield
        return
    lease = mirror.make_lease(folder, _describe_process(token))
    lease.acquire(STALE_SECONDS, wait_forever=wait_forever)
    stop = threading.Event()
    threads = [
        threading.Thread(target=_run_remote_heartbeat, args=(folder, lease, stop), daemon=True),
        threading.Thread(target=_run_uploads, args=(folder, mirror, stop), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        with mirror.synchronize(folder, lease):
            try:
                yield
            finally:
                stop.set()
                threads[1].join()
    except remote.TakenOver as error:
        _exit_taken_over(folder, str(error))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        lease.release()


def upload_results(root: Path) -> None:
    """Upload the results that a mirror has and its bucket lacks, because an earlier upload failed."""
    mirror = remote.find_mirror(root)
    for folder in mirror.list_pending_uploads() if mirror else ():
        with suppress(OSError), hold_lease(folder, timeout_seconds=1.0):
            pass  # if this fails, a later command tries again


def is_held_on_other_host(folder: Path) -> bool:
    """Whether a process whose lock is not visible here seems to train the run; for observers."""
    if (mirror := remote.find_mirror_of(folder)) and mirror.is_recently_held(folder, OBSERVER_STALE_SECONDS):
        return True
    owner = read_json_object(folder / "owner.json")
    heartbeat = owner.get("time")
    return (
        isinstance(heartbeat, int | float)
        and get_process_state(owner.get("process")) != "ended"
        and abs(time.time() - heartbeat) < OBSERVER_STALE_SECONDS
    )


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the run's lock.

    The check takes the lock for a moment, so every process that acquires it must wait for a moment.
    """
    if not (folder / "lock").exists():
        return is_held_on_other_host(folder)
    try:
        with FileLock(folder / "lock", timeout=0):
            return is_held_on_other_host(folder)
    except Timeout:
        return True
    except OSError:  # read-only: no worker could hold a lock here
        return False


def _acquire_lease(path: Path, token: str, *, wait_forever: bool) -> None:
    last_owner: dict[str, Any] = {}
    last_change = time.monotonic()
    while True:
        with suppress(FileExistsError):  # only one process can create it, on network file systems too
            _create_owner_file(path, token)
            return
        owner = read_json_object(path)
        if get_process_state(owner.get("process")) == "ended":
            _replace_owner_file(path, token)
            return
        if owner != last_owner:
            if last_owner and not wait_forever:
                raise Timeout(str(path))
            last_owner = owner
            last_change = time.monotonic()
        if time.monotonic() - last_change >= STALE_SECONDS:
            _replace_owner_file(path, token)
            time.sleep(STALE_SECONDS / 5)  # of several hosts that take over, the last writer wins
            if _read_token(path) == token:
                return
        time.sleep(min(1.0, STALE_SECONDS / 10))


def _run_heartbeat(path: Path, token: str, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        with suppress(OSError):  # training reports a full disk
            _exit_if_taken_over(path, token)
            _replace_owner_file(path, token)


def _exit_if_taken_over(path: Path, token: str, temporary: Path | None = None) -> None:
    """Exit the process at once if another one holds the lease: no checkpoint is saved, nothing recorded.

    A missing owner file next to a result means that the other process has finished the run since.
    """
    owner = read_json(path)
    if isinstance(owner, dict) and owner.get("token") != token:
        new_owner = describe_owner(path.parent)
    elif owner is None and (path.parent / "run.json").exists():
        new_owner = "another process, which finished it"
    else:
        return
    if temporary is not None:
        temporary.unlink(missing_ok=True)
    _exit_taken_over(path.parent, new_owner)


def _exit_taken_over(folder: Path, new_owner: str) -> NoReturn:
    with suppress(OSError):
        print(f"{folder.name}: taken over by {new_owner}", file=sys.stderr, flush=True)
    os._exit(TAKEN_OVER_EXIT_CODE)


def _run_remote_heartbeat(folder: Path, lease: RemoteLease, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        with suppress(OSError):  # without a network, the upload at the end reports it
            if successor := lease.describe_successor():
                _exit_taken_over(folder, successor)
            lease.renew()


def _run_uploads(folder: Path, mirror: remote.Mirror, stop: threading.Event) -> None:
    """Upload each saved checkpoint; in a thread of its own, since a heartbeat must not wait for it."""
    while not stop.wait(HEARTBEAT_SECONDS):
        with suppress(OSError):
            mirror.push_checkpoints(folder)


def describe_owner(folder: Path) -> str:
    """Describe the lease holder of a run folder: host and process id."""
    owner = read_json_object(folder / "owner.json")
    return f"{owner.get('host')}, pid {owner.get('pid')}" if owner else "another process"


def _create_owner_file(path: Path, token: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
        try:
            file.write(_format_owner(token))
            file.flush()
        except OSError as error:  # an empty file would look like another host's
            path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error


def _replace_owner_file(path: Path, token: str) -> None:
    with replace_atomically(path, sync=False) as temporary:
        temporary.write_text(_format_owner(token), encoding="utf-8")


def _format_owner(token: str) -> str:
    return json.dumps({**_describe_process(token), "time": time.time()})


def _describe_process(token: str) -> dict[str, Any]:
    return {"host": HOST, "pid": os.getpid(), "process": identify_process(), "token": token}


def _read_token(path: Path) -> str | None:
    return read_json_object(path).get("token")
