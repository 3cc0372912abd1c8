import json

import pytest
from filelock import FileLock

from attnlab.store import runs as store
from attnlab.store.guards import digests
from attnlab.sweep.status.states import state

PROGRESS = {"step": 3, "max_steps": 12, "loss": 2.5, "time": 0}


def record(**changes):
    common = {"schema": 2, "id": "run", "status": "done", "seed": 0, "config": {}, "failure": None}
    return {**common, "metrics": {"val/loss": 1.25}, **changes}


@pytest.mark.parametrize(
    ("files", "locked", "told", "done"),
    [
        ({}, False, "to train", 0.0),
        ({"progress.json": PROGRESS}, True, "running  step 3/12 loss 2.5000", 0.25),
        ({}, True, "running", 0.0),
        ({"progress.json": PROGRESS, "last.ckpt": 1}, False, "stopped  step 3/12", 0.25),
        ({"progress.json": PROGRESS}, False, "to train", 0.0),
        ({"run.json": record()}, False, "done  val/loss 1.2500", 1.0),
        ({"run.json": record(status="crashed", failure={"message": "KeyError: x"})}, False,
         "crashed  KeyError: x", 1.0),
    ],
)  # fmt: skip
def test_a_state_is_read_from_the_folder_and_its_lock(tmp_path, files, locked, told, done):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    lock = FileLock(folder / "lock")
    if locked:
        lock.acquire()
    found = state(folder)
    lock.release()
    assert (str(found), found.done) == (told, done)


def test_whoever_watches_reads_what_has_ended_once_and_again_when_it_changes(tmp_path, monkeypatch):
    folder, read, reads = tmp_path / "run", store.record, []
    folder.mkdir()
    curves = folder / digests.CURVES
    curves.write_bytes(b"curves")
    ended = record(files=digests.of_files(folder))
    (folder / "run.json").write_text(json.dumps(ended))
    monkeypatch.setattr(store, "record", lambda path: reads.append(path) or read(path))

    def told():
        before = len(reads)
        return str(state(folder)), len(reads) > before

    assert told() == ("done  val/loss 1.2500", True)
    assert told() == ("done  val/loss 1.2500", False)
    (folder / "run.json").write_text(json.dumps({**ended, "metrics": {"val/loss": 1.5}}))
    assert told() == ("done  val/loss 1.5000", True)
    curves.write_bytes(b"shorter")
    assert told() == (f"to train  {digests.CURVES} is not what the run wrote: cut short or changed", True)
    (folder / "run.json").unlink()
    assert told() == ("to train", True)
