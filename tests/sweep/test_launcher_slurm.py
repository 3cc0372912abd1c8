"""The launcher `slurm` on a real cluster of one node: failures, requeues and chains of jobs."""

import json
import os
import signal
import subprocess
from importlib.util import find_spec

import pytest
import slurm_cluster
from processes import load_records, load_records_by_act, wait_until

MISSING_PROGRAMS = [*slurm_cluster.list_missing_daemons(), *(() if find_spec("submitit") else ["submitit"])]
pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(
        bool(MISSING_PROGRAMS),
        reason=f"no {', '.join(MISSING_PROGRAMS)}: apt install slurm-wlm munge, pip install .[slurm]",
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> dict[str, str]:
    with slurm_cluster.start_cluster_or_skip(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture
def on_slurm(attnlab, cluster):
    attnlab.environment |= cluster | {"XDG_STATE_HOME": str(attnlab.folder / "state")}
    attnlab.line = ["hydra/launcher=slurm", "hydra.launcher.poll=0.5"]
    return attnlab


LEAVE = "hydra.launcher.wait=false"


def wait_for_empty_queue(on_slurm) -> None:
    wait_until(lambda: not query_slurm(on_slurm, "squeue", "--noheader"), 200)


def load_report(folder) -> dict:
    [file] = folder.glob("*/report.json")
    return json.loads(file.read_text())


def query_slurm(on_slurm, *command: str) -> str:
    result = subprocess.run(command, env=on_slurm.environment, capture_output=True, text=True, check=True)
    return result.stdout


def test_slurm_stores_the_results_of_the_pool_and_trains_each_run_once(on_slurm):
    line = ["heads=two,four", "seed=0,1"]
    status, out, err = on_slurm(*line, *on_slurm.line)
    assert status == 0, err
    assert "4 runs, 0 done, 4 to train" in out
    assert len({pid for _, _, pid, *_ in on_slurm.load_attempts()}) == 4  # a fresh process each
    results = load_records(on_slurm.folder)
    status, out, _ = on_slurm(*line, *on_slurm.line)
    assert (status, len(on_slurm.load_attempts())) == (0, 4)
    (on_slurm.folder / "runs").rename(on_slurm.folder / "elsewhere")
    assert on_slurm(*line)[0] == 0
    assert load_records(on_slurm.folder) == results


def test_interim_analyses_run_in_sequence(on_slurm):
    overrides = ("arms=[two,four]", "match=none", "controlled=[]", "looks=[2,4,6]", "seeds=null")
    status, out, err = on_slurm("+experiment=heads", *overrides, *on_slurm.line)
    assert status == 0, err
    assert "Stopped at interim analysis 1 of 3, 2 paired seeds." in " ".join(out.split())
    assert sorted(int(seed) for _, seed, *_ in on_slurm.load_attempts()) == [0, 0, 1, 1]


def test_killed_workers_and_lost_jobs_are_recorded_and_other_runs_finish(on_slurm):
    line = ["+experiment=ends", "arms=[train,kill,crash,lost]", "sweep.max_time=30", "sweep.slots=1"]
    status, out, _ = on_slurm(*line, *on_slurm.line)
    assert status == 1
    results = load_records_by_act(on_slurm.folder)
    assert {act: record["status"] for act, record in results.items()} == {
        "train": "done",
        "kill": "killed",
        "crash": "crashed",
        "lost": "killed",
    }
    assert results["kill"]["failure"]["message"].startswith("signal 9 (SIGKILL) killed the worker process")
    message = results["lost"]["failure"]["message"]
    assert "ended as FAILED without a run result" in message
    assert not list((on_slurm.folder / "runs").rglob("*.pkl"))
    [folder] = (on_slurm.folder / "state" / "attnlab" / "slurm").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert len(on_slurm.load_attempts()) == 8, "two retries of each infrastructure failure"
    assert "report: reports/ends" in out


@pytest.mark.parametrize("command", [("scontrol", "requeue"), ("scancel", "--signal=USR2")])
def test_requeued_or_preempted_job_resumes_from_its_checkpoint(on_slurm, command):
    process = on_slurm.start("model.act=resume", *on_slurm.line)
    try:
        wait_until(lambda: list((on_slurm.folder / "runs").glob("*/last.ckpt")), 40)
        [job] = query_slurm(on_slurm, "squeue", "--noheader", "--states=running", "--format=%i").split()
        query_slurm(on_slurm, *command, job)
        wait_until(
            lambda: (
                "PENDING" in query_slurm(on_slurm, "squeue", "--noheader", "--format=%T", f"--jobs={job}")
            ),
            40,
        )
        query_slurm(
            on_slurm, "scontrol", "update", f"jobid={job}", "StartTime=now+2"
        )  # sooner than SLURM's default
        out, err = process.communicate(timeout=60)
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 0, out + err
    assert "done  val/loss" in out
    assert len(on_slurm.load_attempts()) == 2  # one run, two attempts


def test_ctrl_c_cancels_the_array_and_writes_the_report(on_slurm):
    process = on_slurm.start("+experiment=ends", "arms=[train,sleep]", "seed=0,1", *on_slurm.line)
    try:
        wait_until(lambda: len(on_slurm.load_attempts()) == 4 and len(load_records(on_slurm.folder)) == 2, 40)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=40)
    assert process.returncode == 130, err
    assert query_slurm(on_slurm, "squeue", "--noheader") == ""
    assert [record["status"] for record in load_records(on_slurm.folder).values()] == ["done", "done"]
    assert list((on_slurm.folder / "reports").glob("*/report.json"))


def test_sbatch_error_is_one_line_and_starts_nothing(on_slurm):
    status, _, err = on_slurm("heads=two", *on_slurm.line, "hydra.launcher.partition=nowhere")
    assert (status, on_slurm.load_attempts()) == (2, [])
    assert err.startswith("attnlab: sbatch rejected the job: ")
    assert "invalid partition specified: nowhere" in err
    assert err.count("\n") == 1


@pytest.mark.timeout(600)
def test_command_that_does_not_wait_is_continued_to_the_report_of_one_that_waits(on_slurm):
    sweep = ("+experiment=heads", "arms=[two,four]", "match=none", "controlled=[]", "looks=[2,4]")
    sweep += ("seeds=null", "claims.0.threshold=0.081", "hydra/launcher=slurm", "hydra.launcher.poll=0.5")
    status, out, err = on_slurm(*sweep, LEAVE)
    assert status == 0, err
    assert "submitted 4 runs (SLURM job" in out
    assert "status: python -m attnlab status --config-path" in out
    wait_for_empty_queue(on_slurm)
    left, results = load_report(on_slurm.folder / "reports"), load_records(on_slurm.folder)
    assert len(on_slurm.load_attempts()) == len(results) == 8
    for name in ("runs", "reports"):
        (on_slurm.folder / name).rename(on_slurm.folder / f"left_{name}")
    assert on_slurm(*sweep)[0] == 0
    waited = load_report(on_slurm.folder / "reports")
    assert load_records(on_slurm.folder) == results
    assert {key: left[key] for key in ("verdict", "runs")} == {
        key: waited[key] for key in ("verdict", "runs")
    }


@pytest.mark.timeout(600)
def test_repeated_command_submits_no_run_that_is_in_the_queue(on_slurm):
    sweep = ("+experiment=heads", "arms=[two,four]", "match=none", "controlled=[]", "model.act=gate")
    sweep += (*on_slurm.line, LEAVE)
    assert on_slurm(*sweep)[0] == 0
    wait_until(lambda: len(on_slurm.load_attempts()) == 2, 60)
    queue = query_slurm(on_slurm, "squeue", "--noheader", "--format=%i")
    status, out, _ = on_slurm(*sweep)
    assert status == 0
    assert "nothing submitted: 4 runs are in the queue" in out
    assert query_slurm(on_slurm, "squeue", "--noheader", "--format=%i") == queue
    other = (*sweep, "hydra.launcher.time=50", "paths.reports=others")
    status, out, _ = on_slurm(*other)
    assert "submitted 0 runs; 4 more are in the queue" in out
    (on_slurm.folder / "open").touch()
    wait_for_empty_queue(on_slurm)
    assert len(on_slurm.load_attempts()) == 4
    reports = [load_report(on_slurm.folder / name) for name in ("reports", "others")]
    assert reports[0]["verdict"] == reports[1]["verdict"] != "NO RESULT"


@pytest.mark.timeout(600)
def test_chain_retries_lost_runs_twice_halves_batches_and_ends(on_slurm):
    sweep = ("+experiment=ends", "arms=[train,lost,memory,crash]", "sweep.halve_batch=true")
    sweep += ("sweep.retry_failed=true", *on_slurm.line, LEAVE)
    assert on_slurm(*sweep)[0] == 0
    wait_for_empty_queue(on_slurm)
    attempts = [act for act, *_ in on_slurm.load_attempts()]
    assert {act: attempts.count(act) for act in attempts} == {"train": 1, "lost": 3, "memory": 3, "crash": 1}
    results = load_records_by_act(on_slurm.folder)
    assert {act: record["status"] for act, record in results.items()} == {
        "train": "done",
        "lost": "killed",
        "memory": "done",
        "crash": "crashed",
    }
    assert load_report(on_slurm.folder / "reports")["runs"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("wait", ["true", "false"])
def test_only_node_is_put_in_quarantine_and_the_sweep_ends(on_slurm, wait):
    sweep = ("+experiment=heads", "arms=[two,four]", "match=none", "controlled=[]", "seed=0,1,2,3")
    on_slurm.environment["TOY_DEVICE"] = "none"
    status, out, _ = on_slurm(*sweep, "sweep.slots=1", *on_slurm.line, f"hydra.launcher.wait={wait}")
    assert status == (1 if wait == "true" else 0)
    wait_for_empty_queue(on_slurm)
    logs = [path.read_text() for path in (on_slurm.folder / "state").rglob("*_log.out")]
    out = out if wait == "true" else "".join(logs)
    assert "is in quarantine for this sweep: 3 runs in a row failed on this host, the last with: " in out
    assert out.count("no other node is left: the remaining runs were not started") >= 1
    statuses = [record["status"] for record in load_records(on_slurm.folder).values()]
    assert statuses.count("killed") == (3 if wait == "true" else 8)
    assert wait == "false" or len(statuses) < 8
    assert load_report(on_slurm.folder / "reports")["verdict"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["heads=two", "sweep.fail_fast=true"], "no command waits for the first failure"),
        (["compare", "heads=two", "heads=four"], "the experiment of this verb ends with the command"),
    ],
)
def test_command_that_cannot_be_left_is_refused_before_a_run(on_slurm, line, message):
    status, _, err = on_slurm(*line, *on_slurm.line, LEAVE)
    assert (status, on_slurm.load_attempts(), err.count("\n")) == (2, [], 1)
    assert f"hydra.launcher.wait=false: {message}" in err
    assert query_slurm(on_slurm, "squeue", "--noheader") == ""
