"""Workers that have only a bucket in common: each run is trained once, and killed workers are replaced."""

import os
import signal
from importlib.util import find_spec

import pytest
from buckets import URL, Host, needs_s3
from processes import wait_until

from attnlab.store import remote, run_directories
from attnlab.store.remote_files import RemoteFiles

pytestmark = [needs_s3, pytest.mark.timeout(400)]
SWEEP = ("+experiment=heads", "seed=0,1,2,3", "sweep.slots=1")
IN_BUCKET = f"paths.runs={URL}"


@pytest.fixture
def start_host(bucket, tmp_path):
    return lambda name: Host(tmp_path, name)


def finish(worker):
    out, err = worker.communicate(timeout=200)
    assert worker.returncode == 0, out + err
    return out


def load_losses(root):
    results = [run_directories.load_run_result(path.parent) for path in root.glob("*/run.json")]
    return {result.id: result.metrics["val/loss"] for result in results}


def load_bucket_losses(folder):
    return load_losses(remote.open_store(URL, folder / "reader", writable=False))


def find_checkpoints():
    return [name for name in RemoteFiles(URL).list() if name.endswith("/last.ckpt")]


def test_two_workers_train_each_run_once_as_one_command_does_locally(start_host, tmp_path):
    hosts = [start_host(name) for name in ("node1", "node2")]
    workers = [host.start("work", *SWEEP, IN_BUCKET, "model.act=gate") for host in hosts]
    wait_until(lambda: all(host.load_attempts() for host in hosts), 100)
    _, out, _ = hosts[1]("status", *SWEEP, IN_BUCKET, "model.act=gate")
    for name in ("node1", "node2"):
        assert f"worker {name}, pid " in out
    for host in hosts:
        (host.folder / "open").touch()
    outputs = [finish(worker) for worker in workers]
    assert sum("report: " in out for out in outputs) == 1, outputs
    assert sum("all runs have ended; the report is by node" in out for out in outputs) == 1
    assert sum(len(host.load_attempts()) for host in hosts) == 12

    local = start_host("local")
    (local.folder / "open").touch()
    assert local(*SWEEP, "model.act=gate")[0] == 0
    losses = load_losses(local.folder / "runs")
    assert len(losses) == 12
    assert load_bucket_losses(tmp_path) == losses
    third = start_host("node3")
    status, out, err = third("++sweep.show=report", *SWEEP, IN_BUCKET, "model.act=gate")
    assert status == 0, out + err
    assert (third.folder / "reports").exists()
    assert not third.load_attempts()


def test_run_of_a_killed_worker_is_continued_from_its_checkpoint_on_another_host(start_host, tmp_path):
    sweep = ("+experiment=ends", "arms=[train,resume]", IN_BUCKET)
    first, second = start_host("node1"), start_host("node2")
    for host in (first, second):
        host.environment["STALE_SECONDS"] = "5"
    worker = first.start("work", *sweep, "--max-runs", "9")
    wait_until(find_checkpoints, 100)
    os.killpg(worker.pid, signal.SIGKILL)
    for line in first.load_attempts():
        kill(int(line[2]))
    assert worker.wait(20) == -signal.SIGKILL
    for pipe in (worker.stdout, worker.stderr):
        pipe.close()
    finish(second.start("work", *sweep))
    assert [line[0] for line in second.load_attempts()].count("resume") == 1
    assert len(load_bucket_losses(tmp_path)) == 2


def test_plain_command_trains_into_the_bucket_and_needs_it_no_second_time(start_host, tmp_path):
    first, second = start_host("node1"), start_host("node2")
    assert first(*SWEEP, IN_BUCKET)[0] == 0
    assert second(*SWEEP, IN_BUCKET)[0] == 0
    assert (len(first.load_attempts()), len(second.load_attempts())) == (12, 0)
    assert len(load_bucket_losses(tmp_path)) == 12


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("work", *SWEEP, "paths.runs=s3://nothing/runs"), "bucket not found"),
        ((*SWEEP, IN_BUCKET, "hydra/launcher=basic"), "works only with runs of this machine"),
        pytest.param(
            (*SWEEP, IN_BUCKET, "hydra/launcher=slurm"),
            "works only with runs of this machine",
            marks=pytest.mark.skipif(find_spec("submitit") is None, reason="needs attnlab[slurm]"),
        ),
    ],
)
def test_invalid_command_ends_before_training(words, problem, start_host):
    host = start_host("node1")
    status, _, err = host(*words)
    assert (status, err.count("\n")) == (2, 1), err
    assert problem in err
    assert not host.load_attempts()


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
