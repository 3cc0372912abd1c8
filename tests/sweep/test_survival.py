"""Real training, real processes, real kills: the same command ends with the bits of an undisturbed sweep."""

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
from processes import children, wait_until
from processes import parent as starter
from sampling import FULL, full

from attnlab.store import runs as store
from attnlab.sweep.execute.pool import Pool
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.plan.fork_server import warm

pytestmark = [pytest.mark.rare(sample=1), pytest.mark.timeout(600)]  # minutes of kills

REPOSITORY = Path(__file__).parents[2]
LINE = (
    "heads=mha,gqa", "seed=0,1", "size=debug", "trainer.max_steps=600", "data=text", "data.path=book.txt",
    "logger=none", "measure.every=150", "sweep.checkpoint_every=20",
    "sweep.retry_failed=true", "sweep.slots=2", "model.dropout=0.1", "paths.cache=cache",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog; pack my box.\n" * 60)
    return tmp_path


def start(folder, runs, *more, file_limit=None):
    given = {word.partition("=")[0] for word in more}
    usual = [word for word in LINE if word.partition("=")[0] not in given]
    line = [sys.executable, "-m", "attnlab", *usual, f"paths.runs={runs}", *more]
    return subprocess.Popen(
        line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, start_new_session=True,
        preexec_fn=file_limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit,) * 2)),
    )  # fmt: skip


def parent(folders):
    """What a command does with its runs: a pool, whose workers it forks at once for want of time."""
    torch.set_num_threads(1)
    os.chdir(folders[0].parent.parent)  # where the data and its cache are
    Pool({"slots": 2}, Progress({}, open(os.devnull, "w")), get_context("fork")).run(folders)  # noqa: SIM115


def weights(runs):
    return {path.parent.name: path.read_bytes() for path in runs.glob("*/model.safetensors")}


def finish(folder, runs, *more):
    process = start(folder, runs, *more)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    return out


def saved(runs):
    try:
        return {(path, path.stat().st_mtime_ns) for path in runs.glob("*/last.ckpt")}
    except FileNotFoundError:  # a run ended meanwhile
        return set()


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds workers in /proc")
def test_kills_of_worker_parent_or_both_change_no_bit(folder):
    whole, broken = folder / "whole", folder / "broken"
    finish(folder, whole)
    for spec in whole.glob("*/spec.json"):
        (broken / spec.parent.name).mkdir(parents=True)
        shutil.copy(spec, broken / spec.parent.name)
    folders, context, dice = sorted(broken.iterdir()), warm("attnlab.training.run"), random.Random(7)
    running, victims = None, []
    while len(victims) < (20 if FULL else 4):
        if running is None or not running.is_alive():
            running = context.Process(target=parent, args=([f for f in folders if not store.is_done(f)],))
            running.start()
        wait_until(lambda now=running: children(now.pid) or not now.is_alive(), 60)
        found = children(running.pid)
        if len(victims) % 2:  # every other kill is of a run that has saved something since the last one
            seen = saved(broken)
            wait_until(lambda now=running, seen=seen: saved(broken) - seen or not now.is_alive(), 60)
        time.sleep(dice.uniform(0, 0.9))
        victims.append(dice.choice(["worker", "worker", "parent", "both"]))
        if victims[-1] != "worker":
            kill(running.pid)
        if victims[-1] != "parent" and found:
            kill(dice.choice(found))
        if victims[-1] != "worker":
            running.join()
    running.join()
    assert list(broken.glob("*/last.ckpt"))  # something was half-trained
    out = finish(folder, broken)
    assert "0 to train" not in out
    assert len(weights(whole)) == 4
    assert weights(broken) == weights(whole)


@full
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the fork server in /proc")
@pytest.mark.parametrize("victims", ["fork server", "fork server and its workers", "one worker"])
def test_one_command_outlives_its_fork_server_and_its_workers_bit_by_bit(folder, victims):
    whole, broken = folder / "whole", folder / "broken"
    finish(folder, whole)
    process = start(folder, broken, "sweep.retry_failed=false")
    half_trained = lambda: list(broken.glob("*/last.ckpt"))  # noqa: E731
    wait_until(lambda: half_trained() or process.poll() is not None, 120)
    assert process.poll() is None
    owner = json.loads((half_trained()[0].parent / "owner.json").read_text())
    server = starter(owner["pid"])
    assert server in children(process.pid)
    pids = {"fork server": [server], "one worker": [owner["pid"]]}.get(victims, [server, *children(server)])
    for pid in pids:
        kill(pid)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert ("retry 1 of 2" in out) == (victims != "fork server"), out
    assert len(weights(whole)) == 4
    assert weights(broken) == weights(whole)


@full
def test_sigterm_saves_a_checkpoint_exits_143_and_neither_it_nor_a_full_disk_loses_a_bit(folder):
    whole, broken = folder / "whole", folder / "broken"
    line = ("heads=mha", "seed=0", "sweep.checkpoint_every=1000")
    finish(folder, whole, *line)
    process = start(folder, broken, *line)
    wait_until(lambda: list(broken.glob("*/progress.json")) or process.poll() is not None, 60)
    assert process.poll() is None
    kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143, out
    assert list(broken.glob("*/last.ckpt"))  # long before the thousandth step
    assert not list(broken.glob("*/run.json"))
    process = start(folder, broken, *line, "sweep.checkpoint_every=20", file_limit=30_000)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 1, out
    [record] = [json.loads(path.read_text()) for path in broken.glob("*/run.json")]
    assert record["status"] == "crashed"
    assert "last.ckpt could not be written: is the disk full?" in record["failure"]["message"]
    finish(folder, broken, *line)
    assert len(weights(whole)) == 1
    assert weights(broken) == weights(whole)
