"""A sweep over real processes: finished runs are skipped, outcomes recorded, and no process is orphaned."""

import errno
import io
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import get_parent, is_alive, list_children, load_records, load_records_by_act, wait_until
from stored_runs import make_spec, write_spec

from attnlab.store import run_directories
from attnlab.sweep.execute import worker_slots
from attnlab.sweep.execute.pool import Pool
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.launchers.attempt import Attempt


def test_every_outcome_is_recorded_and_only_missing_runs_are_trained_again(attnlab):
    status, out, _ = attnlab("+experiment=ends", "sweep.max_time=1")
    ends = load_records_by_act(attnlab.folder)
    assert status == 1
    assert {act: record["status"] for act, record in ends.items()} == {
        "train": "done",
        "crash": "crashed",
        "kill": "killed",
        "memory": "host_out_of_memory",
        "diverge": "diverged",
        "sleep": "timed_out",
    }
    assert ends["crash"]["failure"]["message"] == "KeyError: 'the toy broke'"
    assert ends["crash"]["failure"]["step"] == 2
    assert f"the last words of {ends['kill']['id']}" in ends["kill"]["failure"]["tail"]
    assert "report: reports/ends/report.html" in out
    assert (attnlab.folder / "reports/ends/report.json").exists()

    message = "signal 9 (SIGKILL) killed the worker process (possibly the out-of-memory killer)"
    assert ends["kill"]["failure"]["message"] == message
    attempts = ["crash", "diverge", *["kill"] * 3, *["memory"] * 3, "sleep", "train"]
    assert sorted(act for act, *_ in attnlab.load_attempts()) == attempts, (
        "two retries of infrastructure failures"
    )
    assert f"kill seed=0: retry 1 of 2 after: {message}" in out
    assert f"kill seed=0: retry 2 of 2 after: {message}" in out

    status, out, _ = attnlab("+experiment=ends", "sweep.max_time=1", "sweep.fail_fast=true")
    assert status == 1
    assert "6 runs, 1 done, 2 to train, 3 failed earlier" in out
    later_attempts = sorted(act for act, *_ in attnlab.load_attempts()[len(attempts) :])
    assert set(later_attempts) <= {"kill", "memory"}
    assert len(later_attempts) == len(set(later_attempts)), "asked to stop at the first failure"

    (attnlab.folder / "mended").touch()
    (attnlab.folder / "runs" / ends["train"]["id"] / "run.json").write_text('{"schema": 1, "id": "cut')
    attnlab("+experiment=ends", "sweep.max_time=1", "arms=[train,crash,sleep]", "sweep.retry_failed=true")
    assert sorted(act for act, *_ in attnlab.load_attempts()[len(attempts) + len(later_attempts) :]) == [
        "crash",
        "sleep",
        "train",
    ]
    assert {load_records_by_act(attnlab.folder)[act]["status"] for act in ("train", "crash", "sleep")} == {
        "done"
    }


def test_killed_run_is_retried_by_the_same_command(attnlab):
    status, _, _ = attnlab("+experiment=ends", "arms=[train,unlucky]")
    assert status == 0
    assert [act for act, *_ in attnlab.load_attempts()].count("unlucky") == 2
    assert {record["status"] for record in load_records(attnlab.folder).values()} == {"done"}


@pytest.mark.parametrize("also", [["workers"], pytest.param([], marks=pytest.mark.rare)])
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the fork server in /proc")
def test_sweep_survives_the_end_of_its_fork_server(attnlab, also):
    process = attnlab.start("model.act=gate", "seed=0,1,2,3", "sweep.slots=2")
    wait_until(lambda: len(attnlab.load_attempts()) == 2, 40)
    workers = [int(pid) for _, _, pid, _ in attnlab.load_attempts()]
    [server] = {get_parent(pid) for pid in workers}
    assert server in list_children(process.pid)
    for pid in (server, *(workers if also else ())):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(server))
    (attnlab.folder / "open").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    seeds = sorted(int(seed) for _, seed, *_ in attnlab.load_attempts())
    assert seeds == ([0, 0, 1, 1, 2, 3] if also else [0, 1, 2, 3]), "workers outlive the server"
    assert out.count("retry 1 of 2 after: the fork server exited") == len(also) * 2
    assert "retry 2" not in out
    assert [record["status"] for record in load_records(attnlab.folder).values()] == ["done"] * 4


