"""The laws of a sweep, over real processes: done is skipped, ends are recorded, nothing is orphaned."""

import errno
import io
import json
import os
import signal
import time
from pathlib import Path

import pytest
from processes import alive, children, parent, records, records_by_act, wait_until

from attnlab.store import runs
from attnlab.store.schema import RunSpec
from attnlab.sweep.execute import slots
from attnlab.sweep.execute.pool import Pool
from attnlab.sweep.execute.progress import Progress


def test_every_end_is_recorded_the_others_finish_and_only_what_is_missing_runs_again(attnlab):
    status, out, _ = attnlab("+experiment=ends", "sweep.max_time=1")
    ends = records_by_act(attnlab.folder)
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

    told = "the worker process was ended by signal 9 (SIGKILL), as the out-of-memory killer does"
    assert ends["kill"]["failure"]["message"] == told
    tried = ["crash", "diverge", *["kill"] * 3, *["memory"] * 3, "sleep", "train"]
    assert sorted(act for act, *_ in attnlab.trained()) == tried, "two retries of infrastructure failures"
    assert f"kill seed=0: retry 1 of 2, since {told}" in out
    assert f"kill seed=0: retry 2 of 2, since {told}" in out

    status, out, _ = attnlab("+experiment=ends", "sweep.max_time=1", "sweep.fail_fast=true")
    assert status == 1
    assert "6 runs, 1 done, 2 to train, 3 failed before" in out
    more = sorted(act for act, *_ in attnlab.trained()[len(tried) :])
    assert set(more) <= {"kill", "memory"}
    assert len(more) == len(set(more)), "asked to stop at the first failure"

    (attnlab.folder / "mended").touch()
    (attnlab.folder / "runs" / ends["train"]["id"] / "run.json").write_text('{"schema": 1, "id": "cut')
    attnlab("+experiment=ends", "sweep.max_time=1", "arms=[train,crash,sleep]", "sweep.retry_failed=true")
    assert sorted(act for act, *_ in attnlab.trained()[len(tried) + len(more) :]) == [
        "crash",
        "sleep",
        "train",
    ]
    assert {records_by_act(attnlab.folder)[act]["status"] for act in ("train", "crash", "sleep")} == {"done"}


def test_a_run_that_was_killed_once_is_run_again_by_the_same_command(attnlab):
    status, _, _ = attnlab("+experiment=ends", "arms=[train,unlucky]")
    assert status == 0
    assert [act for act, *_ in attnlab.trained()].count("unlucky") == 2
    assert {record["status"] for record in records(attnlab.folder).values()} == {"done"}


@pytest.mark.parametrize("also", [["workers"], pytest.param([], marks=pytest.mark.rare)])
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the fork server in /proc")
def test_a_sweep_survives_the_end_of_its_fork_server(attnlab, also):
    process = attnlab.start("model.act=gate", "seed=0,1,2,3", "sweep.slots=2")
    wait_until(lambda: len(attnlab.trained()) == 2, 40)
    workers = [int(pid) for _, _, pid, _ in attnlab.trained()]
    [server] = {parent(pid) for pid in workers}
    assert server in children(process.pid)
    for pid in (server, *(workers if also else ())):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(server))
    (attnlab.folder / "open").touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    seeds = sorted(int(seed) for _, seed, *_ in attnlab.trained())
    assert seeds == ([0, 0, 1, 1, 2, 3] if also else [0, 1, 2, 3]), "workers outlive the server"
    assert out.count("retry 1 of 2, since the fork server ended") == len(also) * 2
    assert "retry 2" not in out
    assert [record["status"] for record in records(attnlab.folder).values()] == ["done"] * 4


def test_a_worker_that_cannot_be_started_is_an_infrastructure_failure(tmp_path, monkeypatch):
    starts = []

    def start(*arguments):
        starts.append(arguments)
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(slots, "start", start)
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        runs.write_spec(tmp_path, RunSpec(id=folder.name, config={"seed": 0}))
    Pool({"slots": 1}, Progress({}, io.StringIO()), None).run(folders)
    assert len(starts) == 2, "the pool goes on to the second run"
    for record in map(runs.record, folders):
        assert (record.status, record.lost) == ("killed", True)
        assert record.failure.message.startswith("its worker process could not be started: ")


