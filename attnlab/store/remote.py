"""A store in a bucket, mirrored in a local folder that everything else reads and writes.

`paths.runs=s3://bucket/prefix` stands for the folder `remote/` in paths.cache, one folder per URL. Results,
curves, maps and vocabularies are copied from the bucket; weights and checkpoints only when a process needs
them. Files of a run are uploaded under its lease (`store.lease`), run.json last, so a result is visible only
with its files. Each folder of the mirror has an index of the versions that both sides have.

A process that is suspended for longer than the stale time, exactly between its last check of the lease and
the write of run.json, could still replace the result of its successor. Both are results of one config, and
the digests in run.json reveal files of the other attempt.
"""

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlab.errors import InvalidConfig
from attnlab.store.atomic_files import read_json, read_json_object, replace_atomically, write_json
from attnlab.store.file_names import (
    CHECKPOINT_NAMES,
    CURVES_FILE,
    MAPS_FILE,
    MARK_FILE,
    PREREGISTRATION_LOG,
    RUN_ID_PATTERN,
    SHARED_FILE_PATTERN,
    STORE_KIND,
    TRUNK_CHECKPOINT,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    WORK_FOLDER,
)
from attnlab.store.remote_files import RemoteFiles, RemoteObject, is_url
from attnlab.store.remote_lease import LEASE_FOLDER, RemoteLease, read_newest_generation
from attnlab.store.run_schema import RunConfig, convert_validation_error
from attnlab.store.safe_paths import resolve_below

MIRROR_FILE = ".mirror.json"  # in a mirror: its URL
INDEX_FILE = ".index.json"  # file name -> version in the bucket, and time and size of the local file
REFRESH_SECONDS = 3.0  # between two listings of the bucket while a worker searches for runs
_MIRRORED_FILES = (CURVES_FILE, MAPS_FILE, VOCABULARY_FILE)  # copied with each result; weights only on demand
_CHECKPOINTS = (CHECKPOINT_NAMES[0], TRUNK_CHECKPOINT)
_UPLOADED_FILES = ("spec.json", "log.txt", WEIGHTS_FILE, *_MIRRORED_FILES, *_CHECKPOINTS)  # before run.json

Index = dict[str, list[Any]]


class TakenOver(Exception):
    """Raised instead of uploading the result of a run whose lease another process has taken over."""


def open_store(runs: str, cache_folder: str | Path | None, *, writable: bool) -> Path:
    """Return the folder of the run directories: `runs` itself, or the up-to-date mirror of a URL.

    Args:
        writable: whether runs will be trained, so that the bucket must have conditional writes.

    Raises:
        InvalidConfig: the bucket cannot be used.
    """
    if not is_url(runs):
        return Path(runs)
    files = RemoteFiles(runs)
    root = Path(cache_folder or ".cache") / "remote" / _name_mirror(files.url)
    root.mkdir(parents=True, exist_ok=True)
    if not read_json_object(root / MIRROR_FILE):
        write_json(root / MIRROR_FILE, {"url": files.url})
    find_mirror.cache_clear()
    mirror = find_mirror(root)
    assert mirror is not None
    with files.explain_errors():
        mirror.refresh()
        if writable:
            mirror.require_conditional_writes()
    return root


@cache
def find_mirror(root: Path) -> "Mirror | None":
    """Return the mirror in a folder of run directories; None for an ordinary folder.

    The folder has the name of its URL: a file in a folder from elsewhere makes no mirror of it.
    """
    url = str(read_json_object(root / MIRROR_FILE).get("url"))
    return Mirror(root, url) if root.name == _name_mirror(url) else None


