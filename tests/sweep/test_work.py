"""Workers that share a sweep: each run is trained once, one worker reports, and a faulty host leaves."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from processes import change_identity, get_parent, is_alive, load_records, load_records_by_act, wait_until
from toys import TOY

from attnlab.cli.verbs.work import parse_duration
from attnlab.errors import InvalidConfig
from attnlab.store.atomic_files import write_json
from attnlab.store.config_groups import WorkLimits
from attnlab.store.lease import HOST, hold_lease
from attnlab.sweep.execute.pull import PullLauncher
from attnlab.sweep.execute.work_folder import WorkFolder, WorkPlan, load_workers

SWEEP = ("+experiment=heads", "seed=0,1,2,3", "sweep.slots=1")
# Python imports it at each start; the fork server and its children get the name too.
FAKE_HOST = "import os, socket\nsocket.gethostname = lambda: os.environ['FAKE_HOST']\n"


def load_losses(folder):
    return {id: record["metrics"].get("val/loss") for id, record in load_records(folder).items()}


def load_verdicts(folder):
    return [json.loads(path.read_text())["verdict"] for path in folder.glob("reports/*/report.json")]


def train_serially(attnlab, *overrides):
    """Train the runs by one command in another folder; return that folder."""
    status, _, err = attnlab(*overrides, "paths.runs=serial/runs", "paths.reports=serial/reports")
    assert status == 0, err
    return attnlab.folder / "serial"


def finish(worker):
    out, err = worker.communicate(timeout=100)
    assert worker.returncode == 0, out + err
    return out


def test_two_workers_train_each_run_once_and_one_of_them_reports(attnlab):
    sweep = (*SWEEP, "model.act=gate")
    workers = [attnlab.start("work", *sweep) for _ in range(2)]
    wait_until(lambda: len(attnlab.load_attempts()) == 2, 60)
    _, out, _ = attnlab("status", *sweep)
    for worker in workers:
        assert f"worker {HOST}, pid {worker.pid}, cpu, 1 slot: " in out
    assert "waiting" not in out
    [plan] = json.loads(attnlab("status", *sweep, "--json")[1])
    assert [each["pid"] for each in plan["workers"]] == sorted(worker.pid for worker in workers)
    (attnlab.folder / "open").touch()
    outputs = [finish(worker) for worker in workers]
    assert len(attnlab.load_attempts()) == 12, outputs
    assert sum("report: " in out for out in outputs) == 1
    assert sum("all runs have ended; the report is by " in out for out in outputs) == 1
    assert "worker" not in attnlab("status", *sweep)[1]

    serial = train_serially(attnlab, *sweep)
    assert load_losses(attnlab.folder) == load_losses(serial)
    assert load_verdicts(attnlab.folder) == load_verdicts(serial) != []


def test_limits_stop_a_worker_without_a_report_and_another_one_goes_on(attnlab):
    out = finish(attnlab.start("work", *SWEEP, "--max-runs", "2"))
    assert "stopped: --max-runs 2 is reached; this worker took 2 runs; repeat the command to go on" in out
    assert len(attnlab.load_attempts()) == 2
    assert not (attnlab.folder / "reports").exists() or not load_verdicts(attnlab.folder)
    finish(attnlab.start("work", *SWEEP))
    assert len(attnlab.load_attempts()) == 12
    assert len(load_verdicts(attnlab.folder)) == 1


@pytest.mark.rare
def test_worker_at_its_time_limit_leaves_a_run_to_be_continued(attnlab):
    sweep = ("+experiment=ends", "arms=[train,resume]")
    worker = attnlab.start("work", *sweep, "--for", "20s")  # the run takes a minute
    wait_until(lambda: list(attnlab.folder.glob("runs/*/last.ckpt")), 60)
    idle = attnlab.start("work", *sweep, "--idle", "1s")
    assert "stopped: no run was free for 1 s (--idle)" in finish(idle)
    assert "stopped: --for 20 s is over" in finish(worker)
    assert "resume" not in load_records_by_act(attnlab.folder), "not failed, only interrupted"
    finish(attnlab.start("work", *sweep))
    assert load_records_by_act(attnlab.folder)["resume"]["status"] == "done"


@pytest.mark.rare
def test_worker_with_other_code_is_refused_until_the_sweep_is_reported(attnlab):
    assert attnlab("work", *SWEEP, "--max-runs", "1")[0] == 0
    copy = attnlab.folder / "copy"
    shutil.copytree(TOY, copy)
    (copy / "toy_trainer.py").write_text((TOY / "toy_trainer.py").read_text() + "\nEDITED = True\n")
    path = attnlab.environment["PYTHONPATH"]
    attnlab.environment["PYTHONPATH"] = path.replace(str(TOY), str(copy))
    status, _, err = attnlab("work", *SWEEP)
    assert (status, len(attnlab.load_attempts())) == (2, 1)
    assert "was started on" in err
    assert "with another plan: code " in err
    assert "(toy_trainer): use the same code and packages, or remove that file to start over" in err
    assert err.count("\n") == 1
    attnlab.environment["PYTHONPATH"] = path
    assert attnlab("work", *SWEEP)[0] == 0
    attnlab.environment["PYTHONPATH"] = path.replace(str(TOY), str(copy))
    assert attnlab("work", *SWEEP)[0] == 0, "the earlier sweep is complete"


def test_difference_names_the_package(tmp_path):
    values = {"title": "t", "terms": "1", "devices": ("cpu",), "data": ("x",), "command": "c", "host": "h"}
    values |= {"pid": 1, "began": "now", "source": {"m": "1"}}
    mine = WorkPlan(runs="1", versions={"torch": "2.12"}, **values)
    other = WorkPlan(runs="2", versions={"torch": "2.13"}, **values)
    assert mine.describe_difference(other) == "torch 2.12 against 2.13"


def test_workers_of_one_host_name_and_pid_are_told_apart(tmp_path):
    values = {"terms": "1", "runs": "1", "versions": {}, "devices": (), "data": (), "source": {}}
    plan = WorkPlan(title="t", command="c", host="h", pid=1, began="now", **values)
    folders = [WorkFolder(tmp_path, plan) for _ in range(2)]
    for folder in folders:
        folder.join()
        folder.write_state("cpu", 1, [])
    assert len(load_workers(tmp_path, "t")) == 2
    folders[0].remove_state()
    [state] = load_workers(tmp_path, "t")
    late = {"time": time.time() - 1000}
    for changes, expected in (
        ({"process": change_identity(start="1")}, False),
        (late, True),
        ({"process": change_identity(namespace="1", start="1")}, True),
        ({"process": change_identity(boot_id="another"), **late}, False),
        ({"process": "", **late}, False),
    ):
        assert state.model_copy(update=changes).is_alive == expected, changes
    launcher = PullLauncher({}, None, folders[0], WorkLimits(), time.monotonic())
    for process, expected in (
        (change_identity(), True),
        (change_identity(start="1"), False),
        (change_identity(namespace="1", start="1"), True),
        ("", True),
    ):
        write_json(tmp_path / "owner.json", {"host": HOST, "pid": os.getpid(), "process": process})
        assert launcher._is_held(tmp_path) == expected, process


@pytest.mark.rare
def test_report_is_left_to_the_holder_of_its_lease_and_written_once_that_is_dead(attnlab):
    assert attnlab("work", *SWEEP, "--max-runs", "1")[0] == 0
    [plan_file] = attnlab.folder.glob("runs/work/*.json")
    with hold_lease(plan_file.with_suffix("")):  # as another worker that writes the report
        out = finish(attnlab.start("work", *SWEEP))
        assert f"all runs have ended; the report is by {HOST}, pid {os.getpid()}" in out
        assert load_verdicts(attnlab.folder) == []
    assert "report: " in finish(attnlab.start("work", *SWEEP))
    assert len(load_verdicts(attnlab.folder)) == 1
    assert "report: " not in finish(attnlab.start("work", *SWEEP))
    shutil.rmtree(attnlab.folder / "reports")
    assert "report: " in finish(attnlab.start("work", *SWEEP))


@pytest.mark.rare
def test_faulty_host_leaves_its_runs_to_others(attnlab):
    (attnlab.folder / "sitecustomize.py").write_text(FAKE_HOST)
    path = [str(attnlab.folder), attnlab.environment["PYTHONPATH"]]
    attnlab.environment |= {"FAKE_HOST": "node7", "TOY_DEVICE": "none", "PYTHONPATH": os.pathsep.join(path)}
    status, out, err = attnlab("work", *SWEEP)
    [file] = attnlab.folder.glob("runs/work/*/quarantine/node7.json")
    assert status == 1, out + err
    reason = "planned for cpu, but this machine trains on none"
    assert "node7 is in quarantine for this sweep: " in out
    assert reason in out
    assert f"then remove {file.relative_to(attnlab.folder)}" in out
    assert not load_verdicts(attnlab.folder)
    records = load_records(attnlab.folder).values()
    assert 3 <= len(records) < 12
    assert {record["status"] for record in records} == {"killed"}
    assert all("node7 is in quarantine" in record["failure"]["message"] for record in records)
    status, _, err = attnlab("work", *SWEEP)
    assert status == 2
    assert f"remove {file.relative_to(attnlab.folder)}" in err

    attnlab.environment["FAKE_HOST"] = "node8"
    del attnlab.environment["TOY_DEVICE"]
    finish(attnlab.start("work", *SWEEP))
    records = load_records(attnlab.folder).values()
    assert [record["status"] for record in records] == ["done"] * 12
    assert len(attnlab.load_attempts()) == 12
    file.unlink()
    attnlab.environment["FAKE_HOST"] = "node7"
    assert attnlab("work", *SWEEP)[0] == 0


def test_arm_that_never_starts_puts_no_host_in_quarantine(attnlab):
    sweep = ("+experiment=ends", "arms=[train,stillborn]")
    status, out, _ = attnlab("work", *sweep, "seed=0,1,2,3")
    assert status == 1
    assert "quarantine" not in out
    assert [record["status"] for record in load_records(attnlab.folder).values()].count("crashed") == 4
    assert len(load_verdicts(attnlab.folder)) == 1
    status, out, _ = attnlab("work", *sweep, "seed=0,1,2,3")
    assert (status, "the report is by" in out) == (1, True), "every worker has the status of the sweep"


@pytest.mark.parametrize("text", ["10", "0m", "-1h", "1w", "1h30m", "", "nan"])
def test_duration_without_a_number_and_a_unit_is_invalid(text):
    with pytest.raises(InvalidConfig, match=r"--for .*as in 90s, 10m or 2h"):
        parse_duration(text, "--for")
    assert [parse_duration(each, "--for") for each in ("90s", "1.5h", None)] == [90, 5400, None]


@pytest.mark.rare
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds workers in /proc")
@pytest.mark.timeout(600)
def test_sweep_survives_random_kills_and_stops_of_its_workers(attnlab):
    sweep = ("+experiment=heads", "seed=range(20)", "sweep.slots=1", "model.act=slow")
    numbers, started, killed = random.Random(5), [], 0
    n_runs = 60
    while len(load_records(attnlab.folder)) < n_runs - 5:
        if sum(worker.poll() is None for worker in started) < 8:
            started.append(attnlab.start("work", *sweep))
        if not (training := list_training(attnlab.folder)) or killed == 20:
            time.sleep(0.2)
            continue
        child = numbers.choice(training)
        try:
            worker = get_parent(get_parent(child))  # the parent of a forked child is the fork server
        except FileNotFoundError:  # it has ended
            continue
        if worker not in [each.pid for each in started]:  # its worker has ended
            continue
        match numbers.choice(["kill worker", "kill run", "stop worker", "stop run", "none", "none"]):
            case "kill worker":
                send(worker, signal.SIGKILL)
                killed += 1
            case "kill run":
                send(child, signal.SIGKILL)
                killed += 1
            case "stop worker":
                stop_for_a_moment(worker, numbers)
            case "stop run":
                stop_for_a_moment(child, numbers)
        time.sleep(numbers.uniform(0, 0.5))
    for each in started:
        each.communicate(timeout=200)
    finish(attnlab.start("work", *sweep))  # all of them may have been killed
    assert killed >= 5, "too few kills to test anything"
    records = load_records(attnlab.folder)
    assert [record["status"] for record in records.values()] == ["done"] * n_runs
    attempts = [tuple(attempt[:2]) for attempt in attnlab.load_attempts()]
    assert n_runs < len(attempts) <= n_runs + killed
    assert len(load_verdicts(attnlab.folder)) == 1
    assert load_losses(attnlab.folder) == load_losses(train_serially(attnlab, *sweep))


def list_training(folder):
    """List the living processes that hold the lease of a run."""
    pids = []
    for path in folder.glob("runs/*/owner.json"):
        try:
            pids.append(json.loads(path.read_text())["pid"])
        except (FileNotFoundError, json.JSONDecodeError):  # it ended meanwhile, or has just been created
            continue
    return [pid for pid in pids if is_alive(pid)]


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def stop_for_a_moment(pid, numbers):
    send(pid, signal.SIGSTOP)
    time.sleep(numbers.uniform(0, 1))
    send(pid, signal.SIGCONT)
