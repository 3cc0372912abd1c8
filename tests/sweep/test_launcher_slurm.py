"""The launcher `slurm` on a real cluster of one node: workers, requeues, and commands that do not wait."""

import getpass
import json
import os
import re
import signal
import subprocess

import pytest
import slurm_cluster
from processes import load_records, load_records_by_act, wait_until

MISSING_PROGRAMS = slurm_cluster.list_missing_daemons()
pytestmark = [
    pytest.mark.rare,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bool(MISSING_PROGRAMS), reason=f"no {', '.join(MISSING_PROGRAMS)}: apt install slurm-wlm munge"
    ),
]
LEAVE = "hydra.launcher.wait=false"
HEADS = ("+experiment=heads", "arms=[two,four]", "match=none", "controlled=[]")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> dict[str, str]:
    with slurm_cluster.start_cluster_or_skip(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture
def on_slurm(attnlab, cluster):
    attnlab.environment |= cluster
    attnlab.line = ["hydra/launcher=slurm", "hydra.launcher.poll=0.5"]
    yield attnlab
    query_slurm(attnlab, "scancel", f"--user={getpass.getuser()}")
    wait_for_empty_queue(attnlab)


def query_slurm(on_slurm, *command: str) -> str:
    result = subprocess.run(command, env=on_slurm.environment, capture_output=True, text=True, check=True)
    return result.stdout


def list_queue(on_slurm, column: str = "%i", *options: str) -> list[str]:
    return query_slurm(on_slurm, "squeue", "--noheader", "--array", f"--format={column}", *options).split()


def wait_for_empty_queue(on_slurm) -> None:
    wait_until(lambda: not list_queue(on_slurm), 200)


def restart_soon(on_slurm, job: str) -> None:
    """Let a requeued job start sooner than after SLURM's two minutes."""
    wait_until(lambda: list_queue(on_slurm, "%T", f"--jobs={job}") == ["PENDING"], 90)
    query_slurm(on_slurm, "scontrol", "update", f"jobid={job}", "StartTime=now+1")


def load_report(folder) -> dict:
    [file] = folder.glob("*/report.json")
    return json.loads(file.read_text())


def read_logs(on_slurm) -> str:
    return "".join(path.read_text() for path in on_slurm.folder.glob("runs/slurm/*.log"))


def test_workers_store_the_results_of_the_pool_and_train_each_run_once(on_slurm):
    sweep = (*HEADS, "looks=[2,4,6]", "seeds=null")
    status, out, err = on_slurm(*sweep, *on_slurm.line)
    assert status == 0, out + err
    assert "report: reports/heads" in out
    assert sorted(int(seed) for _, seed, *_ in on_slurm.load_attempts()) == [0, 0, 1, 1]
    assert not list((on_slurm.folder / "runs").rglob("*.pkl"))
    results, waited = load_records(on_slurm.folder), load_report(on_slurm.folder / "reports")
    status, out, _ = on_slurm(*sweep, *on_slurm.line)
    assert (status, len(on_slurm.load_attempts())) == (0, 4)
    (on_slurm.folder / "runs").rename(on_slurm.folder / "elsewhere")
    assert on_slurm(*sweep)[0] == 0
    assert load_records(on_slurm.folder) == results
    here = load_report(on_slurm.folder / "reports")
    assert [here["verdict"], here["runs"]] == [waited["verdict"], waited["runs"]]


def test_failures_are_recorded_lost_runs_retried_and_a_killed_worker_replaced(on_slurm):
    sweep = ("+experiment=ends", "arms=[train,kill,crash,resume]", "sweep.slots=1")
    process = on_slurm.start(*sweep, *on_slurm.line)
    try:
        wait_until(lambda: list(on_slurm.folder.glob("runs/*/last.ckpt")), 90)
        [state] = on_slurm.folder.glob("runs/work/*/workers/[!.]*.json")
        worker = json.loads(state.read_text())["pid"]
        os.kill(worker, signal.SIGKILL)
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 1, out + err
    results = load_records_by_act(on_slurm.folder)
    assert {act: record["status"] for act, record in results.items()} == {
        "train": "done", "kill": "killed", "crash": "crashed", "resume": "done",
    }  # fmt: skip
    assert results["kill"]["failure"]["message"].startswith("signal 9 (SIGKILL) killed the worker process")
    attempts = [act for act, *_ in on_slurm.load_attempts()]
    assert [attempts.count(act) for act in ("train", "crash", "resume")] == [1, 1, 2]
    assert 3 <= attempts.count("kill") <= 6
    assert "report: " in out


@pytest.mark.parametrize("limit", [True, False])
def test_requeued_worker_continues_from_the_checkpoint(on_slurm, limit):
    """By its time limit of a minute, or by an administrator."""
    options = ["hydra.launcher.time=1", "hydra.launcher.signal_delay=45"] if limit else []
    process = on_slurm.start("model.act=resume", *on_slurm.line, *options)
    try:
        wait_until(lambda: list((on_slurm.folder / "runs").glob("*/last.ckpt")), 60)
        [job] = list_queue(on_slurm)
        if not limit:
            query_slurm(on_slurm, "scontrol", "requeue", job)
        restart_soon(on_slurm, job)
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, out + err + read_logs(on_slurm)
    assert "done  val/loss" in out
    assert len(on_slurm.load_attempts()) == 2  # one run, two attempts


def test_ctrl_c_cancels_the_workers_and_writes_the_report(on_slurm):
    process = on_slurm.start("+experiment=ends", "arms=[train,sleep]", *on_slurm.line)
    try:
        wait_until(lambda: len(on_slurm.load_attempts()) == 2 and load_records(on_slurm.folder), 90)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert list_queue(on_slurm) == []
    assert [record["status"] for record in load_records(on_slurm.folder).values()] == ["done"]
    assert load_report(on_slurm.folder / "reports")


def test_command_that_does_not_wait_leaves_all_stages_and_the_report_to_the_workers(on_slurm):
    sweep = (*HEADS, "model.act=gate", "looks=[2,4]", "seeds=null", "claims.0.threshold=0.081")
    status, out, err = on_slurm(*sweep, *on_slurm.line, LEAVE)
    assert status == 0, err
    assert "2 workers are in SLURM's queue as attnlab-" in out
    assert "status: python -m attnlab status --config-path" in out
    wait_until(lambda: len(on_slurm.load_attempts()) == 2, 90)
    status, out, _ = on_slurm(*sweep, *on_slurm.line, LEAVE, "hydra.launcher.time=50")
    assert (status, len(list_queue(on_slurm))) == (0, 2), "the same workers"
    (on_slurm.folder / "open").touch()
    wait_for_empty_queue(on_slurm)
    left, results = load_report(on_slurm.folder / "reports"), load_records(on_slurm.folder)
    assert len(on_slurm.load_attempts()) == len(results) == 8, read_logs(on_slurm)
    for name in ("runs", "reports"):
        (on_slurm.folder / name).rename(on_slurm.folder / f"left_{name}")
    assert on_slurm(*sweep)[0] == 0
    here = load_report(on_slurm.folder / "reports")
    assert load_records(on_slurm.folder) == results
    assert [here["verdict"], here["runs"]] == [left["verdict"], left["runs"]]


def test_quarantine_of_the_only_node_ends_the_sweep_with_a_report(on_slurm):
    on_slurm.environment["TOY_DEVICE"] = "none"
    status, out, err = on_slurm(*HEADS, "seed=0,1,2,3", "sweep.slots=1", *on_slurm.line)
    assert status == 1, out + err
    assert re.search(r"is in quarantine for this sweep: \d runs in a row failed on this host, the last", out)
    assert "no worker is left: the remaining runs were not started" in out
    statuses = {record["status"] for record in load_records(on_slurm.folder).values()}
    assert statuses == {"killed"}
    assert load_report(on_slurm.folder / "reports")["verdict"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["heads=two", "hydra.launcher.partition=nowhere"], "sbatch rejected the job: "),
        (
            ["heads=two", "hydra.launcher.time=1"],
            "hydra.launcher.signal_delay=90: must be below the 60 seconds",
        ),
        (["heads=two", "hydra.launcher.gpus_per_node=1"], "the runs were planned for this machine's CPU"),
        (["compare", "heads=two", "heads=four", LEAVE], "the experiment of this verb ends with the command"),
    ],
)
def test_invalid_command_is_one_line_and_starts_nothing(on_slurm, line, message):
    status, _, err = on_slurm(*line, *on_slurm.line)
    assert (status, on_slurm.load_attempts(), err.count("\n")) == (2, [], 1), err
    assert message in err
    assert list_queue(on_slurm) == []
