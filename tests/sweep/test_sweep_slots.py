from multiprocessing import get_all_start_methods

import pytest
from processes import wait_until

from attnlab.sweep.execute import process, slots
from attnlab.sweep.plan import fork_server


@pytest.mark.parametrize(
    ("visible", "found"),
    [("0,1", ["0", "1"]), ("3", ["3"]), ("GPU-abc, 5", ["GPU-abc", "5"]), ("2,-1,3", ["2"]), ("", [])],
)
def test_the_visible_gpus_are_those_of_the_environment(monkeypatch, visible, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert slots.visible_gpus() == found


def test_one_slot_per_gpu_each_seeing_its_own_only(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    monkeypatch.setattr(slots, "_cores", lambda: 13)
    found = slots.slots("NVIDIA H200")
    assert [slot.environment()["CUDA_VISIBLE_DEVICES"] for slot in found] == ["3", "GPU-abc"]
    assert {slot.threads for slot in found} == {6}


def test_one_slot_per_core_with_one_thread_each(monkeypatch):
    monkeypatch.delenv("ATTNLAB_COMMAND", raising=False)  # of an earlier command in this process
    monkeypatch.setattr(slots, "_cores", lambda: 5)
    found = slots.slots("cpu")
    assert [slot.threads for slot in found] == [1] * 5
    assert found[0].environment() == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert [slot.threads for slot in slots.slots("cpu", 2)] == [2, 2]


def test_small_runs_share_a_gpu_and_a_large_one_takes_several(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    monkeypatch.setattr(slots, "_cores", lambda: 13)
    shared = slots.slots("NVIDIA H200", per_gpu=3)
    assert [slot.gpu for slot in shared] == ["3", "GPU-abc"] * 3
    assert {slot.threads for slot in shared} == {2}
    whole = slots.together(slots.slots("NVIDIA H200"))
    assert whole.environment()["CUDA_VISIBLE_DEVICES"] == "3,GPU-abc"
    assert slots.together(slots.slots("cpu", 2)).gpu is None


WAITS = """
import time
from pathlib import Path


def main(arguments):
    print("here", flush=True)
    while not Path(arguments[0]).exists():
        time.sleep(0.01)
    return 0
"""


@pytest.mark.skipif("forkserver" not in get_all_start_methods(), reason="needs a fork server")
def test_a_worker_outlives_its_fork_server_and_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "waits.py").write_text(WAITS)
    monkeypatch.syspath_prepend(tmp_path)
    log, gate = tmp_path / "log.txt", tmp_path / "open"
    child = slots.start(slots.Slot(0, None, 1), fork_server.warm("json"), "waits", [str(gate)], log)
    wait_until(lambda: log.exists() and "here" in log.read_text())
    fork_server.end_server()
    wait_until(lambda: child._process.exitcode == 255)  # what multiprocessing makes of it
    assert child.code() is None
    assert slots.is_running(child.pid)
    gate.touch()
    wait_until(lambda: child.code() is not None)
    assert child.code() == process.NO_STATUS
    assert not slots.is_running(child.pid)
