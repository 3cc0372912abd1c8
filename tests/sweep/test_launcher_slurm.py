"""Laws of the launcher `slurm`, over a real cluster of one node: same runs, same failures, requeues."""

import os
import signal
import subprocess
from contextlib import ExitStack
from importlib.util import find_spec

import one_node
import pytest
from processes import records, records_by_act, wait_until

LACKING = [*one_node.missing(), *(() if find_spec("submitit") else ["submitit"])]
pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(
        bool(LACKING), reason=f"no {', '.join(LACKING)}: apt install slurm-wlm munge, pip install .[slurm]"
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> dict[str, str]:
    with ExitStack() as stack:
        try:
            environment = stack.enter_context(one_node.cluster(tmp_path_factory.mktemp("slurm")))
        except one_node.DidNotStart as error:
            pytest.skip(f"SLURM is installed, and did not start here: {error}")
        yield environment


@pytest.fixture
def on_slurm(attnlab, cluster):
    attnlab.environment |= cluster
    attnlab.line = ["hydra/launcher=slurm", "hydra.launcher.poll=0.5"]
    return attnlab


def ask(on_slurm, *line: str) -> str:
    done = subprocess.run(line, env=on_slurm.environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_slurm_stores_the_records_of_the_pool_and_trains_nothing_twice(on_slurm):
    line = ["heads=two,four", "seed=0,1"]
    status, out, err = on_slurm(*line, *on_slurm.line)
    assert status == 0, err
    assert "4 runs, 0 done, 4 to train" in out
    assert len({pid for _, _, pid, *_ in on_slurm.trained()}) == 4  # a fresh process each
    stored = records(on_slurm.folder)
    status, out, _ = on_slurm(*line, *on_slurm.line)
    assert (status, len(on_slurm.trained())) == (0, 4)
    (on_slurm.folder / "runs").rename(on_slurm.folder / "elsewhere")
    assert on_slurm(*line)[0] == 0
    assert records(on_slurm.folder) == stored


def test_looks_are_made_one_after_the_other(on_slurm):
    looks = ("arms=[two,four]", "match=none", "held=[]", "looks=[2,4,6]", "seeds=null")
    status, out, err = on_slurm("+experiment=heads", *looks, *on_slurm.line)
    assert status == 0, err
    assert "Stopped at interim analysis 1 of 3, 2 paired seeds." in out
    assert sorted(int(seed) for _, seed, *_ in on_slurm.trained()) == [0, 0, 1, 1]


def test_a_killed_worker_and_a_lost_job_are_recorded_and_the_others_finish(on_slurm):
    line = ["+experiment=ends", "arms=[train,kill,crash,lost]", "sweep.max_time=30", "sweep.slots=1"]
    status, out, _ = on_slurm(*line, *on_slurm.line)
    assert status == 1
    found = records_by_act(on_slurm.folder)
    assert {act: record["status"] for act, record in found.items()} == {
        "train": "done",
        "kill": "killed",
        "crash": "crashed",
        "lost": "killed",
    }
    assert found["kill"]["failure"]["message"].startswith(
        "the worker process was ended by signal 9 (SIGKILL)"
    )
    assert "ended as FAILED without a record of the run" in found["lost"]["failure"]["message"]
    assert len(on_slurm.trained()) == 8, "two retries of each infrastructure failure"
    assert "report: reports/ends" in out


@pytest.mark.parametrize("command", [("scontrol", "requeue"), ("scancel", "--signal=USR2")])
def test_a_requeued_or_pre_empted_job_carries_on_from_its_checkpoint(on_slurm, command):
    process = on_slurm.start("model.act=resume", *on_slurm.line)
    try:
        wait_until(lambda: list((on_slurm.folder / "runs").glob("*/last.ckpt")), 40)
        [job] = ask(on_slurm, "squeue", "--noheader", "--states=running", "--format=%i").split()
        ask(on_slurm, *command, job)
        wait_until(
            lambda: "PENDING" in ask(on_slurm, "squeue", "--noheader", "--format=%T", f"--jobs={job}"), 40
        )
        ask(
            on_slurm, "scontrol", "update", f"jobid={job}", "StartTime=now+2"
        )  # sooner, in the cluster of a test
        out, err = process.communicate(timeout=60)
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 0, out + err
    assert "done  val/loss" in out
    assert len(on_slurm.trained()) == 2  # one run, two attempts


def test_ctrl_c_cancels_the_array_and_the_report_is_written(on_slurm):
    process = on_slurm.start("+experiment=ends", "arms=[train,sleep]", "seed=0,1", *on_slurm.line)
    try:
        wait_until(lambda: len(on_slurm.trained()) == 4 and len(records(on_slurm.folder)) == 2, 40)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=40)
    assert process.returncode == 130, err
    assert ask(on_slurm, "squeue", "--noheader") == ""
    assert [record["status"] for record in records(on_slurm.folder).values()] == ["done", "done"]
    assert list((on_slurm.folder / "reports").glob("*/report.json"))


def test_what_sbatch_refuses_is_one_line_and_nothing_is_started(on_slurm):
    status, _, err = on_slurm("heads=two", *on_slurm.line, "hydra.launcher.partition=nowhere")
    assert (status, on_slurm.trained()) == (2, [])
    assert err.startswith("attnlab: sbatch refused: ")
    assert "invalid partition specified: nowhere" in err
    assert err.count("\n") == 1
