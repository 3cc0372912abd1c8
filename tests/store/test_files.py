import os

import pytest

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