def test_worker_that_cannot_be_started_is_an_infrastructure_failure(tmp_path, monkeypatch):
    starts = []

    def start(*arguments):
        starts.append(arguments)
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(worker_slots, "start_child", start)
    folders = [write_spec(tmp_path, make_spec({"seed": seed})) for seed in range(2)]
    Pool({"slots": 1}, Progress({}, io.StringIO()), None).run(folders)
    assert len(starts) == 2, "the pool goes on to the second run"
    for record in map(run_directories.load_run_result, folders):
        assert (record.status, record.is_lost) == ("killed", True)
        assert record.failure.message.startswith("the worker process did not start: ")


@pytest.mark.parametrize(
    "train",
    [
        lambda folder: Pool({"slots": 1, "max_time": 60}, Progress({}, io.StringIO()), None).run([folder]),
        lambda folder: Attempt(str(folder), os.getcwd(), 1, True, 60.0, {})(),
    ],
    ids=["pool", "cluster"],
)
def test_pause_of_the_machine_does_not_use_up_the_time_of_a_run(tmp_path, monkeypatch, train):
    folder = write_spec(tmp_path, make_spec({"seed": 0}))
    offset, exit_codes = 0.0, [0, None, None]

    def poll_exit_code():
        nonlocal offset
        offset += 3600.0
        return exit_codes.pop() if len(exit_codes) > 1 else exit_codes[0]

    for name in ("time", "monotonic"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + offset)
    child = SimpleNamespace(pid=2**22, poll_exit_code=poll_exit_code)  # larger than any process id
    monkeypatch.setattr(worker_slots, "start_child", lambda *_: child)
    train(folder)
    assert run_directories.load_run_result(folder) is None, "not timed out"


@pytest.mark.rare
def test_run_lost_in_every_retry_fails_the_command_but_not_its_arm(attnlab):
    line = ("+experiment=ends", "arms=[train,kill]", "seed=0")
    status, out, _ = attnlab(*line)
    assert status == 1
    assert [act for act, *_ in attnlab.load_attempts()].count("kill") == 3
    ends = load_records_by_act(attnlab.folder)
    assert {act: record["status"] for act, record in ends.items()} == {"train": "done", "kill": "killed"}
    [path] = (attnlab.folder / "reports").glob("*/report.json")
    report = json.loads(path.read_text())
    counts = {row["arm"]: (row["failed"], row["lost"]) for row in report["failures"]["counts"]}
    assert counts == {"train": (0, 0), "kill": (0, 1)}
    assert report["failures"]["status_counts"] == [["lost to the machine", 1]]
    assert report["verdict"]["run_warnings"][0].startswith("Lost to the machine: kill seed 0. ")
    status, out, _ = attnlab(*line)
    assert (status, "2 runs, 1 done, 1 to train" in out) == (1, True), "without sweep.retry_failed"
    assert [act for act, *_ in attnlab.load_attempts()].count("kill") == 6


@pytest.mark.rare
def test_out_of_memory_run_is_retried_with_split_batches_under_halve_batch(attnlab):
    status, out, _ = attnlab("+experiment=ends", "arms=[train,memory]", "sweep.halve_batch=true")
    assert status == 0
    assert "memory seed=0 ran out of memory: retrying with each batch in 4 parts" in out
    assert [act for act, *_ in attnlab.load_attempts()].count("memory") == 3
    assert {record["status"] for record in load_records(attnlab.folder).values()} == {"done"}
    status, _, _ = attnlab(
        "+experiment=ends", "arms=[train,memory]", "data.batch_size=3", "sweep.halve_batch=true"
    )
    assert status == 1, "three examples have no half"


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer.devices=3", "trainer.devices=3 exceeds the 2 available devices"),
        ("trainer.devices=0", "trainer.devices=0: must be at least 1"),
        ("sweep.slots_per_gpu=2", "the runs train on a CPU"),
    ],
)
def test_too_many_devices_are_rejected_before_training(attnlab, override, line):
    override = f"+{override}" if "devices" in override else override
    status, out, err = attnlab("+experiment=ends", override)
    assert status == 2
    assert line in err
    assert (out, err.count("\n")) == ("", 1)
    assert attnlab.load_attempts() == []
    assert not list(attnlab.folder.rglob("spec.json"))


