"""Faults that a toy can stage: each leaves a store from which the same command carries on."""

import json
import os
import subprocess
from contextlib import suppress

import pytest
import torch

from attnlab.sweep.execute.worker import classify


def test_a_disk_so_full_that_the_worker_cannot_say_so_is_a_recorded_crash(attnlab):
    status, out, err = attnlab("+experiment=ends", "arms=[train,full,hoard]")
    assert status == 1, err
    found = [json.loads(path.read_text()) for path in attnlab.folder.glob("runs/*/run.json")]
    ends = {record["config"]["model"]["act"]: record for record in found}
    assert {act: record["status"] for act, record in ends.items()} == {
        "train": "done",
        "full": "crashed",
        "hoard": "out_of_memory",
    }
    assert ends["full"]["failure"]["message"] == "the worker exited with status 1"
    assert not list(attnlab.folder.glob("runs/*/.*"))  # no half-written file stays
    (attnlab.folder / "mended").touch()
    status, out, _ = attnlab("+experiment=ends", "arms=[train,full]", "sweep.retry_failed=true")
    assert (status, len(attnlab.trained())) == (0, 4), out


def test_memory_that_torch_does_not_get_is_told_as_that():
    with pytest.raises(RuntimeError) as cpu:
        torch.empty(2**60)
    assert classify(cpu.value) == "out_of_memory"
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
