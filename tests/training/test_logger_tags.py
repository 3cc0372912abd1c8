"""The tags of a W&B run that several experiments use, read back from its files."""

import json
import struct
import subprocess
import sys

import pytest
from processes import wait_until
from wandb_files import records
from wandb_server import Server

from attnlab.sweep.execute import sending
from attnlab.training.loggers import files, tags
from attnlab.training.loggers.unsent import note
from attnlab.training.loggers.wandb import Wandb

ID = "abcd0123abcd0123"


@pytest.fixture
def stored(tmp_path):
    """A run's folder with a W&B run in it, as one experiment has left it."""
    wandb = Wandb("offline", "attnlab", None, report=False, workspace=False, patience=20)
    folder = tmp_path / "runs" / ID
    run = wandb.open(
        folder, id=ID, name="gqa/seed=0", group="first", tags=["first", "gqa"], config={"dim": 16}
    )
    run.log({"val/loss": 2.0})
    run.finish()
    [file] = folder.rglob("*.wandb")
    wait_until(lambda: file.stat().st_size > 13 and any(each.HasField("exit") for each in records(file)))
    return folder


def told(folder):
    """Of each W&B file of a run its name, group, config and tags, and how many rows it has, by time."""
    rows = []
    for file in sorted(folder.glob(f"wandb/offline-run-*-{ID}/run-{ID}.wandb"), key=lambda file: str(file)):
        found = list(records(file))
        run = next(record.run for record in found if record.HasField("run"))
        config = {item.key for item in run.config.update}
        history = sum(record.HasField("history") for record in found)
        rows.append((run.run_id, run.display_name, run.run_group, "dim" in config, set(run.tags), history))
    return rows


def test_a_second_experiment_adds_its_tag_and_nothing_else(stored):
    was = {file: file.read_bytes() for file in stored.rglob("*.wandb")}
    assert tags.add(stored, "second")
    assert tags.add(stored, "third")
    assert not tags.add(stored, "second")
    assert not tags.add(stored, "first")
    first, second, third = told(stored)
    assert first == (ID, "gqa/seed=0", "first", True, {"first", "gqa"}, 1)
    assert second == (*first[:4], {"first", "gqa", "second"}, 0)
    assert third == (*first[:4], {"first", "gqa", "second", "third"}, 0)
    assert {file: file.read_bytes() for file in was} == was


def test_a_run_without_w_and_b_gets_no_tag(tmp_path):
    (tmp_path / ID).mkdir()
    assert not tags.add(tmp_path / ID, "second")
    assert list((tmp_path / ID).iterdir()) == []


def test_messages_are_written_as_w_and_b_writes_them(stored):
    from wandb.proto import wandb_internal_pb2 as messages

    class Raw:
        """A message as their process has encoded it."""

        def __init__(self, content):
            self.content = content

        def SerializeToString(self):  # noqa: N802
            return self.content

    (file,) = stored.rglob("*.wandb")
    theirs = file.read_bytes()
    whole = list(files.records(theirs))
    length = struct.unpack("<H", theirs[11:13])[0]
    assert files.encoded([Raw(theirs[14 : 14 + length])]) == theirs[: 14 + length]  # checksum and all
    long = messages.Record()
    long.run.notes = "x" * 100_000  # more than three blocks
    many = [long, *whole, long]
    assert list(files.records(files.encoded(many))) == many


@pytest.mark.rare
def test_w_and_b_is_sent_the_tags_and_keeps_its_rows(stored, monkeypatch):
    with Server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
        for tag in (None, "second"):
            if tag:
                tags.add(stored, tag)
            note(stored / "wandb", "has not been sent")
            new = [str(file) for file in sending.unsent(stored / "wandb", ID)]
            assert len(new) == 1
            task = {"files": new, "live": False, "own": str(stored), "project": "attnlab", "entity": "me"}
            line = [sys.executable, "-m", sending.MODULE, json.dumps(task)]
            sent = subprocess.run(line, cwd=stored, capture_output=True, text=True, timeout=120)
            assert sent.returncode == 0, sent.stderr
    assert [row["val/loss"] for row in server.history(ID)] == [2.0]
    assert server.summaries[ID]["val/loss"] == 2.0
    sent = [set(run["tags"]) for run in server.runs if run.get("tags")]
    assert sent[-1] == {"first", "gqa", "second"}, server.runs
