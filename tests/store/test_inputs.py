"""What data and parents may be: a file, which ends and can be read again, and the name of a run."""

import os
import socket
import time
from pathlib import Path

import pytest

from attnlab.cli.main import main
from attnlab.errors import Refused
from attnlab.store.guards import inputs

OURS = {"_target_": "attnlab.data.text.file"}


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """A folder with one of each kind that is no file; to be in."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("folder").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("pipe", "a pipe"),
        ("socket", "a socket"),
        ("folder", "a folder"),
        ("/dev/zero", "a device"),
        ("/dev/full", "a device"),
    ],
)
@pytest.mark.parametrize("verb", [["plan"], []])
def test_data_that_are_no_file_are_refused_in_a_line_and_at_once(odd, capfd, monkeypatch, path, kind, verb):
    monkeypatch.setattr("sys.argv", ["attnlab"])
    began = time.monotonic()
    assert main([*verb, "data=text", f"data.path={path}", "size=debug", "logger=none"]) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"attnlab: data.path={path} is {kind}: give a file")
    assert said.count("\n") == 1
    assert time.monotonic() - began < 5  # and nobody has waited for a writer, or read a device
    assert not Path("runs").exists()


def test_names_lists_and_folders_of_the_hub_are_looked_at_too(odd):
    (odd / "folder" / "deep").mkdir()
    os.mkfifo(odd / "folder" / "deep" / "rows.txt")
    for data in ({"name": "folder"}, {"path": "pipe", "task": OURS}, {"files": ["folder", "pipe"]}):
        with pytest.raises(Refused, match=r"is a pipe: give a file, which can be read again$"):
            inputs.check({"data": data})
    inputs.check({"data": {"cache": "folder", "path": "folder", "task": {"_target_": "mine.Data"}}})
    inputs.check({"data": {"path": "no such file", "task": OURS, "seed": 3, "name": None}})


@pytest.mark.parametrize("parent", ["../outside", "/tmp/x", "..", "a/b", "runs/../x"])
def test_a_parent_is_a_name_and_never_leads_out_of_the_store(parent):
    with pytest.raises(Refused, match=r"give the id of a run in the store, which is no path"):
        inputs.check({"parent": parent})
    inputs.check({"parent": "abc0123456789def"})
    inputs.check({"parent": None})


def test_a_pipe_in_a_checkpoints_folder_is_refused(odd, capfd):
    (odd / "folder" / "config.json").write_text("{}")
    (odd / "folder" / "tokenizer.json").write_text("{}")
    os.mkfifo(odd / "folder" / "model.safetensors")
    for verb in (["inspect", "text=a"], ["generate", "prompt=a"]):
        assert main([*verb, "checkpoint=folder"]) == 2
        assert "checkpoint=folder: model.safetensors is a pipe" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["../outside", "..", "/", "../runs/abc"])
def test_a_run_is_looked_up_by_its_name_and_never_as_a_path(tmp_path, monkeypatch, capfd, name):
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/abc", "outside"):
        Path(folder).mkdir(parents=True)
        Path(folder, "spec.json").write_text("{}")
    for verb in (["inspect", "text=a"], ["generate", "prompt=a"]):
        assert main([*verb, f"run={name}"]) == 2
        assert f"run={name}: no runs of that name" in capfd.readouterr().err


def test_a_pipe_among_configs_is_refused_and_hides_nothing_from_the_list(odd, capfd, monkeypatch):
    monkeypatch.setattr("sys.argv", ["attnlab"])
    (odd / "folder" / "heads").mkdir()
    os.mkfifo(odd / "folder" / "heads" / "odd.yaml")
    assert main(["list", "--config-dir", "folder"]) == 0
    assert "gqa_vs_mha" in capfd.readouterr().out
    assert main(["--config-dir", "folder", "heads=odd"]) == 2
    assert "odd.yaml is a pipe: a config is a file" in capfd.readouterr().err
    assert main(["list", "--config-dir", "pipe"]) == 2
    assert main(["--config-dir", "pipe", "heads=mha", "no.such=key"]) == 2
