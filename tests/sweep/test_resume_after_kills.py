"""Bitwise resume with real training, processes and kills: a repeated command ends with equal weights."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from processes import get_parent, list_children, wait_until
from sampling import FULL, full

from attnlab.store import run_directories as store
from attnlab.sweep.execute.pool import Pool
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.plan.fork_server import make_warm_context

pytestmark = [pytest.mark.rare(sample=1), pytest.mark.timeout(600)]  # minutes of kills

REPOSITORY = Path(__file__).parents[2]
OVERRIDES = (
    "heads=mha,gqa", "seed=0,1", "size=debug", "trainer.max_steps=600", "data=text", "data.path=book.txt",
    "data.allow_overlap=true",
    "logger=none", "measure.every=150", "sweep.checkpoint_every=20",
    "sweep.retry_failed=true", "sweep.slots=2", "model.dropout=0.1", "paths.cache=cache",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog; pack my box.\n" * 60)
    return tmp_path


def start_sweep(folder, runs, *overrides, file_limit=None):
    given_keys = {override.partition("=")[0] for override in overrides}
    defaults = [override for override in OVERRIDES if override.partition("=")[0] not in given_keys]
    line = [sys.executable, "-m", "attnlab", *defaults, f"paths.runs={runs}", *overrides]
    return subprocess.Popen(
        line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, start_new_session=True,
        preexec_fn=file_limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit,) * 2)),
    )  # fmt: skip


def train_in_pool(folders):
    """Run a pool over the runs as a command does, but with plain forks, which start faster."""
    torch.set_num_threads(1)
    os.chdir(folders[0].parent.parent)  # of the data and its cache
    Pool({"slots": 2}, Progress({}, open(os.devnull, "w")), get_context("fork")).run(folders)  # noqa: SIM115


def load_weights(runs):
    return {path.parent.name: path.read_bytes() for path in runs.glob("*/model.safetensors")}


def finish_sweep(folder, runs, *overrides):
    process = start_sweep(folder, runs, *overrides)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    return out


def list_checkpoints(runs):
    try:
        return {(path, path.stat().st_mtime_ns) for path in runs.glob("*/last.ckpt")}
    except FileNotFoundError:  # a run ended during the listing
        return set()


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds workers in /proc")
def test_weights_are_bitwise_equal_after_kills_of_worker_and_parent(folder):
    reference, interrupted = folder / "whole", folder / "broken"
    finish_sweep(folder, reference)
    for spec in reference.glob("*/spec.json"):
        (interrupted / spec.parent.name).mkdir(parents=True)
        shutil.copy(spec, interrupted / spec.parent.name)
    folders, context, random_numbers = (
        sorted(interrupted.iterdir()),
        make_warm_context("attnlab.training.run"),
        random.Random(7),
    )
    running, victims = None, []
    while len(victims) < (20 if FULL else 4):
        if running is None or not running.is_alive():
            running = context.Process(
                target=train_in_pool, args=([f for f in folders if not store.is_done(f)],)
            )
            running.start()
        wait_until(lambda now=running: list_children(now.pid) or not now.is_alive(), 60)
        workers = list_children(running.pid)
        if len(victims) % 2:  # every other kill waits for a new checkpoint
            checkpoints = list_checkpoints(interrupted)
            wait_until(
                lambda now=running, before=checkpoints: (
                    list_checkpoints(interrupted) - before or not now.is_alive()
                ),
                60,
            )
        time.sleep(random_numbers.uniform(0, 0.9))
        victims.append(random_numbers.choice(["worker", "worker", "parent", "both"]))
        if victims[-1] != "worker":
            kill(running.pid)
        if victims[-1] != "parent" and workers:
            kill(random_numbers.choice(workers))
        if victims[-1] != "worker":
            running.join()
    running.join()
    assert list(interrupted.glob("*/last.ckpt"))  # a run was interrupted
    out = finish_sweep(folder, interrupted)
    assert "0 to train" not in out
    assert len(load_weights(reference)) == 4
    assert load_weights(interrupted) == load_weights(reference)


@full
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the fork server in /proc")
@pytest.mark.parametrize("victims", ["fork server", "fork server and its workers", "one worker"])
def test_weights_are_bitwise_equal_after_kills_of_fork_server_and_workers(folder, victims):
    reference, interrupted = folder / "whole", folder / "broken"
    finish_sweep(folder, reference)
    process = start_sweep(folder, interrupted, "sweep.retry_failed=false")
    half_trained = lambda: list(interrupted.glob("*/last.ckpt"))  # noqa: E731
    wait_until(lambda: half_trained() or process.poll() is not None, 120)
    assert process.poll() is None
    owner = json.loads((half_trained()[0].parent / "owner.json").read_text())
    server = get_parent(owner["pid"])
    assert server in list_children(process.pid)
    pids = {"fork server": [server], "one worker": [owner["pid"]]}.get(
        victims, [server, *list_children(server)]
    )
    for pid in pids:
        kill(pid)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert ("retry 1 of 2" in out) == (victims != "fork server"), out
    assert len(load_weights(reference)) == 4
    assert load_weights(interrupted) == load_weights(reference)


@full
def test_weights_are_bitwise_equal_after_sigterm_and_a_full_disk(folder):
    reference, interrupted = folder / "whole", folder / "broken"
    line = ("heads=mha", "seed=0", "sweep.checkpoint_every=1000")
    finish_sweep(folder, reference, *line)
    process = start_sweep(folder, interrupted, *line)
    wait_until(lambda: list(interrupted.glob("*/progress.json")) or process.poll() is not None, 60)
    assert process.poll() is None
    kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143, out
    assert list(interrupted.glob("*/last.ckpt"))  # although checkpoints are due every 1000 steps
    assert not list(interrupted.glob("*/run.json"))
    process = start_sweep(folder, interrupted, *line, "sweep.checkpoint_every=20", file_limit=30_000)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 1, out
    [record] = [json.loads(path.read_text()) for path in interrupted.glob("*/run.json")]
    assert record["status"] == "crashed"
    assert "last.ckpt could not be written: is the disk full?" in record["failure"]["message"]
    finish_sweep(folder, interrupted, *line)
    assert len(load_weights(reference)) == 1
    assert load_weights(interrupted) == load_weights(reference)
