"""Names from buckets, stored files and reports stay below their folder."""

import datetime
import json
import shutil
import sys
from types import ModuleType

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pydantic import ValidationError

from attnlab.errors import InvalidConfig
from attnlab.store import remote, run_directories
from attnlab.store.guards import ownership, run_references
from attnlab.store.run_schema import RunConfig
from attnlab.store.safe_paths import resolve_below

ID = "0123456789abcdef"
URL = "s3://bucket/team/runs"
OUTSIDE = {
    "parent": "../planted", "parents inside": "work/a/../../planted", "only parents": "..",
    "absolute": "/planted", "drive": "C:/planted", "drive relative": "c:planted",
    "backslash": "..\\planted", "NUL": "work/a\0.json", "line": "work/a\nb.json", "direction": "work/\u202ea",
    "empty part": "work//a.json", "dot": "work/./a.json", "surrogate": "a\udc80",
    "long part": "work/" + "a" * 256, "long": "a/" * 600 + "a",
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE.values(), ids=OUTSIDE)
def test_name_that_leads_out_is_rejected_in_one_line(tmp_path, name):
    with pytest.raises(InvalidConfig) as caught:
        resolve_below(tmp_path, name)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_links_may_lead_elsewhere_within_the_folder_only(tmp_path):
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (root / "link").symlink_to("inside")
    (tmp_path / "root2").mkdir()
    (root / "out").symlink_to(tmp_path / "root2")
    (root / "loop").symlink_to("loop")
    (tmp_path / "alias").symlink_to(root)
    for folder in (root, tmp_path / "alias"):
        for name in ("link/file", "é/a b.json", "loop"):
            assert resolve_below(folder, name) == folder / name
        for name in ("out", "out/file"):
            with pytest.raises(InvalidConfig, match="leads out of the folder by a link"):
                resolve_below(folder, name)


class Bucket(MemoryFileSystem):
    """A bucket whose keys are stored as they are."""

    def __init__(self, objects, **_):
        super().__init__()
        self.objects = objects

    def find(self, prefix, detail=True, **_):
        now = datetime.datetime.now(datetime.UTC)
        return {
            key: {"ETag": str(hash(content)), "LastModified": now} for key, content in self.objects.items()
        }

    def get_file(self, key, path, **_):
        with open(path, "wb") as file:
            file.write(self.objects[key])


@pytest.fixture
def open_bucket(tmp_path, monkeypatch):
    """Open a store with these keys, and list all files below the working directory."""
    monkeypatch.setitem(sys.modules, "s3fs", ModuleType("s3fs"))
    monkeypatch.chdir(tmp_path)

    def open_(*keys):
        objects = {f"{URL.removeprefix('s3://')}/{key}": b"planted" for key in keys}
        monkeypatch.setattr(
            fsspec, "filesystem", lambda protocol, **_: Bucket(objects, skip_instance_cache=True)
        )
        try:
            return remote.open_store(URL, ".cache", writable=False)
        finally:
            open_.names = {path.name for path in tmp_path.rglob("*") if path.is_file()}

    return open_


@pytest.mark.parametrize(
    "keys",
    [
        *((key,) for key in OUTSIDE.values()),
        *((f"{ID}/{key}",) for key in OUTSIDE.values()),
        (f"{ID}/run.json", f"{ID}/RUN.json"),
        ("work/a~01234567.json", "work/A~01234567.json"),
        ("work/\u00e9.json", "work/e\u0301.json"),
    ],
    ids=repr,
)
def test_bucket_with_an_unsafe_key_is_rejected_and_nothing_is_written(open_bucket, keys):
    with pytest.raises(InvalidConfig) as caught:
        open_bucket("declarations.jsonl", *keys)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{URL}/: the name {keys[-1]!r} ")
    assert open_bucket.names == {remote.MIRROR_FILE}


def test_only_files_of_attnlab_are_copied_from_a_bucket(open_bucket):
    shared = tuple(f"work/a~01234567{end}.json" for end in ("", "/workers/host-1", "/quarantine/host"))
    foreign = ("README.md", "readme/a b.txt", "notes/", f"{ID}/planted.py", "planted.py")
    leases = ("work/owner.json", "work/lock", "work/lease/000001.json", "work/a~01234567/lease/000001.free")
    open_bucket("declarations.jsonl", f"{ID}/spec.json", *shared, *foreign, *leases)
    copied = {name.rpartition("/")[2] for name in shared}
    assert open_bucket.names == copied | {
        "declarations.jsonl", "spec.json", remote.MIRROR_FILE, remote.INDEX_FILE,
    }  # fmt: skip


def test_folder_from_elsewhere_is_no_mirror(open_bucket, tmp_path):
    root = open_bucket("declarations.jsonl")
    assert remote.find_mirror(root).files.url == URL
    shutil.copytree(root, tmp_path / "runs")
    assert remote.find_mirror(tmp_path / "runs") is None


def test_mirror_with_a_link_out_of_it_is_not_written(open_bucket, tmp_path):
    root = open_bucket("declarations.jsonl")
    (tmp_path / "outside").mkdir()
    (root / "work").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidConfig, match="leads out of the folder by a link"):
        open_bucket("work/a~01234567.json")
    assert not any((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("name", ["../other", "/other", "a/b", "..", "c:x", "a\0b", "a" * 300])
@pytest.mark.parametrize("key", ["id", "parent", "trunk"])
def test_stored_config_with_a_path_in_place_of_a_run_id_is_rejected(tmp_path, key, name):
    folder = tmp_path / "runs" / ID
    run_directories.write_run_config(folder.parent, RunConfig(id=ID, config={"seed": 0, "parent": None}))
    spec = json.loads((folder / "spec.json").read_text())
    changes = {"id": {"id": name}, "parent": {"config": {"seed": 0, "parent": name}}}
    changes["trunk"] = {"use": {"trunk": {"id": name, "step": 1}}}
    (folder / "spec.json").write_text(json.dumps({**spec, **changes[key]}))
    with pytest.raises(InvalidConfig, match="a path is not allowed"):
        run_directories.load_run_config(folder)


def test_references_to_runs_are_ids(tmp_path):
    with pytest.raises(ValidationError):
        run_references.create_reference("t", "t", "c", tmp_path, ["../other"])


@pytest.mark.parametrize("name", ["", "log.txt", "spec.json"])
def test_run_directory_with_a_link_out_of_it_is_not_trained(tmp_path, name):
    (tmp_path / "outside").mkdir()
    folder = tmp_path / "runs" / ID
    (folder if name else folder.parent).mkdir(parents=True)
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidConfig, match="leads out of the folder by a link"):
        ownership.require_file_paths(folder)


def test_runs_are_not_moved_out_of_a_store_by_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    run_directories.write_run_config(tmp_path / "runs", RunConfig(id=ID, config={"seed": 0}))
    (tmp_path / "runs" / ownership.REMOVAL_FOLDER).symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidConfig, match="leads out of the folder by a link"):
        ownership.remove_run(tmp_path / "runs" / ID)
    assert (tmp_path / "runs" / ID / "spec.json").exists()
