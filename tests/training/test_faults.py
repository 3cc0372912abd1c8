"""Faults of real training in worker processes.

Each test checks the files left behind, and that the next attempt ends with the weights of an uninterrupted
run.
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

from attnlab.store import run_directories
from attnlab.sweep.execute.pool import WORKER
from attnlab.sweep.execute.process_control import run_forked_child
from attnlab.sweep.execute.worker_slots import WorkerSlot
from attnlab.sweep.plan.fork_server import make_warm_context
from attnlab.training import run
from attnlab.training.checkpoints import RUN_ID_KEY, find_newest_checkpoint

torch.set_num_threads(1)


@pytest.fixture
def start_worker():
    """`start_worker(folder)`: the worker of a run, forked as a sweep forks it."""
    make_warm_context("attnlab.training.run", 1)

    def call(folder):
        run_config, earlier_result = (
            run_directories.load_run_config(folder),
            run_directories.load_run_result(folder),
        )  # the result at request time
        retried_failure = earlier_result and earlier_result.failure_digest
        run_directories.write_run_config(
            folder.parent,
            run_config.with_changes(
                use=run_config.use.model_copy(update={"retried_failure": retried_failure})
            ),
        )
        log, environment = folder / "log.txt", WorkerSlot(0, None, 1).build_environment()
        child = get_context("forkserver").Process(
            target=run_forked_child, args=(WORKER, [str(folder)], log, environment)
        )
        child.start()
        return child

    return call


def wait_for_exit(child):
    child.join(120)
    return child.exitcode


def read_result(folder):
    return json.loads((folder / "run.json").read_text())


def assert_same_weights(a, b):
    a, b = (load_file(folder / "model.safetensors") for folder in (a, b))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.rare
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits another process")
def test_sigterm_and_a_full_disk_change_no_bit(compose, make_run_dir, start_worker):
    config = compose("trainer.max_steps=400", "sweep.checkpoint_every=20", "model.dropout=0.1")
    uninterrupted, interrupted = make_run_dir("whole", config), make_run_dir("broken", config)
    run.run(uninterrupted)
    child = start_worker(interrupted)
    wait_until((interrupted / "progress.json").exists, 60)
    os.kill(child.pid, signal.SIGTERM)
    assert wait_for_exit(child) == 143
    assert (interrupted / "last.ckpt").exists()
    assert not (interrupted / "run.json").exists()
    exit_time = time.time()
    child = start_worker(interrupted)
    wait_until(lambda: (interrupted / "progress.json").stat().st_mtime > exit_time, 60)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (30_000, 30_000))
    assert wait_for_exit(child) == 1
    assert read_result(interrupted)["status"] == "crashed"
    assert "could not be written: is the disk full?" in read_result(interrupted)["failure"]["message"]
    assert find_newest_checkpoint(interrupted) is not None
    assert wait_for_exit(start_worker(interrupted)) == 0
    assert_same_weights(uninterrupted, interrupted)


@pytest.mark.rare
def test_a_full_disk_is_recorded_and_changes_no_bit(compose, make_run_dir, start_worker, disk, fill):  # noqa: F811
    config = compose("trainer.max_steps=60", "sweep.checkpoint_every=20", "model.dropout=0.1")
    uninterrupted, template = make_run_dir("whole", config), make_run_dir("broken", config)
    run.run(uninterrupted)
    interrupted = disk / template.name
    shutil.copytree(template, interrupted)
    balloon = fill(100_000)  # space for everything except a checkpoint
    assert wait_for_exit(start_worker(interrupted)) == 1
    assert read_result(interrupted)["status"] == "killed"
    assert (
        read_result(interrupted)["failure"]["message"]
        == f"no space left on device: {interrupted / 'last.ckpt'}"
    )
    assert not list(interrupted.glob(".*"))
    balloon.unlink()
    assert wait_for_exit(start_worker(interrupted)) == 0
    assert_same_weights(uninterrupted, interrupted)


@pytest.mark.rare
def test_a_diverging_run_stops_at_once_and_records_its_step(compose, make_run_dir, start_worker):
    line = ("optim.lr=1e30", "optim.warmup=0", "trainer.gradient_clip_val=null", "trainer.max_steps=9")
    folder = make_run_dir("run", compose(*line))
    assert wait_for_exit(start_worker(folder)) == 1
    result = read_result(folder)
    assert result["status"] == "diverged"
    assert 1 <= result["failure"]["step"] <= 3
    assert f"not finite at step {result['failure']['step']}" in result["failure"]["message"]
    assert result["metrics"] == {}


def test_a_corrupt_checkpoint_is_replaced_by_the_previous_one(tmp_path):
    for name in ("last.ckpt", "previous.ckpt"):
        torch.save({RUN_ID_KEY: tmp_path.name, "weights": torch.arange(5003.0)}, tmp_path / name)
    assert find_newest_checkpoint(tmp_path) == tmp_path / "last.ckpt"
    for name, left in (("last.ckpt", tmp_path / "previous.ckpt"), ("previous.ckpt", None)):
        content = bytearray((tmp_path / name).read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / name).write_bytes(content)
        assert torch.load(tmp_path / name, weights_only=True)  # torch itself notices nothing
        assert find_newest_checkpoint(tmp_path) == left
