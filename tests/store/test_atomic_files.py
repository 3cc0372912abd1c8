"""Atomic file writes and their errors."""

import errno
import os

import pytest

from attnlab.errors import describe_disk_full
from attnlab.store import atomic_files


@pytest.fixture
def fsync_calls(monkeypatch):
    """The calls of `os.fsync` so far."""
    calls = []
    monkeypatch.setattr(os, "fsync", calls.append)
    return calls


def write_half(path):
    path.write_text("half")
    raise KeyError


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_completely_or_not_at_all(tmp_path, sync):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(KeyError), atomic_files.replace_atomically(path, sync=sync) as temporary:
        write_half(temporary)
    assert path.read_text() == "old"
    with atomic_files.replace_atomically(path, sync=sync) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(("sync", "times"), [(True, 2), (False, 0)])
def test_fsync_runs_only_if_requested(tmp_path, fsync_calls, sync, times):
    with atomic_files.replace_atomically(tmp_path / "a", sync=sync) as temporary:
        temporary.write_text("x")
    assert len(fsync_calls) == times


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space"), RuntimeError("unexpected pos 64 vs 0")])
def test_a_full_disk_is_reported_with_the_path(tmp_path, monkeypatch, error):
    """torch reports a failed write without its cause, so the disk is tried."""

    def raise_enospc(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "last.ckpt"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", raise_enospc)
    with (
        pytest.raises(OSError, match="no space left on device") as raised,
        atomic_files.replace_atomically(path),
    ):
        raise error
    assert describe_disk_full(raised.value) == f"no space left on device: {path}"
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("last.ckpt", "old")]


def test_other_errors_are_not_reported_as_a_full_disk(tmp_path):
    with pytest.raises(RuntimeError, match="shapes"), atomic_files.replace_atomically(tmp_path / "last.ckpt"):
        raise RuntimeError("shapes differ")
    assert describe_disk_full(OSError(errno.EACCES, "denied")) is None