@pytest.mark.rare
def test_runs_are_shared_between_commands(attnlab):
    status, out, _ = attnlab("heads=two", "seed=0,1")
    assert status == 0
    assert "done  val/loss 2.0800" in out
    status, out, _ = attnlab("+experiment=heads", "arms=[two,copy]", "claims=[]")
    assert status == 0
    assert "4 runs, 2 done, 2 to train" in out
    assert len(attnlab.load_attempts()) == 4


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.rare)],
)
def test_interrupt_ends_all_processes_and_the_report_lists_missing_runs(attnlab, number, expected):
    process = attnlab.start("+experiment=ends", "arms=[train,sleep]")
    wait_until(
        lambda: (
            len(attnlab.load_attempts()) == 2 and load_records_by_act(attnlab.folder).get("train") is not None
        )
    )
    sent = time.monotonic()
    os.killpg(process.pid, number)  # as a terminal does: to the whole group
    process.communicate(timeout=30)
    assert process.returncode == expected
    assert time.monotonic() - sent < 15
    assert not any(is_alive(pid) for _, _, pid, _ in attnlab.load_attempts())
    assert set(load_records_by_act(attnlab.folder)) == {"train"}
    [report] = (attnlab.folder / "reports").glob("*/report.json")
    assert {run["arm"]: run["status"] for run in json.loads(report.read_text())["runs"]} == {
        "train": "done",
        "sleep": "missing",
    }