@pytest.mark.rare
def test_a_run_that_is_lost_every_time_fails_the_command_and_no_arm(attnlab):
    line = ("+experiment=ends", "arms=[train,kill]", "seed=0")
    status, out, _ = attnlab(*line)
    assert status == 1
    assert [act for act, *_ in attnlab.trained()].count("kill") == 3
    ends = records_by_act(attnlab.folder)
    assert {act: record["status"] for act, record in ends.items()} == {"train": "done", "kill": "killed"}
    [path] = (attnlab.folder / "reports").glob("*/report.json")
    report = json.loads(path.read_text())
    counts = {row["arm"]: (row["failed"], row["lost"]) for row in report["failures"]["counts"]}
    assert counts == {"train": (0, 0), "kill": (0, 1)}
    assert report["failures"]["words"] == [["lost to the machine", 1]]
    assert report["verdict"]["unlike"][0].startswith("Lost to the machine: kill seed 0. ")
    status, out, _ = attnlab(*line)
    assert (status, "2 runs, 1 done, 1 to train" in out) == (1, True), "without sweep.retry_failed"
    assert [act for act, *_ in attnlab.trained()].count("kill") == 6


@pytest.mark.rare
def test_a_run_out_of_memory_is_run_again_in_smaller_parts_where_that_is_asked(attnlab):
    status, out, _ = attnlab("+experiment=ends", "arms=[train,memory]", "sweep.halve_batch=true")
    assert status == 0
    assert "memory seed=0 ran out of memory: once more, its batches in 4 parts" in out
    assert [act for act, *_ in attnlab.trained()].count("memory") == 3
    assert {record["status"] for record in records(attnlab.folder).values()} == {"done"}
    status, _, _ = attnlab(
        "+experiment=ends", "arms=[train,memory]", "data.batch_size=3", "sweep.halve_batch=true"
    )
    assert status == 1, "three examples have no half"


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer.devices=3", "trainer.devices=3, and there are 2 here"),
        ("trainer.devices=0", "trainer.devices=0: give the number"),
        ("sweep.slots_per_gpu=2", "these runs train on a CPU"),
    ],
)
def test_more_devices_than_there_are_is_refused_before_any_training(attnlab, override, line):
    override = f"+{override}" if "devices" in override else override
    status, out, err = attnlab("+experiment=ends", override)
    assert status == 2
    assert line in err
    assert (out, err.count("\n")) == ("", 1)
    assert attnlab.trained() == []
    assert not list(attnlab.folder.rglob("spec.json"))


@pytest.mark.rare
def test_a_run_of_one_experiment_serves_every_other_command(attnlab):
    status, out, _ = attnlab("heads=two", "seed=0,1")
    assert status == 0
    assert "done  val/loss 2.0800" in out
    status, out, _ = attnlab("+experiment=heads", "arms=[two,copy]", "claims=[]")
    assert status == 0
    assert "4 runs, 2 done, 2 to train" in out
    assert len(attnlab.trained()) == 4


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.rare)],
)
def test_an_interrupt_ends_the_whole_tree_and_the_report_says_what_is_missing(attnlab, number, expected):
    process = attnlab.start("+experiment=ends", "arms=[train,sleep]")
    wait_until(
        lambda: len(attnlab.trained()) == 2 and records_by_act(attnlab.folder).get("train") is not None
    )
    sent = time.monotonic()
    os.killpg(process.pid, number)  # as a terminal does it: to the whole group
    process.communicate(timeout=30)
    assert process.returncode == expected
    assert time.monotonic() - sent < 15
    assert not any(alive(pid) for _, _, pid, _ in attnlab.trained())
    assert set(records_by_act(attnlab.folder)) == {"train"}
    [report] = (attnlab.folder / "reports").glob("*/report.json")
    assert {run["arm"]: run["status"] for run in json.loads(report.read_text())["runs"]} == {
        "train": "done",
        "sleep": "missing",
    }


