"""Lease of a folder in a bucket, by writes that only create.

A lease has generations: `lease/N.json`, created with `If-None-Match: *`, so that one of several processes
wins. Its holder rewrites this object as a heartbeat, and ends it with `lease/N.free`. A process that finds
the newest generation free, or unchanged while it watches for the stale time, creates generation N+1. Only
the holder of N writes `N.json` and `N.free`, and both lose their meaning once N+1 exists: a release cannot
end the lease of a later holder. The newest generation is never deleted. A new holder lists the generations
again before it deletes older ones, so a process that acts on an old listing may recreate a deleted generation
but finds the newer one.
"""

import errno
import json
import time
from collections.abc import Mapping
from typing import Any

from filelock import Timeout

from attnlab.store.process_identity import get_process_state
from attnlab.store.remote_files import RemoteFiles, RemoteObject

LEASE_FOLDER = "lease"
LeaseState = tuple[int, RemoteObject | None]  # newest generation (0: none); its object, or None if it is free


def read_newest_generation(objects: Mapping[str, RemoteObject]) -> LeaseState:
    """Return the newest generation among the objects of a lease folder, by name."""
    numbers = {name: int(name.split(".")[0]) for name in objects if name.split(".")[0].isdecimal()}
    newest = max(numbers.values(), default=0)
    is_free = _format_name(newest, "free") in objects
    return newest, None if is_free or not newest else objects.get(_format_name(newest))


class RemoteLease:
    """A lease, as seen by one process."""

    def __init__(self, files: RemoteFiles, folder: str, owner: Mapping[str, Any]) -> None:
        """Prepare a lease.

        Args:
            folder: the leased folder, relative to the store.
            owner: describes this process: host, pid, its identity as `process`, and a `token` of its own.
        """
        self.files = files
        self.folder = f"{folder}/{LEASE_FOLDER}"
        self.owner = owner
        self.generation = 0

    def acquire(self, stale_seconds: float, *, wait_forever: bool) -> None:
        """Create the next generation once the newest one is free or stale, or its process has ended.

        Raises:
            Timeout: the holder is alive, and this process does not wait for it.
        """
        last_seen: tuple[int, str] | None = None
        last_change = time.monotonic()
        holder = None
        while True:
            newest, held = self._read_state()
            seen = (newest, held.version) if held is not None else None
            now = time.monotonic()
            if seen is not None and (last_seen is None or seen[0] != last_seen[0]):
                holder = self._load_owner(newest).get("process")
            is_stale = seen == last_seen and now - last_change >= stale_seconds
            if seen is None or is_stale or get_process_state(holder) == "ended":
                if self._create(newest + 1):
                    self.generation = newest + 1
                    return
                continue
            if seen != last_seen:
                if last_seen is not None and not wait_forever:
                    raise Timeout(f"{self.files.url}/{self.folder}")
                last_seen, last_change = seen, now
            time.sleep(min(1.0, stale_seconds / 10))

    def renew(self) -> None:
        """Write the heartbeat."""
        self.files.write(self._get_path(self.generation), self._format_owner())

    def release(self) -> None:
        """End this generation."""
        self.files.write(f"{self.folder}/{_format_name(self.generation, 'free')}", b"{}")

    def describe_successor(self) -> str | None:
        """Describe the process that has taken over the lease; None if this process still holds it."""
        newest, _ = self._read_state()
        if newest <= self.generation:
            return None
        owner = self._load_owner(newest)
        return f"{owner.get('host')}, pid {owner.get('pid')}"

    def _read_state(self) -> LeaseState:
        return read_newest_generation(self.files.list(self.folder))

    def _create(self, generation: int) -> bool:
        """Create a generation; return whether it is this process's and the newest one."""
        path = self._get_path(generation)
        try:
            self.files.create(path, self._format_owner())
        except FileExistsError:  # by this process, if the answer to its first attempt was lost
            if self._load_owner(generation).get("token") != self.owner["token"]:
                return False
        except OSError as error:
            if error.errno != errno.EBUSY:  # two processes created it at the same moment
                raise
            return False
        objects = self.files.list(self.folder)
        if read_newest_generation(objects)[0] != generation:
            return False
        self.files.remove([f"{self.folder}/{name}" for name in objects if name != _format_name(generation)])
        return True

    def _load_owner(self, generation: int) -> dict[str, Any]:
        try:
            content = json.loads(self.files.read(self._get_path(generation)))
        except (FileNotFoundError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _get_path(self, generation: int) -> str:
        return f"{self.folder}/{_format_name(generation)}"

    def _format_owner(self) -> bytes:
        return json.dumps({**self.owner, "time": time.time()}).encode()


def _format_name(generation: int, ending: str = "json") -> str:
    return f"{generation:06}.{ending}"
