"""The store remembers who uses its runs: what a sweep trains stays, whoever declared it, however it ended."""

import json
import os
import signal
import subprocess
import sys

import pytest
from processes import records_by_act, wait_until
from toys import TOY


def clean(attnlab, *words):
    command = [sys.executable, "-m", "attnlab", "clean", "--yes", *words]
    answer = subprocess.run(
        command, cwd=attnlab.folder, env=attnlab.environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def users(attnlab):
    return [json.loads(path.read_text()) for path in sorted((attnlab.folder / "runs/users").glob("*.json"))]


def stored(attnlab):
    return {path.parent.name for path in (attnlab.folder / "runs").glob("*/spec.json")}


@pytest.mark.rare
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_finished_runs_of_a_sweep_that_runs_and_of_one_that_was_killed_stay(attnlab, number):
    """The experiment is the user's own: `clean` finds its file nowhere."""
    process = attnlab.start("+experiment=ends", "arms=[train,sleep]")
    wait_until(lambda: records_by_act(attnlab.folder).get("train") and len(attnlab.trained()) == 2)
    assert json.loads((attnlab.folder / "runs/.attnlab").read_text())["what"]
    [user] = users(attnlab)
    assert (user["experiment"], user["published"], user["pid"]) == ("ends", None, process.pid)
    assert user["reports"] == str(attnlab.folder / "reports")
    assert set(user["runs"]) == stored(attnlab)
    assert "which has not finished" in clean(attnlab, "days=0")
    os.killpg(process.pid, number)
    process.communicate(timeout=30)
    assert "nothing to remove" in clean(attnlab, "days=0")
    assert len(stored(attnlab)) == 2


@pytest.mark.rare
def test_runs_of_a_published_report_stay_and_those_of_a_finished_command_without_one_go(attnlab):
    assert (
        attnlab("+experiment=heads", "arms=[two,copy]", "claims=[]", "seed=0", "paths.reports=deep/mine")[0]
        == 0
    )
    experiments = stored(attnlab)
    [user] = users(attnlab)
    assert user["published"]
    assert user["report"].startswith(str(attnlab.folder / "deep/mine/heads~"))
    assert attnlab("heads=four")[0] == 0
    assert len(users(attnlab)) == 1
    clean(attnlab, "days=0")
    assert stored(attnlab) == experiments
    (attnlab.folder / "deep/mine").rename(attnlab.folder / "moved")
    assert "that a report lists" in clean(attnlab, "days=0", "paths.reports=moved")
    assert stored(attnlab) == experiments


@pytest.mark.rare
def test_the_runs_of_a_comparison_without_a_file_stay(attnlab):
    arms = ["heads=one", "heads=two", "seed=0", "held=[]"]
    command = [sys.executable, "-m", "attnlab", "compare", "--config-path", str(TOY / "conf"), *arms]
    subprocess.run(command, cwd=attnlab.folder, env=attnlab.environment, capture_output=True, check=True)
    [user] = users(attnlab)
    assert user["experiment"] == "one_vs_two"
    assert " compare " in user["command"]
    before = stored(attnlab)
    (attnlab.folder / "reports").rename(attnlab.folder / "moved")
    (attnlab.folder / "reports/one_vs_two").mkdir(parents=True)  # as if its writing had begun
    assert "whose report is there" in clean(attnlab, "days=0")
    assert stored(attnlab) == before


@pytest.mark.rare
def test_a_plan_is_no_user(attnlab):
    status, _, err = attnlab("+experiment=heads", "++sweep.show=plan")
    assert status == 0, err
    assert not (attnlab.folder / "runs").exists()
