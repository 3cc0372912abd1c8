"""One process per run: through a lock on one host, through a heartbeat that is watched across hosts."""

import json
import threading
import time

import pytest
from filelock import Timeout
from processes import wait_until

from attnlab.store import files, lease, runs
from attnlab.store.lease import owning
from attnlab.store.schema import RunSpec
from attnlab.sweep.execute.exits import record_lost
from attnlab.sweep.status import states

OTHER_HOST = "the thread that is another host"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(lease, "BEAT", 0.05)
    monkeypatch.setattr(lease, "STALE", 0.5)


def beats(folder, host="elsewhere", token="theirs", time_=None):
    told = {"host": host, "pid": 1, "time": time_ or time.time(), "token": token}
    beside = folder / "owner.tmp"
    beside.write_text(json.dumps(told))
    beside.replace(folder / "owner.json")  # at once, as `lease` does: who reads it finds a whole one


@pytest.fixture
def other_host(tmp_path):
    """Another host that trains the run until it is told to stop, and leaves its last heartbeat behind."""
    over = threading.Event()

    def live():
        while not over.wait(0.05):
            beats(tmp_path)

    beats(tmp_path)
    thread = threading.Thread(target=live, name=OTHER_HOST)
    thread.start()
    yield over
    over.set()
    thread.join()


def test_a_heartbeat_of_this_process_beats_without_help_and_goes_with_it(tmp_path):
    with owning(tmp_path):
        first = json.loads((tmp_path / "owner.json").read_text())
        wait_until(lambda: json.loads((tmp_path / "owner.json").read_text())["time"] > first["time"])
        second = json.loads((tmp_path / "owner.json").read_text())
    assert (first["host"], first["token"]) == (lease.HOST, second["token"])
    assert not (tmp_path / "owner.json").exists()
    assert not list(tmp_path.glob(".owner.*"))


def test_a_run_that_another_host_trains_is_left_alone(tmp_path, other_host):
    with pytest.raises(Timeout), owning(tmp_path, patience=1):
        pass
    assert json.loads((tmp_path / "owner.json").read_text())["token"] == "theirs"


def test_what_another_host_left_is_taken_over_once_it_has_been_still(tmp_path, other_host):
    threading.Timer(0.3, other_host.set).start()
    began = time.monotonic()
    with owning(tmp_path):
        assert json.loads((tmp_path / "owner.json").read_text())["host"] == lease.HOST
    assert time.monotonic() - began > 0.75  # it was alive, and then still, for that long


def test_what_a_process_of_this_host_left_is_taken_over_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "STALE", 1000)
    beats(tmp_path, host=lease.HOST)
    with owning(tmp_path, patience=0):
        pass


def test_a_death_on_another_host_is_recorded_once_its_heartbeat_is_still_and_not_before(tmp_path, other_host):
    runs.write_spec(tmp_path.parent, RunSpec(id=tmp_path.name, config={"seed": 3}))
    assert not record_lost(tmp_path, "killed", "the machine was lost", time.time())
    other_host.set()
    wait_until(lambda: OTHER_HOST not in {thread.name for thread in threading.enumerate()})
    assert record_lost(tmp_path, "killed", "the machine was lost", time.time())
    assert runs.record(tmp_path).status == "killed"


def test_the_clock_of_the_other_host_does_not_matter_to_who_owns(tmp_path):
    beats(tmp_path, time_=time.time() + 1e6)
    with owning(tmp_path):
        pass


class Ended(BaseException):
    """What ends a process, in a test that has only one."""


def test_who_was_taken_over_ends_with_its_next_beat(tmp_path, monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(lease.os, "_exit", ended.append)
    with owning(tmp_path):
        beats(tmp_path)
        wait_until(lambda: ended)
        beats(tmp_path)
    assert set(ended) == {lease.TAKEN_OVER}
    assert f"{tmp_path.name}: taken over by elsewhere, pid 1\n" in capsys.readouterr().err
    assert (tmp_path / "owner.json").exists()  # it is the other's


@pytest.mark.parametrize("over", [False, True], ids=["still trained", "ended since"])
def test_who_was_taken_over_writes_nothing_any_more(tmp_path, monkeypatch, capsys, over):
    def end(status):
        raise Ended(status)

    def save():
        with files.replacing(tmp_path / "last.ckpt") as temporary:
            temporary.write_text("written while the other took over")
            beats(tmp_path)
            if over:
                (tmp_path / "owner.json").unlink()
                (tmp_path / "run.json").write_text("theirs")

    monkeypatch.setattr(lease, "BEAT", 1000)  # as of a process that has just been continued
    monkeypatch.setattr(lease.os, "_exit", end)
    runs.write_spec(tmp_path.parent, RunSpec(id=tmp_path.name, config={"seed": 3}))
    with owning(tmp_path):
        (tmp_path / "last.ckpt").write_text("ours")
        with pytest.raises(Ended):
            save()
        with pytest.raises(Ended):
            runs.write_failure(tmp_path, "crashed", "ours", time.time())
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept["last.ckpt"] == "ours"
    assert kept.get("run.json") == ("theirs" if over else None)
    assert not list(tmp_path.glob(".*"))
    assert capsys.readouterr().err.startswith(f"{tmp_path.name}: taken over by ")


@pytest.mark.parametrize(("age", "word"), [(0, "running"), (1e4, "to train")])
def test_status_and_clean_see_what_another_host_trains(tmp_path, age, word):
    (tmp_path / "lock").touch()
    beats(tmp_path, time_=time.time() - age)
    assert states.state(tmp_path).word == word
