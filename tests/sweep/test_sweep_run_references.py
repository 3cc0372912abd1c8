"""References to runs: `clean` keeps the runs of a sweep however it ended."""

import json
import os
import signal
import subprocess
import sys

import pytest
from processes import load_records_by_act, wait_until
from toys import TOY

from attnlab.store.guards import run_references


def run_clean(attnlab, *arguments):
    command = [sys.executable, "-m", "attnlab", "clean", "--yes", *arguments]
    result = subprocess.run(
        command, cwd=attnlab.folder, env=attnlab.environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def load_references(attnlab):
    return [json.loads(path.read_text()) for path in sorted((attnlab.folder / "runs/users").glob("*.json"))]


def list_stored_ids(attnlab):
    return {path.parent.name for path in (attnlab.folder / "runs").glob("*/spec.json")}


def test_file_of_a_reference_keeps_the_name_that_earlier_versions_gave_it(tmp_path):
    reference = run_references.create_reference("heads@code~1a2b", "heads", "", tmp_path, ["0" * 16])
    [path] = run_references.write_references(tmp_path, [reference])
    assert path.name.startswith("heads_code~1a2b~")


@pytest.mark.rare
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_clean_keeps_finished_runs_of_running_and_killed_sweeps(attnlab, number):
    """The experiment file is outside the search path of `clean`."""
    process = attnlab.start("+experiment=ends", "arms=[train,sleep]")
    wait_until(lambda: load_records_by_act(attnlab.folder).get("train") and len(attnlab.load_attempts()) == 2)
    assert json.loads((attnlab.folder / "runs/.attnlab").read_text())["what"]
    [reference] = load_references(attnlab)
    assert (reference["experiment"], reference["published"], reference["pid"]) == ("ends", None, process.pid)
    assert reference["reports"] == str(attnlab.folder / "reports")
    assert set(reference["runs"]) == list_stored_ids(attnlab)
    assert "which has not finished" in run_clean(attnlab, "days=0")
    os.killpg(process.pid, number)
    process.communicate(timeout=30)
    assert "nothing to remove" in run_clean(attnlab, "days=0")
    assert len(list_stored_ids(attnlab)) == 2


@pytest.mark.rare
def test_clean_keeps_runs_of_published_reports_only(attnlab):
    assert (
        attnlab("+experiment=heads", "arms=[two,copy]", "claims=[]", "seed=0", "paths.reports=deep/mine")[0]
        == 0
    )
    experiments = list_stored_ids(attnlab)
    [reference] = load_references(attnlab)
    assert reference["published"]
    assert reference["report"].startswith(str(attnlab.folder / "deep/mine/heads~"))
    assert attnlab("heads=four")[0] == 0
    assert len(load_references(attnlab)) == 1
    run_clean(attnlab, "days=0")
    assert list_stored_ids(attnlab) == experiments
    (attnlab.folder / "deep/mine").rename(attnlab.folder / "moved")
    assert "listed in a report" in run_clean(attnlab, "days=0", "paths.reports=moved")
    assert list_stored_ids(attnlab) == experiments


@pytest.mark.rare
def test_clean_keeps_runs_of_a_comparison_without_an_experiment_file(attnlab):
    arms = ["heads=one", "heads=two", "seed=0", "controlled=[]"]
    command = [sys.executable, "-m", "attnlab", "compare", "--config-path", str(TOY / "conf"), *arms]
    subprocess.run(command, cwd=attnlab.folder, env=attnlab.environment, capture_output=True, check=True)
    [reference] = load_references(attnlab)
    name = reference["experiment"]
    assert name.startswith("one_vs_two_")  # and a hash of the stated terms
    assert " compare " in reference["command"]
    before = list_stored_ids(attnlab)
    (attnlab.folder / "reports").rename(attnlab.folder / "moved")
    (attnlab.folder / "reports" / name).mkdir(parents=True)  # as if writing it had begun
    assert "whose report exists" in run_clean(attnlab, "days=0")
    assert list_stored_ids(attnlab) == before


@pytest.mark.rare
def test_plan_writes_no_reference(attnlab):
    status, _, err = attnlab("+experiment=heads", "++sweep.show=plan")
    assert status == 0, err
    assert not (attnlab.folder / "runs").exists()
