"""Lease: one process per run, by a lock on one host and a watched heartbeat across hosts."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from filelock import Timeout
from processes import change_identity, wait_until
from stored_runs import make_spec, write_spec

from attnlab.store import atomic_files, lease, process_identity, run_directories
from attnlab.store.lease import hold_lease
from attnlab.sweep.execute.exit_records import record_lost_run
from attnlab.sweep.status import states

IDENTIFY = """
import time
from attnlab.store.process_identity import identify_process
print(identify_process(), flush=True)
time.sleep(1000)
"""
OTHER_HOST = "the thread that is another host"


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.5)


def write_heartbeat(folder, host="elsewhere", token="theirs", time_=None, process=""):
    owner = {"host": host, "pid": 1, "process": process, "time": time_ or time.time(), "token": token}
    temporary = folder / "owner.tmp"
    temporary.write_text(json.dumps(owner))
    temporary.replace(folder / "owner.json")  # atomically, as `lease` does


@pytest.fixture
def folder(tmp_path):
    return write_spec(tmp_path, make_spec({"seed": 3}))


@pytest.fixture
def other_host(folder):
    """Simulate a host that trains the run until the event is set, and leaves its last heartbeat."""
    stop = threading.Event()

    def live():
        while not stop.wait(0.05):
            write_heartbeat(folder)

    write_heartbeat(folder)
    thread = threading.Thread(target=live, name=OTHER_HOST)
    thread.start()
    yield stop
    stop.set()
    thread.join()


def test_heartbeat_is_renewed_and_removed_at_the_end(tmp_path):
    with hold_lease(tmp_path):
        first = json.loads((tmp_path / "owner.json").read_text())
        wait_until(lambda: json.loads((tmp_path / "owner.json").read_text())["time"] > first["time"])
        second = json.loads((tmp_path / "owner.json").read_text())
    assert (first["host"], first["token"]) == (lease.HOST, second["token"])
    assert not (tmp_path / "owner.json").exists()
    assert not list(tmp_path.glob(".owner.*"))


def test_lease_of_a_live_host_is_not_taken(folder, other_host):
    with pytest.raises(Timeout), hold_lease(folder, timeout_seconds=1):
        pass
    assert json.loads((folder / "owner.json").read_text())["token"] == "theirs"


def test_stale_lease_of_another_host_is_taken_over(folder, other_host):
    threading.Timer(0.3, other_host.set).start()
    start_time = time.monotonic()
    with hold_lease(folder):
        assert json.loads((folder / "owner.json").read_text())["host"] == lease.HOST
    assert time.monotonic() - start_time > 0.75  # 0.3 s alive and 0.5 s stale


@pytest.fixture
def dead_process():
    """The identity of a process that has ended; its parent has not waited for it yet."""
    process = subprocess.Popen([sys.executable, "-c", IDENTIFY], stdout=subprocess.PIPE, text=True)
    identity = process.stdout.readline().strip()
    assert process_identity.get_process_state(identity) == "running"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield identity
    process.wait()
    process.stdout.close()


def test_lease_of_a_process_that_ended_here_is_taken_over_at_once(tmp_path, monkeypatch, dead_process):
    monkeypatch.setattr(lease, "STALE_SECONDS", 1000)
    for identity in (dead_process, change_identity(start="1")):
        assert process_identity.get_process_state(identity) == "ended"
        write_heartbeat(tmp_path, process=identity)
        assert not lease.is_held_on_other_host(tmp_path)
        with hold_lease(tmp_path, timeout_seconds=0):
            pass


@pytest.mark.parametrize(
    "changes",
    [{"boot_id": "another"}, {"namespace": "1"}, {"pid": "x"}, None],
    ids=["another machine", "another container", "broken", "no identity"],
)
def test_process_of_the_same_host_name_and_pid_elsewhere_keeps_its_lease(tmp_path, changes):
    identity = "" if changes is None else change_identity(**changes, start="1")
    stop = threading.Event()

    def live():
        while not stop.wait(0.05):
            write_heartbeat(tmp_path, host=lease.HOST, process=identity)

    write_heartbeat(tmp_path, host=lease.HOST, process=identity)
    thread = threading.Thread(target=live)
    thread.start()
    try:
        assert lease.is_held_on_other_host(tmp_path)
        with pytest.raises(Timeout), hold_lease(tmp_path, timeout_seconds=1):
            pass
    finally:
        stop.set()
        thread.join()
    assert json.loads((tmp_path / "owner.json").read_text())["token"] == "theirs"


def test_running_process_keeps_its_lease_without_a_heartbeat_for_observers(tmp_path):
    write_heartbeat(tmp_path, process=process_identity.identify_process())
    assert lease.is_held_on_other_host(tmp_path)


def test_process_without_proc_has_no_identity(monkeypatch):
    identity = process_identity.identify_process()
    monkeypatch.setattr(os, "readlink", lambda path: "1")  # the /proc of the host
    assert process_identity.identify_process() == ""
    assert process_identity.get_process_state(identity) == "unknown"


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{", b"[1]", b"3", b'{"host": 3, "time": "now"}', b"[" * 100_000]
)
def test_invalid_heartbeat_becomes_stale(tmp_path, content):
    (tmp_path / "owner.json").write_bytes(content)
    assert not lease.is_held_on_other_host(tmp_path)
    with hold_lease(tmp_path):
        assert lease.describe_owner(tmp_path).startswith(lease.HOST)


def test_lost_run_is_recorded_only_after_its_heartbeat_is_stale(folder, other_host):
    assert not record_lost_run(folder, "killed", "the machine was lost", time.time())
    other_host.set()
    wait_until(lambda: OTHER_HOST not in {thread.name for thread in threading.enumerate()})
    assert record_lost_run(folder, "killed", "the machine was lost", time.time())
    assert run_directories.load_run_result(folder).status == "killed"


def test_lease_ignores_the_clock_of_other_hosts(tmp_path):
    write_heartbeat(tmp_path, time_=time.time() + 1e6)
    with hold_lease(tmp_path):
        pass


class ProcessExit(BaseException):
    """Stands in for the end of the process."""


def test_process_exits_at_the_heartbeat_after_losing_its_lease(tmp_path, monkeypatch, capsys):
    exit_codes = []
    monkeypatch.setattr(lease.os, "_exit", exit_codes.append)
    with hold_lease(tmp_path):
        write_heartbeat(tmp_path)
        wait_until(lambda: exit_codes)
        write_heartbeat(tmp_path)
    assert set(exit_codes) == {lease.TAKEN_OVER_EXIT_CODE}
    assert f"{tmp_path.name}: taken over by elsewhere, pid 1\n" in capsys.readouterr().err
    assert (tmp_path / "owner.json").exists()  # it belongs to the other host


@pytest.mark.parametrize("over", [False, True], ids=["still trained", "ended since"])
def test_process_writes_nothing_after_losing_its_lease(folder, monkeypatch, capsys, over):
    def end(status):
        raise ProcessExit(status)

    def save():
        with atomic_files.replace_atomically(folder / "last.ckpt") as temporary:
            temporary.write_text("written while the other took over")
            write_heartbeat(folder)
            if over:
                (folder / "owner.json").unlink()
                (folder / "run.json").write_text("theirs")

    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 1000)  # like a process resumed after suspension
    monkeypatch.setattr(lease.os, "_exit", end)
    with hold_lease(folder):
        (folder / "last.ckpt").write_text("ours")
        with pytest.raises(ProcessExit):
            save()
        with pytest.raises(ProcessExit):
            run_directories.write_failure(folder, "crashed", "ours", time.time())
    contents = {path.name: path.read_text() for path in folder.iterdir()}
    assert contents["last.ckpt"] == "ours"
    assert contents.get("run.json") == ("theirs" if over else None)
    assert not list(folder.glob(".*"))
    assert capsys.readouterr().err.startswith(f"{folder.name}: taken over by ")


@pytest.mark.parametrize(("age", "word"), [(0, "running"), (1e4, "to train")])
def test_status_shows_runs_of_other_hosts(tmp_path, age, word):
    (tmp_path / "lock").touch()
    write_heartbeat(tmp_path, time_=time.time() - age)
    assert states.load_run_state(tmp_path).status == word


def test_process_of_another_user_is_running_and_a_zombie_is_not(monkeypatch):
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert not process_identity.is_process_running(zombie.pid)
    zombie.wait()

    def forbid(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbid)
    assert process_identity.is_process_running(1)