def test_workers_do_not_outlive_a_killed_sweep(attnlab):
    process = attnlab.start("model.act=sleep", "seed=0,1")
    wait_until(lambda: len(attnlab.load_attempts()) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_until(lambda: not any(is_alive(pid) for _, _, pid, _ in attnlab.load_attempts()))


@pytest.mark.rare
def test_sweep_runs_with_a_long_tmpdir(attnlab):
    place = attnlab.folder / ("long" * 20)
    place.mkdir()
    attnlab.environment["TMPDIR"] = str(place)
    status, _, err = attnlab("model.act=train")
    assert status == 0, err


@pytest.mark.rare
def test_each_gpu_run_sees_only_its_own_device(attnlab):
    attnlab.environment["CUDA_VISIBLE_DEVICES"] = "3,GPU-abc"
    status, _, errors = attnlab("model.device=toy card", "seed=0,1", "model.act=train", "sweep.slots=null")
    assert status == 0, errors
    assert sorted(device for *_, device in attnlab.load_attempts()) == ["3", "GPU-abc"]


def test_fail_fast_starts_no_run_after_the_first_failure(attnlab):
    status, out, _ = attnlab("model.act=crash", "seed=0,1,2,3", "sweep.fail_fast=true", "sweep.slots=1")
    assert status == 1
    assert len(attnlab.load_attempts()) == 1
    assert out.count("missing") == 3


@pytest.mark.parametrize("verb", [(), pytest.param(("work",), marks=pytest.mark.rare)])
def test_fail_fast_starts_no_stage_after_the_first_failure(attnlab, verb):
    tune = "tune={lr:[0.1,0.2],seeds:[7,8,9]}"
    line = ("+experiment=ends", "arms=[train,crash]", tune, "sweep.fail_fast=true", "sweep.slots=1")
    status, _, err = attnlab(*verb, *line)
    acts = [act for act, *_ in attnlab.load_attempts()]
    assert (status, acts.count("crash"), acts[-1]) == (1, 1, "crash"), err
    assert list(attnlab.folder.glob("reports/*/report.json"))


@pytest.mark.rare
@pytest.mark.parametrize("line", [["hydra/launcher=basic"], ["hydra.mode=RUN"]])
def test_other_launchers_and_hydra_run_mode_store_the_same_run(attnlab, line):
    status, out, err = attnlab("heads=four", *line)
    assert status == 0, err
    assert "done  val/loss 2.1600" in out
    status, out, _ = attnlab("heads=four")
    assert (status, len(attnlab.load_attempts())) == (0, 1)


@pytest.mark.rare
def test_arm_that_violates_an_invariant_is_trained_only_with_unchecked(attnlab):
    line = ["+experiment=heads", "arms=[two,four]", "+model.attention.lawless=true", "seed=0"]
    status, _, err = attnlab(*line)
    assert (status, attnlab.load_attempts()) == (2, [])
    assert err == (
        "attnlab: arm two breaks an attention invariant: gravity: at T=1: it floats; fix it "
        "(python -m attnlab check lists all), or set sweep.unchecked=true, which the report will note\n"
    )
    status, _, err = attnlab(*line, "sweep.unchecked=true")
    assert (status, len(attnlab.load_attempts())) == (0, 2)
    assert err.count("unchecked: ") == 2
    [report] = (attnlab.folder / "reports").glob("*/report.md")
    assert "An attention invariant fails, and the sweep waived it: four breaks gravity" in (
        report.read_text()
    )


@pytest.mark.rare
def test_passed_invariant_checks_are_cached(attnlab):
    for _ in range(2):
        assert attnlab("heads=two", "seed=0,1")[0] == 0
    verified = (attnlab.folder / "verified").read_text().splitlines()
    assert len(verified) == 1


@pytest.mark.rare
def test_children_of_a_failed_parent_are_listed_and_not_started(attnlab):
    line = ["+experiment=heads", "arms=[two,child]", "claims=[]", "match=none", "seed=0,1"]
    status, out, _ = attnlab(*line, "model.act=crash")
    assert (status, len(attnlab.load_attempts())) == (1, 2)
    assert out.count(" not started: its parent ") == 2
    (attnlab.folder / "mended").touch()
    status, out, _ = attnlab(*line, "model.act=crash", "sweep.retry_failed=true")
    assert (status, len(attnlab.load_attempts())) == (0, 6)


def test_unknown_parent_is_rejected_before_training(attnlab):
    status, _, err = attnlab("heads=two", "parent=nobody")
    assert (status, attnlab.load_attempts()) == (2, [])
    assert "parent=nobody of run: neither an arm nor a finished run in runs" in err


@pytest.mark.rare
def test_concurrent_commands_train_each_run_once_and_both_report(attnlab):
    line = ("+experiment=ends", "arms=[train,slow,crash]", "seed=0,1", "sweep.slots=2")
    both = [attnlab.start(*line, f"paths.reports=reports{n}") for n in (1, 2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [1, 1], outputs  # both saw the crashed run
    assert sorted((act, seed) for act, seed, *_ in attnlab.load_attempts()) == [
        (act, seed) for act in ("crash", "slow", "train") for seed in "01"
    ]
    (attnlab.folder / "mended").touch()
    line = ("+experiment=ends", "arms=[train,slow,crash]", "seed=0,1,2", "sweep.retry_failed=true")
    both = [attnlab.start(*line, f"paths.reports=reports{n}") for n in (1, 2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert len(attnlab.load_attempts()) == 6 + 3 + 2  # the new seed and the crashed runs
    for n in (1, 2):
        reports = [json.loads(path.read_text()) for path in attnlab.folder.glob(f"reports{n}/*/report.json")]
        [last] = [report for report in reports if len(report["runs"]) == 9]
        assert {run["status"] for run in last["runs"]} == {"done"}


def test_user_variant_needs_only_a_module_and_a_yaml_file(attnlab):
    (attnlab.folder / "conf" / "heads").mkdir(parents=True)
    (attnlab.folder / "conf" / "heads" / "mine.yaml").write_text(
        "# @package _global_\nmodel: {attention: {_target_: my_variant.Heads, n_heads: 3}}\n"
    )
    (attnlab.folder / "my_variant.py").write_text("class Heads: ...\n")
    command = ("--config-dir", "conf", "heads=mine")
    status, out, err = attnlab(*command)
    assert status == 0, err
    assert "done  val/loss 2.1200" in out
    (attnlab.folder / "my_variant.py").write_text("class Heads: 'another'\n")
    attnlab(*command)
    attnlab(*command)
    assert len(attnlab.load_attempts()) == 2
    assert len((attnlab.folder / "verified").read_text().splitlines()) == 2  # checked once per source