def _name_mirror(url: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", url.partition("://")[2])[:200]
    return f"{name}~{uuid.uuid5(uuid.NAMESPACE_URL, url).hex[:8]}"


def find_mirror_of(folder: Path) -> "Mirror | None":
    """Return the mirror that contains a folder of a run or of a sweep's workers."""
    return next((mirror for root in list(folder.parents)[:2] if (mirror := find_mirror(root))), None)


def refresh(root: Path, seconds: float = 0.0) -> None:
    """Copy new records from the bucket of a mirror; at most every `seconds`."""
    if mirror := find_mirror(root):
        mirror.refresh(seconds)


def push_file(path: Path, root: Path) -> None:
    """Upload a file that workers share, if `root` is a mirror."""
    if mirror := find_mirror(root):
        mirror.push_shared([path])


def remove_file(path: Path, root: Path) -> None:
    """Remove a file that workers share from the bucket, if `root` is a mirror."""
    if mirror := find_mirror(root):
        mirror.files.remove([str(path.relative_to(root))])


def describe_path(path: Path, root: Path) -> str:
    """Return the place of a file that a user may remove: its URL, or for an ordinary folder its path."""
    mirror = find_mirror(root)
    return f"{mirror.files.url}/{path.relative_to(root)}" if mirror else str(path)


def fetch_missing(path: Path) -> bool:
    """Download a run's file that only the bucket has; return whether the file is there now."""
    mirror = find_mirror(path.parent.parent)
    return mirror is not None and mirror.fetch(path)


class Mirror:
    """The local folder of a store in a bucket, as seen by one process."""

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.files = RemoteFiles(url)
        self._listed_at = -float("inf")
        # run id -> newest generation and version of a lease that is held, when this process saw it first, and
        # when it was written by the clock of the bucket
        self._held: dict[str, tuple[int, str, float, float]] = {}

    def require_conditional_writes(self) -> None:
        """Mark the store, and check that the bucket rejects to create a file twice.

        Raises:
            InvalidConfig: it does not, so that two processes could hold one lease.
        """
        content = json.dumps({"what": STORE_KIND, "id": uuid.uuid4().hex}).encode()
        for _ in range(2):
            try:
                self.files.create(MARK_FILE, content)
            except FileExistsError:
                self._download(self.root, MARK_FILE)
                return
        raise InvalidConfig(
            f"paths.runs={self.files.url}: the server ignores If-None-Match, so two workers could train one "
            "run: use a server with conditional writes, or a folder that all workers share"
        )

    def make_lease(self, folder: Path, owner: dict[str, Any]) -> RemoteLease:
        """Return the lease of a folder of the mirror for this process."""
        return RemoteLease(self.files, str(folder.relative_to(self.root)), owner)

    def is_held(self, folder: Path, stale_seconds: float) -> bool:
        """Whether a process seems to hold a run: its lease changed within `stale_seconds` of watching."""
        held = self._held.get(folder.name)
        return held is not None and time.monotonic() - held[2] < stale_seconds

    def is_recently_held(self, folder: Path, stale_seconds: float) -> bool:
        """The same for observers, who read once and must compare the clocks of the bucket and this host."""
        held = self._held.get(folder.name)
        return held is not None and abs(time.time() - held[3]) < stale_seconds

    def refresh(self, seconds: float = 0.0) -> None:
        """List the bucket and copy new results, their mirrored files, and the files that workers share."""
        if time.monotonic() - self._listed_at < seconds:
            return
        # read first: another process of this host may upload a file after the listing
        indexes = {path.parent: _read_index(path.parent) for path in self.root.glob(f"*/{INDEX_FILE}")}
        indexes[self.root] = _read_index(self.root)
        objects = self.files.list()
        self._listed_at = time.monotonic()
        by_run: dict[str, dict[str, RemoteObject]] = {}
        shared: dict[str, RemoteObject] = {}
        leases: dict[str, dict[str, RemoteObject]] = {}
        for name, entry in objects.items():
            first, _, rest = name.partition("/")
            if RUN_ID_PATTERN.fullmatch(first) and rest.startswith(f"{LEASE_FOLDER}/"):
                leases.setdefault(first, {})[rest.removeprefix(f"{LEASE_FOLDER}/")] = entry
            elif RUN_ID_PATTERN.fullmatch(first):
                by_run.setdefault(first, {})[rest] = entry
            elif SHARED_FILE_PATTERN.fullmatch(name):
                shared[name] = entry
        self._note_leases(leases)
        for id, run_objects in by_run.items():
            folder = self.root / id
            names = [*_MIRRORED_FILES, "run.json"] if "run.json" in run_objects else []
            names += [] if (folder / "spec.json").exists() else ["spec.json"]
            self._update(folder, names, run_objects, indexes.get(folder, {}))
        self._update(self.root, shared, shared, indexes[self.root])

    @contextmanager
    def synchronize(self, folder: Path, lease: RemoteLease) -> Iterator[None]:
        """Bring a leased folder up to date at the start, and upload the changes at the end."""
        if RUN_ID_PATTERN.fullmatch(folder.name):
            self._pull_run(folder)
            try:
                yield
            finally:
                self._push_run(folder, lease)
        else:
            self.refresh()
            try:
                yield
            finally:
                plans = (self.root / WORK_FOLDER).glob("[!.]*~*.json")
                self.push_shared([self.root / PREREGISTRATION_LOG, *plans])

    def push_checkpoints(self, folder: Path) -> None:
        """Upload the checkpoints of a run that changed."""
        if RUN_ID_PATTERN.fullmatch(folder.name):
            self._upload_changed(folder, _CHECKPOINTS)

    def push_shared(self, paths: Iterable[Path]) -> None:
        """Upload the files outside runs that changed."""
        self._upload_changed(self.root, [str(path.relative_to(self.root)) for path in paths])

    def list_pending_uploads(self) -> list[Path]:
        """List the folders of runs whose result was not uploaded."""
        return [
            path.parent
            for path in sorted(self.root.glob("*/run.json"))
            if _is_changed(path, _read_index(path.parent).get(path.name))
        ]

    def fetch(self, path: Path) -> bool:
        """Download a run's file that is missing here; return whether the file is there now."""
        if not path.exists():
            with suppress(FileNotFoundError):
                self._download(path.parent, path.name)
                version = self.files.get_version(str(path.relative_to(self.root)))
                _write_index(path.parent, {path.name: [version, *_stat(path)]})
        return path.exists()

    def _note_leases(self, leases: dict[str, dict[str, RemoteObject]]) -> None:
        held = {}
        for id, objects in leases.items():
            generation, entry = read_newest_generation(objects)
            if entry is None:
                continue
            known = self._held.get(id)
            is_same = known is not None and known[:2] == (generation, entry.version)
            since = known[2] if known is not None and is_same else time.monotonic()
            held[id] = (generation, entry.version, since, entry.modified)
        self._held = held

    def _pull_run(self, folder: Path) -> None:
        """Copy everything that decides whether and where training goes on."""
        folder_name = folder.name
        objects = {
            name: entry
            for name, entry in self.files.list(folder_name).items()
            if not name.startswith(f"{LEASE_FOLDER}/")
        }
        index = _read_index(folder)
        if "spec.json" in objects and objects["spec.json"].version != index.get("spec.json", [None])[0]:
            self._adopt_batch_split(folder)
        names = [*_MIRRORED_FILES, CHECKPOINT_NAMES[0], "run.json"]
        self._update(folder, names, objects, index)
        with suppress(ValidationError):  # training reports it
            trunk = RunConfig.model_validate(read_json(folder / "spec.json")).use.trunk
            if trunk is not None:
                self.fetch(self.root / trunk.id / TRUNK_CHECKPOINT)

    def _adopt_batch_split(self, folder: Path) -> None:
        """Split batches as the process that saved the checkpoint, which counts steps in such parts."""
        name = f"{folder.name}/spec.json"
        try:
            remote = RunConfig.model_validate_json(self.files.read(name))
        except ValidationError as error:
            raise convert_validation_error(error, f"{self.files.url}/{name}") from error
        with suppress(ValidationError):  # training reports it
            local = RunConfig.model_validate(read_json(folder / "spec.json"))
            if local.use.split != remote.use.split:
                write_json(folder / "spec.json", local.with_provenance(split=remote.use.split).to_dict())

    def _push_run(self, folder: Path, lease: RemoteLease) -> None:
        """Upload the files of a run, then its result; remove those that are gone here.

        Raises:
            TakenOver: another process has taken over the run.
        """
        removed = [name for name in _read_index(folder) if not (folder / name).exists()]
        if "run.json" in removed:  # it must not stand beside files of the next attempt
            self._remove(folder, ["run.json"])
        self._upload_changed(folder, _UPLOADED_FILES)
        if _is_changed(folder / "run.json", _read_index(folder).get("run.json")):
            if successor := lease.describe_successor():
                raise TakenOver(successor)
            self._upload_changed(folder, ["run.json"])
        self._remove(folder, [name for name in removed if name != "run.json"])

    def _upload_changed(self, folder: Path, names: Iterable[str]) -> None:
        index = _read_index(folder)
        uploaded: Index = {}
        for name in names:
            path = folder / name
            if _is_changed(path, index.get(name)):
                stat = _stat(path)
                target = str(path.relative_to(self.root))
                self.files.upload(path, target)
                uploaded[name] = [self.files.get_version(target), *stat]
        if uploaded:
            _write_index(folder, uploaded)

    def _remove(self, folder: Path, names: list[str]) -> None:
        if names:
            self.files.remove([str((folder / name).relative_to(self.root)) for name in names])
            _write_index(folder, {}, removed=names)

    def _update(
        self, folder: Path, names: Iterable[str], objects: dict[str, RemoteObject], index: Index
    ) -> None:
        """Download the named files whose version is new, in order, and remove those that the bucket lost."""
        changes: Index = {}
        lost = [
            name
            for name, entry in index.items()
            if name not in objects and (name == "run.json" or folder == self.root)
            if (folder / name).exists() and not _is_changed(folder / name, entry)
        ]
        for name in names:
            if name in objects and objects[name].version != index.get(name, [None])[0]:
                if name == "run.json" and WEIGHTS_FILE in index:  # the weights of an earlier result
                    weights = objects.get(WEIGHTS_FILE)
                    if weights is None or weights.version != index[WEIGHTS_FILE][0]:
                        lost.append(WEIGHTS_FILE)
                with suppress(FileNotFoundError):  # removed since the listing
                    self._download(folder, name)
                    changes[name] = [objects[name].version, *_stat(folder / name)]
        for name in lost:
            (folder / name).unlink(missing_ok=True)
        if changes or lost:
            _write_index(folder, changes, removed=lost)

    def _download(self, folder: Path, name: str) -> None:
        path = resolve_below(self.root, str((folder / name).relative_to(self.root)))
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path, sync=False) as temporary:
            self.files.download(str(path.relative_to(self.root)), temporary)


def _read_index(folder: Path) -> Index:
    return read_json_object(folder / INDEX_FILE)


def _write_index(folder: Path, changes: Index, removed: Iterable[str] = ()) -> None:
    index = {**_read_index(folder), **changes}
    content = {name: entry for name, entry in index.items() if name not in set(removed)}
    with replace_atomically(folder / INDEX_FILE, sync=False) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")


def _stat(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_mtime_ns, stat.st_size]


def _is_changed(path: Path, entry: list[Any] | None) -> bool:
    """Whether a file exists that the index does not know in this state."""
    try:
        return entry is None or entry[1:] != _stat(path) if path.exists() else False
    except FileNotFoundError:
        return False
