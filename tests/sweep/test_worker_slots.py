"""Worker slots of CPUs and GPUs, and workers whose fork server ends."""

import os
import signal
import subprocess
import time
from multiprocessing import get_all_start_methods
from types import SimpleNamespace

import pytest
from processes import wait_until

from attnlab.sweep.execute import process_control, worker_slots
from attnlab.sweep.plan import fork_server


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("0,1", ["0", "1"]), ("3", ["3"]), ("GPU-abc, 5", ["GPU-abc", "5"]), ("2,-1,3", ["2"]), ("", [])],
)
def test_visible_gpus_follow_cuda_visible_devices(monkeypatch, visible, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert worker_slots.list_visible_gpus() == gpus


def test_each_gpu_slot_sees_only_its_own_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    monkeypatch.setattr(worker_slots, "_count_cores", lambda: 13)
    slots = worker_slots.list_worker_slots("NVIDIA H200")
    assert [slot.build_environment()["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["3", "GPU-abc"]
    assert {slot.threads for slot in slots} == {6}


def test_cpu_has_one_slot_per_core_with_one_thread(monkeypatch):
    monkeypatch.delenv("ATTNLAB_COMMAND", raising=False)  # an earlier command of this process may have set it
    monkeypatch.setattr(worker_slots, "_count_cores", lambda: 5)
    slots = worker_slots.list_worker_slots("cpu")
    assert [slot.threads for slot in slots] == [1] * 5
    assert slots[0].build_environment() == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert [slot.threads for slot in worker_slots.list_worker_slots("cpu", 2)] == [2, 2]


def test_slots_per_gpu_share_a_gpu_and_merged_slots_span_several(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    monkeypatch.setattr(worker_slots, "_count_cores", lambda: 13)
    shared = worker_slots.list_worker_slots("NVIDIA H200", slots_per_gpu=3)
    assert [slot.gpu for slot in shared] == ["3", "GPU-abc"] * 3
    assert {slot.threads for slot in shared} == {2}
    merged = worker_slots.merge_slots(worker_slots.list_worker_slots("NVIDIA H200"))
    assert merged.build_environment()["CUDA_VISIBLE_DEVICES"] == "3,GPU-abc"
    assert worker_slots.merge_slots(worker_slots.list_worker_slots("cpu", 2)).gpu is None


WAITING_MODULE = """
import time
from pathlib import Path


def main(arguments):
    print("here", flush=True)
    while not Path(arguments[0]).exists():
        time.sleep(0.01)
    return 0
"""


@pytest.mark.skipif("forkserver" not in get_all_start_methods(), reason="needs a fork server")
def test_worker_outlives_its_fork_server_and_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "waits.py").write_text(WAITING_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    log, gate = tmp_path / "log.txt", tmp_path / "open"
    child = worker_slots.start_child(
        worker_slots.WorkerSlot(0, None, 1), fork_server.make_warm_context("json"), "waits", [str(gate)], log
    )
    wait_until(lambda: log.exists() and "here" in log.read_text())
    fork_server.kill_server()
    wait_until(lambda: child._process.exitcode == 255)  # multiprocessing's code for a lost server
    assert child.poll_exit_code() is None
    assert worker_slots.is_process_running(child.pid)
    gate.touch()
    wait_until(lambda: child.poll_exit_code() is not None)
    assert child.poll_exit_code() == process_control.NO_STATUS
    assert not worker_slots.is_process_running(child.pid)


@pytest.mark.parametrize(
    ("grace", "repeat", "is_cut_short"),
    [(80.0, 0.0, True), pytest.param(0.3, 80.0, False, id="the first signal again, by another way")],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_the_grace_period_of_a_hung_run(monkeypatch, number, grace, repeat, is_cut_short):
    monkeypatch.setattr(process_control, "GRACE_SECONDS", grace)
    monkeypatch.setattr(process_control, "REPEAT_SECONDS", repeat)
    command = ["sh", "-c", "trap '' TERM; echo here; while :; do sleep 1; done"]
    hung = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    hung.stdout.readline()
    signals = [number]

    def poll_exit_code():
        if signals:
            os.kill(os.getpid(), signals.pop())
        return hung.poll()

    started_at = time.monotonic()
    worker_slots.stop_children([SimpleNamespace(pid=hung.pid, poll_exit_code=poll_exit_code)])
    assert hung.returncode == -signal.SIGKILL
    assert (time.monotonic() - started_at < grace) is is_cut_short
    hung.stdout.close()
