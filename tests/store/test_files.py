import errno
import os

import pytest

from attnlab.errors import no_space
from attnlab.store import files


@pytest.fixture
def synced(monkeypatch):
    """The number of files and folders that were synced so far."""
    calls = []
    monkeypatch.setattr(os, "fsync", calls.append)
    return calls


def write_half(path):
    path.write_text("half")
    raise KeyError


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, sync):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(KeyError), files.replacing(path, sync=sync) as temporary:
        write_half(temporary)
    assert path.read_text() == "old"
    with files.replacing(path, sync=sync) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(("sync", "times"), [(True, 2), (False, 0)])
def test_only_what_is_worth_something_after_a_power_cut_is_waited_for(tmp_path, synced, sync, times):
    with files.replacing(tmp_path / "a", sync=sync) as temporary:
        temporary.write_text("x")
    assert len(synced) == times


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space"), RuntimeError("unexpected pos 64 vs 0")])
def test_what_could_not_be_written_for_want_of_space_says_so_with_its_path(tmp_path, monkeypatch, error):
    """Torch tells of a write that failed, and not why: the disk is asked."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "last.ckpt"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left on device") as told, files.replacing(path):
        raise error
    assert no_space(told.value) == f"no space left on device: {path}"
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("last.ckpt", "old")]


def test_another_failure_is_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(RuntimeError, match="shapes"), files.replacing(tmp_path / "last.ckpt"):
        raise RuntimeError("shapes differ")
    assert no_space(OSError(errno.EACCES, "denied")) is None
