"""Input validation: data are regular files, and a parent is the id of a run."""

import os
import socket
import time
from pathlib import Path

import pytest

from attnlab.cli.main import main
from attnlab.errors import InvalidConfig
from attnlab.store.guards import inputs
from attnlab.sweep.plan.checker import Checker

TEXT_TASK = {"_target_": "attnlab.data.text.file_text"}


@pytest.fixture
def folder_of_special_files(tmp_path, monkeypatch):
    """A working directory with one special file of each kind."""
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
def test_special_files_as_data_are_rejected_at_once_in_one_line(
    folder_of_special_files, capfd, monkeypatch, path, kind, verb
):
    monkeypatch.setattr("sys.argv", ["attnlab"])
    start_time = time.monotonic()
    assert main([*verb, "data=text", f"data.path={path}", "size=debug", "logger=none"]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"attnlab: data.path={path} is {kind}: give a regular file")
    assert error.count("\n") == 1
    assert time.monotonic() - start_time < 5  # it waited for no writer and read no device
    assert not Path("runs").exists()


def test_a_file_or_folder_in_place_of_an_option_of_data_names_the_command(
    folder_of_special_files, capfd, monkeypatch
):
    monkeypatch.setattr("sys.argv", ["attnlab"])
    Path("book.txt").write_text("one")
    for word, usage in {
        "data=book.txt": "data=text data.path=book.txt",
        f"data={Path('book.txt').absolute()}": f"data=text data.path={Path('book.txt').absolute()}",
        "data=folder": "data=hub data.name=folder",
    }.items():
        assert main(["plan", word, "size=debug"]) == 2
        error = capfd.readouterr().err
        assert error == f"attnlab: {word} is no option, but it exists here: use {usage}\n"
    assert main(["plan", "data=text", "data.path=folder", "size=debug"]) == 2
    error = capfd.readouterr().err
    assert "the text files below it are data=text data.path='folder/**/*'" in error
    assert "a data set is data=hub data.name=folder" in error


def test_dataset_names_lists_and_folders_are_validated_too(folder_of_special_files):
    (folder_of_special_files / "folder" / "deep").mkdir()
    os.mkfifo(folder_of_special_files / "folder" / "deep" / "rows.txt")
    for data in ({"name": "folder"}, {"path": "pipe", "task": TEXT_TASK}, {"files": ["folder", "pipe"]}):
        with pytest.raises(InvalidConfig, match=r"is a pipe: give a regular file$"):
            inputs.validate_inputs({"data": data})
    inputs.validate_inputs({"data": {"cache": "folder", "path": "folder", "task": {"_target_": "mine.Data"}}})
    inputs.validate_inputs({"data": {"path": "no such file", "task": TEXT_TASK, "seed": 3, "name": None}})


def test_missing_data_files_are_rejected_before_the_trainer_is_imported(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["attnlab"])
    monkeypatch.setattr(Checker, "_send_request", lambda *_: pytest.fail("it waits for the imports"))
    message = "attnlab: data.path=nope.txt: No such file or directory; give a UTF-8 text file\n"
    for line in (["size=debug"], ["+experiment=gqa_vs_mha", "size=mini"]):
        assert main(["plan", *line, "data=text", "data.path=nope.txt", "logger=none"]) == 2
        assert capfd.readouterr().err.splitlines(keepends=True)[-1] == message
    typo = ["plan", "heads=gqaa", "data=text", "data.path=nope.txt"]
    assert main(typo) == 2
    assert "heads has no option gqaa" in capfd.readouterr().err
    inputs.require_data_files({"data": {"path": "nope.txt", "task": {"_target_": "mine.Data"}}})
    inputs.require_data_files({"data": {"path": "nope*.txt", "task": TEXT_TASK}})


@pytest.mark.parametrize("parent", ["../outside", "/tmp/x", "..", "a/b", "runs/../x"])
def test_a_parent_is_a_run_id_and_no_path(parent):
    with pytest.raises(InvalidConfig, match=r"a path is not allowed: give the id of a run in paths.runs"):
        inputs.validate_inputs({"parent": parent})
    inputs.validate_inputs({"parent": "abc0123456789def"})
    inputs.validate_inputs({"parent": None})


def test_a_pipe_in_a_checkpoint_folder_is_rejected(folder_of_special_files, capfd):
    (folder_of_special_files / "folder" / "config.json").write_text("{}")
    (folder_of_special_files / "folder" / "tokenizer.json").write_text("{}")
    os.mkfifo(folder_of_special_files / "folder" / "model.safetensors")
    for verb in (["inspect", "text=a"], ["generate", "prompt=a"]):
        assert main([*verb, "checkpoint=folder"]) == 2
        assert "checkpoint=folder: model.safetensors is a pipe" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["../outside", "..", "/", "../runs/abc"])
def test_a_run_is_found_by_its_name_and_not_by_a_path(tmp_path, monkeypatch, capfd, name):
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/abc", "outside"):
        Path(folder).mkdir(parents=True)
        Path(folder, "spec.json").write_text("{}")
    for verb in (["inspect", "text=a"], ["generate", "prompt=a"]):
        assert main([*verb, f"run={name}"]) == 2
        assert f"run={name}: no runs in" in capfd.readouterr().err


def test_a_pipe_among_configs_is_rejected_and_does_not_break_the_list(
    folder_of_special_files, capfd, monkeypatch
):
    monkeypatch.setattr("sys.argv", ["attnlab"])
    (folder_of_special_files / "folder" / "heads").mkdir()
    os.mkfifo(folder_of_special_files / "folder" / "heads" / "odd.yaml")
    assert main(["list", "--config-dir", "folder"]) == 0
    assert "gqa_vs_mha" in capfd.readouterr().out
    assert main(["--config-dir", "folder", "heads=odd"]) == 2
    assert "odd.yaml is a pipe: use a regular file" in capfd.readouterr().err
    assert main(["list", "--config-dir", "pipe"]) == 2
    assert main(["--config-dir", "pipe", "heads=mha", "no.such=key"]) == 2
