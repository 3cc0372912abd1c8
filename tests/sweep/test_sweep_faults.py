"""Faults that a toy can stage: each leaves a store from which the same command carries on."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress

import pytest
import torch
from disks import disk, fill  # noqa: F401 - fixtures
from processes import wait_until

from attnlab.sweep.execute.worker import classify


@pytest.mark.rare
def test_a_disk_so_full_that_the_worker_cannot_say_so_is_a_recorded_crash(attnlab):
    status, out, err = attnlab("+experiment=ends", "arms=[train,full,hoard]")
    assert status == 1, err
    found = [json.loads(path.read_text()) for path in attnlab.folder.glob("runs/*/run.json")]
    ends = {record["config"]["model"]["act"]: record for record in found}
    assert {act: record["status"] for act, record in ends.items()} == {
        "train": "done",
        "full": "crashed",
        "hoard": "host_out_of_memory",
    }
    assert ends["full"]["failure"]["message"] == "the worker exited with status 1"
    assert not list(attnlab.folder.glob("runs/*/.*"))  # no half-written file stays
    (attnlab.folder / "mended").touch()
    status, out, _ = attnlab("+experiment=ends", "arms=[train,full]", "sweep.retry_failed=true")
    assert (status, len(attnlab.trained())) == (0, 6), out  # hoard three times


def test_memory_that_torch_does_not_get_is_told_as_that():
    with pytest.raises(RuntimeError) as cpu:
        torch.empty(2**60)
    assert classify(cpu.value) == "host_out_of_memory"
    assert (
        classify(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")) == "out_of_memory"
    )


@pytest.fixture
def read_only():
    """Makes a folder read-only, for root too; back as it was afterwards."""
    mounted = []

    def make(folder):
        folder.chmod(0o555)
        if os.access(folder, os.W_OK):  # root: only a mount stops it
            for options in (["--bind"], ["-o", "remount,bind,ro"]):
                if subprocess.run(
                    ["mount", *options, str(folder), str(folder)], capture_output=True
                ).returncode:
                    pytest.skip("root, and no right to mount")
                mounted.append(folder)

    yield make
    with suppress(IndexError):
        subprocess.run(["umount", str(mounted[0])], check=True)


@pytest.mark.rare
def test_a_read_only_store_is_refused_before_training_and_can_still_be_read(attnlab, read_only):
    line = ("+experiment=heads", "arms=[two,one]", "claims=[]", "match=none")
    assert attnlab(*line, "seed=0")[0] == 0
    read_only(attnlab.folder / "runs")
    status, _, err = attnlab(*line)
    assert (status, len(attnlab.trained())) == (2, 2)
    assert err.startswith("attnlab: paths.runs=runs cannot be written (")
    assert err.count("\n") == 1
    status, out, err = attnlab(*line, "seed=0", "++sweep.show=status")
    assert status == 0, err
    assert out.count("done") >= 2


@pytest.mark.rare
def test_a_worker_that_was_stopped_and_taken_over_says_so_and_leaves_the_run_to_the_other(attnlab):
    process = attnlab.start("model.act=slow")
    wait_until(attnlab.trained)
    worker = int(attnlab.trained()[0][2])
    os.kill(worker, signal.SIGSTOP)
    [folder] = (path.parent for path in (attnlab.folder / "runs").glob("*/spec.json"))
    other = {"host": "elsewhere", "pid": 17, "time": time.time(), "token": "theirs"}
    (folder / "owner.json").write_text(json.dumps(other))
    os.kill(worker, signal.SIGCONT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1, err
    assert f"taken over by elsewhere, pid 17  runs/{folder.name}" in out
    assert (folder / "log.txt").read_text().splitlines()[
        -1
    ] == f"{folder.name}: taken over by elsewhere, pid 17"
    assert not (folder / "run.json").exists()
    assert json.loads((folder / "owner.json").read_text()) == other


@pytest.mark.rare
def test_a_full_disk_is_recorded_as_that_and_the_same_command_goes_on(attnlab, disk):  # noqa: F811
    line = (
        "model.act=fill",
        "seed=0,1",
        "sweep.slots=1",
        f"paths.runs={disk / 'runs'}",
        "sweep.retry_failed=true",
    )
    status, _, err = attnlab(*line)
    assert status == 1, err
    records = [json.loads(path.read_text()) for path in disk.glob("runs/*/run.json")]
    told = {f"no space left on device: {disk / 'runs' / record['id'] / 'last.ckpt'}" for record in records}
    assert {record["failure"]["message"] for record in records} == told
    assert {record["status"] for record in records} == {"crashed"}
    assert len(records) == 2  # the sweep went on to the second run
    assert not list(disk.glob("runs/*/.*"))
    assert not list(disk.glob("runs/*/last.ckpt"))
    (attnlab.folder / "mended").touch()
    assert attnlab(*line)[0] == 0


@pytest.mark.rare
def test_a_disk_on_which_not_even_the_failure_fits_is_said_in_a_line(attnlab, disk, fill):  # noqa: F811
    line = ("model.act=sleep", "seed=0", "sweep.slots=1", f"paths.runs={disk / 'runs'}")
    process = attnlab.start(*line)
    wait_until(attnlab.trained)
    balloon = fill(0)
    os.kill(int(attnlab.trained()[0][2]), signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert len(err.splitlines()) == 1, err
    assert "that could not be recorded: no space left on device: " in err
    assert not list(disk.glob("runs/*/run.json"))
    status, _, err = attnlab("model.act=train", "seed=5", f"paths.runs={disk / 'runs'}")
    assert (status, err.count("\n")) == (1, 1), err
    assert err.startswith("attnlab: no space left on device: ")
    balloon.unlink()
    (attnlab.folder / "mended").touch()
    assert attnlab(*line)[0] == 0