def test_workers_do_not_outlive_a_sweep_that_is_killed(attnlab):
    process = attnlab.start("model.act=sleep", "seed=0,1")
    wait_until(lambda: len(attnlab.trained()) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_until(lambda: not any(alive(pid) for _, _, pid, _ in attnlab.trained()))


@pytest.mark.rare
def test_a_temporary_folder_with_a_long_name_stops_nothing(attnlab):
    place = attnlab.folder / ("long" * 20)
    place.mkdir()
    attnlab.environment["TMPDIR"] = str(place)
    status, _, err = attnlab("model.act=train")
    assert status == 0, err


@pytest.mark.rare
def test_on_gpus_every_run_is_an_interpreter_that_sees_its_own_device_only(attnlab):
    attnlab.environment["CUDA_VISIBLE_DEVICES"] = "3,GPU-abc"
    status, _, errors = attnlab("model.device=toy card", "seed=0,1", "model.act=train", "sweep.slots=null")
    assert status == 0, errors
    assert sorted(device for *_, device in attnlab.trained()) == ["3", "GPU-abc"]


def test_fail_fast_starts_nothing_after_the_first_failure(attnlab):
    status, out, _ = attnlab("model.act=crash", "seed=0,1,2,3", "sweep.fail_fast=true", "sweep.slots=1")
    assert status == 1
    assert len(attnlab.trained()) == 1
    assert out.count("missing") == 3


@pytest.mark.rare
@pytest.mark.parametrize("line", [["hydra/launcher=basic"], ["hydra.mode=RUN"]])
def test_other_launchers_and_a_plain_hydra_run_store_the_very_same_run(attnlab, line):
    status, out, err = attnlab("heads=four", *line)
    assert status == 0, err
    assert "done  val/loss 2.1600" in out
    status, out, _ = attnlab("heads=four")
    assert (status, len(attnlab.trained())) == (0, 1)


@pytest.mark.rare
def test_an_arm_that_breaks_a_law_publishes_no_numbers_unless_that_is_asked_for(attnlab):
    line = ["+experiment=heads", "arms=[two,four]", "+model.attention.lawless=true", "seed=0"]
    status, _, err = attnlab(*line)
    assert (status, attnlab.trained()) == (2, [])
    assert err == (
        "attnlab: arm two breaks a law of attention: gravity: at T=1: it floats; mend it "
        "(python -m attnlab check shows all), or set sweep.unchecked=true and have the report say so\n"
    )
    status, _, err = attnlab(*line, "sweep.unchecked=true")
    assert (status, len(attnlab.trained())) == (0, 2)
    assert err.count("unchecked: ") == 2
    [report] = (attnlab.folder / "reports").glob("*/report.md")
    assert "A law of attention does not hold, and the sweep was told to go on: four breaks gravity" in (
        report.read_text()
    )


@pytest.mark.rare
def test_what_obeys_is_asked_once(attnlab):
    for _ in range(2):
        assert attnlab("heads=two", "seed=0,1")[0] == 0
    verified = (attnlab.folder / "verified").read_text().splitlines()
    assert len(verified) == 1


@pytest.mark.rare
def test_children_of_a_failed_parent_are_named_and_not_started(attnlab):
    line = ["+experiment=heads", "arms=[two,child]", "claims=[]", "match=none", "seed=0,1"]
    status, out, _ = attnlab(*line, "model.act=crash")
    assert (status, len(attnlab.trained())) == (1, 2)
    assert out.count("not started: child seed=") == 2
    (attnlab.folder / "mended").touch()
    status, out, _ = attnlab(*line, "model.act=crash", "sweep.retry_failed=true")
    assert (status, len(attnlab.trained())) == (0, 6)


def test_an_unknown_parent_is_refused_before_anything_starts(attnlab):
    status, _, err = attnlab("heads=two", "parent=nobody")
    assert (status, attnlab.trained()) == (2, [])
    assert "parent=nobody of run: no arm, and no finished run in runs" in err


@pytest.mark.rare
def test_two_commands_on_one_store_train_each_run_once_and_both_report(attnlab):
    line = ("+experiment=ends", "arms=[train,slow,crash]", "seed=0,1", "sweep.slots=2")
    both = [attnlab.start(*line, f"paths.reports=reports{n}") for n in (1, 2)]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [1, 1], told  # a run crashed, in both eyes
    assert sorted((act, seed) for act, seed, *_ in attnlab.trained()) == [
        (act, seed) for act in ("crash", "slow", "train") for seed in "01"
    ]
    (attnlab.folder / "mended").touch()
    line = ("+experiment=ends", "arms=[train,slow,crash]", "seed=0,1,2", "sweep.retry_failed=true")
    both = [attnlab.start(*line, f"paths.reports=reports{n}") for n in (1, 2)]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert len(attnlab.trained()) == 6 + 3 + 2  # the new seed, and what had crashed
    for n in (1, 2):
        reports = [json.loads(path.read_text()) for path in attnlab.folder.glob(f"reports{n}/*/report.json")]
        [last] = [report for report in reports if len(report["runs"]) == 9]
        assert {run["status"] for run in last["runs"]} == {"done"}


def test_a_variant_of_ones_own_needs_a_module_and_a_yaml_and_no_file_of_ours(attnlab):
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
    assert len(attnlab.trained()) == 2
    assert len((attnlab.folder / "verified").read_text().splitlines()) == 2  # the laws, once per source
