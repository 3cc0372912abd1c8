"""Faults of real training, in the processes that a sweep starts: what is left, and that the next attempt ends
with the bits of an undisturbed run.
"""

import json
import os
import resource
import shutil
import signal
import time
from multiprocessing import get_context

import pytest
import torch
from disks import disk, fill  # noqa: F401 - fixtures
from processes import wait_until
from safetensors.torch import load_file

from attnlab.store import runs
from attnlab.sweep.execute.pool import WORKER
from attnlab.sweep.execute.process import enter
from attnlab.sweep.execute.slots import Slot
from attnlab.sweep.plan.fork_server import warm
from attnlab.training import run
from attnlab.training.checkpoints import RUN, newest_checkpoint

torch.set_num_threads(1)


@pytest.fixture
def start():
    """`start(folder)`: the worker of a run, forked as a sweep forks it."""
    warm("attnlab.training.run", 1)

    def call(folder):
        spec, failed = runs.spec(folder), runs.record(folder)  # it is asked for now
        instead = failed and failed.failed
        runs.write_spec(folder.parent, spec.but(use=spec.use.model_copy(update={"instead": instead})))
        log, environment = folder / "log.txt", Slot(0, None, 1).environment()
        child = get_context("forkserver").Process(
            target=enter, args=(WORKER, [str(folder)], log, environment)
        )
        child.start()
        return child

    return call


def ended(child):
    child.join(120)
    return child.exitcode


def record(folder):
    return json.loads((folder / "run.json").read_text())


def assert_same_weights(a, b):
    a, b = (load_file(folder / "model.safetensors") for folder in (a, b))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.rare
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits another process")
def test_neither_sigterm_nor_a_full_disk_loses_a_bit(compose, store, start):
    config = compose("trainer.max_steps=400", "sweep.checkpoint_every=20", "model.dropout=0.1")
    whole, broken = store("whole", config), store("broken", config)
    run.run(whole)
    child = start(broken)
    wait_until((broken / "progress.json").exists, 60)
    os.kill(child.pid, signal.SIGTERM)
    assert ended(child) == 143
    assert (broken / "last.ckpt").exists()
    assert not (broken / "run.json").exists()
    left = time.time()
    child = start(broken)
    wait_until(lambda: (broken / "progress.json").stat().st_mtime > left, 60)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (30_000, 30_000))
    assert ended(child) == 1
    assert record(broken)["status"] == "crashed"
    assert "could not be written: is the disk full?" in record(broken)["failure"]["message"]
    assert newest_checkpoint(broken) is not None
    assert ended(start(broken)) == 0
    assert_same_weights(whole, broken)


@pytest.mark.rare
def test_a_full_disk_is_recorded_as_that_and_loses_no_bit(compose, store, start, disk, fill):  # noqa: F811
    config = compose("trainer.max_steps=60", "sweep.checkpoint_every=20", "model.dropout=0.1")
    whole, elsewhere = store("whole", config), store("broken", config)
    run.run(whole)
    broken = disk / "broken"
    shutil.copytree(elsewhere, broken)
    balloon = fill(100_000)  # room for all but a checkpoint
    assert ended(start(broken)) == 1
    assert record(broken)["status"] == "crashed"
    assert record(broken)["failure"]["message"] == f"no space left on device: {broken / 'last.ckpt'}"
    assert not list(broken.glob(".*"))
    balloon.unlink()
    assert ended(start(broken)) == 0
    assert_same_weights(whole, broken)


@pytest.mark.rare
def test_a_run_that_diverges_is_stopped_at_once_and_recorded_with_its_step(compose, store, start):
    line = ("optim.lr=1e30", "optim.warmup=0", "trainer.gradient_clip_val=null", "trainer.max_steps=9")
    folder = store("run", compose(*line))
    assert ended(start(folder)) == 1
    found = record(folder)
    assert found["status"] == "diverged"
    assert 1 <= found["failure"]["step"] <= 3
    assert f"not finite at step {found['failure']['step']}" in found["failure"]["message"]
    assert found["metrics"] == {}


def test_a_checkpoint_in_which_a_bit_flipped_gives_way_to_the_one_before_it(tmp_path):
    for name in ("last.ckpt", "previous.ckpt"):
        torch.save({RUN: tmp_path.name, "weights": torch.arange(5003.0)}, tmp_path / name)
    assert newest_checkpoint(tmp_path) == tmp_path / "last.ckpt"
    for name, left in (("last.ckpt", tmp_path / "previous.ckpt"), ("previous.ckpt", None)):
        content = bytearray((tmp_path / name).read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / name).write_bytes(content)
        assert torch.load(tmp_path / name, weights_only=True)  # torch itself sees nothing
        assert newest_checkpoint(tmp_path) == left
