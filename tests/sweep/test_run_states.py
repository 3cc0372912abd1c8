"""Run states, loaded from run directories and locks."""

import json

import pytest
from filelock import FileLock

from attnlab.store import file_names, run_directories
from attnlab.store.guards import digests
from attnlab.sweep.status.states import load_run_state

PROGRESS = {"step": 3, "max_steps": 12, "loss": 2.5, "time": 0}


def make_content(**changes):
    common = {"schema": 2, "id": "run", "status": "done", "seed": 0, "config": {}, "failure": None}
    return {**common, "metrics": {"val/loss": 1.25}, **changes}


@pytest.mark.parametrize(
    ("files", "locked", "text", "fraction"),
    [
        ({}, False, "to train", 0.0),
        ({"progress.json": PROGRESS}, True, "running  step 3/12 loss 2.5000", 0.25),
        ({}, True, "running", 0.0),
        ({"progress.json": PROGRESS, "last.ckpt": 1}, False, "stopped  step 3/12", 0.25),
        ({"progress.json": PROGRESS}, False, "to train", 0.0),
        ({"run.json": make_content()}, False, "done  val/loss 1.2500", 1.0),
        ({"run.json": make_content(status="crashed", failure={"message": "KeyError: x"})}, False,
         "crashed  KeyError: x", 1.0),
    ],
)  # fmt: skip
def test_run_state_follows_from_the_run_directory_and_its_lock(tmp_path, files, locked, text, fraction):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    lock = FileLock(folder / "lock")
    if locked:
        lock.acquire()
    state = load_run_state(folder)
    lock.release()
    assert (str(state), state.fraction_done) == (text, fraction)


def test_ended_state_is_read_again_only_after_its_files_change(tmp_path, monkeypatch):
    folder, read, reads = tmp_path / "run", run_directories.load_run_result, []
    folder.mkdir()
    curves = folder / file_names.CURVES_FILE
    curves.write_bytes(b"curves")
    ended = make_content(files=digests.hash_run_files(folder))
    (folder / "run.json").write_text(json.dumps(ended))
    monkeypatch.setattr(run_directories, "load_run_result", lambda path: reads.append(path) or read(path))

    def load_counted():
        """Return the state and whether a result was read for it."""
        before = len(reads)
        return str(load_run_state(folder)), len(reads) > before

    assert load_counted() == ("done  val/loss 1.2500", True)
    assert load_counted() == ("done  val/loss 1.2500", False)
    (folder / "run.json").write_text(json.dumps({**ended, "metrics": {"val/loss": 1.5}}))
    assert load_counted() == ("done  val/loss 1.5000", True)
    curves.write_bytes(b"shorter")
    assert load_counted() == (
        f"to train  {file_names.CURVES_FILE} is truncated or was changed after the run wrote it",
        True,
    )
    (folder / "run.json").unlink()
    assert load_counted() == ("to train", True)
