"""Broken files and edited results are reported, never used as parents, and repaired by the same command."""

import json
import shutil
from pathlib import Path

import pytest

from attnlab.errors import InvalidConfig
from attnlab.report.schema import TimingResult
from attnlab.store import file_names, run_directories
from attnlab.store.atomic_files import write_json
from attnlab.store.guards import digests
from attnlab.sweep import arm_timing, reporting
from attnlab.sweep.execute import submission, worker, worker_slots
from attnlab.sweep.status.states import load_run_state, load_run_states

WEIGHTS, CURVES, MAPS = file_names.WEIGHTS_FILE, file_names.CURVES_FILE, file_names.MAPS_FILE


@pytest.fixture
def trained_plan(plan_toy, tmp_path):
    """Train a plan of two arms, one the child of the other, in this process; return plan and runs folder."""
    files = "+model.files=[model.safetensors,curves.parquet,attention.npz]"
    [plan] = plan_toy(
        "+experiment=heads", "arms=[two,child]", "claims=[]", "controlled=[]", "match=none", files
    )
    root = tmp_path / "runs"
    for run in sorted(plan.runs, key=lambda run: bool(run.config["parent"])):
        run_directories.write_run_config(root, run)
        assert worker.train_run(root / run.id) == 0
    assert submission.select_runs_to_launch(plan.runs, root, retry_failed=False) == []
    return plan, root


def damage_file(path, damage):
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-2])
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"!")


def edit_result(folder, **changes):
    content = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**content, **changes}))


def count_attempts(tmp_path):
    return len((tmp_path / "trained").read_text().splitlines())


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
@pytest.mark.parametrize("name", [CURVES, MAPS])
def test_run_with_broken_curves_or_maps_is_trained_again(trained_plan, tmp_path, name, damage):
    plan, root = trained_plan
    run = plan.runs[0]
    damage_file(root / run.id / name, damage)
    assert load_run_state(root / run.id).status == "to train"
    assert name in load_run_state(root / run.id).detail
    assert submission.select_runs_to_launch(plan.runs, root, retry_failed=False) == [run]
    before = count_attempts(tmp_path)
    assert worker.train_run(root / run.id) == 0
    assert count_attempts(tmp_path) == before + 1
    assert digests.find_broken_files(root / run.id, run_directories.load_run_result(root / run.id)) == {}
    assert submission.select_runs_to_launch(plan.runs, root, retry_failed=False) == []
    assert not (root / run.id / run_directories.PREVIOUS_RESULT_FILE).exists()


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_broken_weights_are_reported_and_trained_again_under_retry_failed(trained_plan, damage, capsys):
    plan, root = trained_plan
    run = next(run for run in plan.runs if run.arm == "child")
    damage_file(root / run.id / WEIGHTS, damage)
    state = load_run_states(plan.runs, root, check_weights=True)[run.id]
    assert (state.status, state.fraction_done) == ("done", 1.0)
    assert f"; {WEIGHTS} is" in state.detail
    assert submission.select_runs_to_launch(plan.runs, root, retry_failed=False) == []
    reporting.announce_runs([plan], [], root, 0.0)
    output = capsys.readouterr().out
    assert f"child seed={run.seed}: {WEIGHTS} is" in output
    assert "sweep.retry_failed=true trains the run again" in output
    assert submission.select_runs_to_launch(plan.runs, root, retry_failed=True) == [run]
    assert worker.train_run(root / run.id) == 0
    assert digests.find_broken_files(root / run.id, run_directories.load_run_result(root / run.id)) == {}


def test_parent_with_broken_weights_is_trained_again_before_its_child(trained_plan):
    plan, root = trained_plan
    child = next(run for run in plan.runs if run.arm == "child")
    [parent] = [run for run in plan.runs if run.id == child.config["parent"]]
    damage_file(root / parent.id / WEIGHTS, "flipped")
    assert submission.select_runs_to_launch(plan.runs, root, retry_failed=False) == []
    shutil.rmtree(root / child.id)
    assert submission.select_runs_to_launch(plan.runs, root, retry_failed=False) == [child, parent]
    assert [run.id for run in submission._select_ready_runs([child, parent], root)] == [parent.id]


def test_run_with_broken_weights_is_never_a_parent(trained_plan, tmp_path, capsys):
    plan, root = trained_plan
    child = next(run for run in plan.runs if run.arm == "child")
    parent = root / child.config["parent"]
    damage_file(parent / WEIGHTS, "cut")
    with pytest.raises(InvalidConfig, match=f"{WEIGHTS} is truncated or was changed") as error:
        submission.validate_parents([child], root)
    assert "\n" not in str(error.value)
    assert submission._select_ready_runs([child], root) == [child]
    assert f"its parent {parent.name} {parent / WEIGHTS} is truncated" in capsys.readouterr().out
    (root / child.id / "run.json").unlink()
    before = count_attempts(tmp_path)
    assert worker.train_run(root / child.id) == 1, "started without a sweep"
    assert count_attempts(tmp_path) == before
    assert WEIGHTS in run_directories.load_run_result(root / child.id).failure.message


def test_edited_metric_is_reported_and_remeasured(trained_plan, tmp_path, capsys):
    plan, root = trained_plan
    run = plan.runs[0]
    folder = root / run.id
    original = run_directories.load_run_result(folder)
    edit_result(folder, metrics={"val/loss": 0.001})
    assert str(load_run_state(folder)) == "to train  run.json was edited: metrics"
    assert submission.select_runs_to_launch(plan.runs, root, retry_failed=False) == [run]
    reporting.announce_runs([plan], [run], root, 0.0)
    output = capsys.readouterr().out
    assert f"{run.arm} seed={run.seed}: run.json was edited: metrics; this command repairs it" in output
    assert "0 to train, 1 edited" in output
    before = count_attempts(tmp_path)
    assert worker.train_run(folder) == 0
    assert count_attempts(tmp_path) == before, "its weights are sound, so nothing was trained"
    assert run_directories.load_run_result(folder) == original
    assert json.loads((folder / run_directories.EDITED_RESULT_FILE).read_text())["metrics"] == {
        "val/loss": 0.001
    }


@pytest.mark.parametrize(("changes", "name"), [({"seconds": 1.0}, None), ({"metrics": {"a": 1.0}}, WEIGHTS)])
def test_edit_that_weights_cannot_restore_is_trained_again(trained_plan, tmp_path, changes, name):
    plan, root = trained_plan
    folder = root / plan.runs[0].id
    original = run_directories.load_run_result(folder)
    edit_result(folder, **changes)
    if name:
        damage_file(folder / name, "flipped")
    before = count_attempts(tmp_path)
    assert worker.train_run(folder) == 0
    assert count_attempts(tmp_path) == before + 1
    assert run_directories.load_run_result(folder) == original


def test_edit_stays_after_a_failed_remeasurement(trained_plan, monkeypatch):
    import toy_trainer

    plan, root = trained_plan
    folder = root / plan.runs[0].id
    edit_result(folder, metrics={"val/loss": 0.001})
    monkeypatch.delattr(toy_trainer, "loss")
    assert worker.train_run(folder) == 1
    assert run_directories.load_run_result(folder) is None
    assert run_directories.load_edited_result(folder)[1] == ["metrics"]


def test_run_keeps_its_result_after_a_failed_retraining(trained_plan, monkeypatch):
    import toy_trainer

    plan, root = trained_plan
    folder = root / plan.runs[0].id
    original = run_directories.load_run_result(folder)
    damage_file(folder / CURVES, "flipped")
    monkeypatch.delattr(toy_trainer, "loss")
    assert worker.train_run(folder) == 1
    assert run_directories.load_run_result(folder) == original


def test_broken_weights_are_not_timed(trained_plan):
    plan, root = trained_plan
    folders = {
        arm: root / next(run.id for run in plan.runs if run.arm == arm) for arm in plan.group_runs_by_arm()
    }
    damage_file(folders["child"] / WEIGHTS, "cut")
    times, note = arm_timing.measure_arm_times(folders, "cpu", None)
    assert times is None
    assert note == f"{folders['child'] / WEIGHTS} is truncated or was changed after the run wrote it"


def test_arms_are_timed_again_after_an_edit_of_the_measuring_code(trained_plan, monkeypatch):
    plan, root = trained_plan
    folders = {run.arm: root / run.id for run in plan.runs}
    times = TimingResult(
        device="cpu", threads=1, context=1, batch=1, order="ABBA", metric_definitions={}, arms={}
    )
    starts = []

    def run_child(_slot, _context, _module, arguments, _log):
        starts.append(arguments)
        write_json(Path(arguments[0]), times.to_dict())
        return 0

    monkeypatch.setattr(worker_slots, "run_child", run_child)
    for digest in ("first", "first", "second"):
        monkeypatch.setattr(arm_timing, "hash_sources", lambda *_, digest=digest, **__: {"module": digest})
        assert arm_timing.measure_arm_times(folders, "cpu", None) == (times, "")
    assert len(starts) == 2


@pytest.mark.parametrize("changes", [{"metrics": {"val/loss": 0.001}}])
def test_report_lists_an_edited_result_and_counts_its_run_as_missing(trained_plan, tmp_path, changes):
    plan, root = trained_plan
    run = plan.runs[0]
    edit_result(root / run.id, **changes)
    for other in plan.runs:  # the toy's curves and maps are placeholders
        for name in (CURVES, MAPS):
            (root / other.id / name).unlink()
    reporting.publish_report(reporting.assemble_report(plan, root, None, []), root, tmp_path / "reports")
    verdict = json.loads((tmp_path / "reports" / plan.title / "report.json").read_text())["verdict"]
    assert verdict["finished"] == len(plan.runs) - 1
    warning = f"{run.arm}, seed {run.seed}: run.json was edited: metrics: its numbers are missing from this"
    assert f"{warning} report; " in str(verdict["run_warnings"])


@pytest.mark.rare
def test_repeated_command_repairs_edited_results_and_broken_weights(attnlab):
    line = ["+experiment=heads", "arms=[two,child]", "claims=[]", "controlled=[]", "match=none",
            "+model.files=[model.safetensors]"]  # fmt: skip
    assert attnlab(*line)[0] == 0
    folders = sorted(path.parent for path in attnlab.folder.glob("runs/*/run.json"))
    before = {folder: run_directories.load_run_result(folder) for folder in folders}
    edit_result(folders[0], metrics={"val/loss": 0.001})
    damage_file(folders[1] / WEIGHTS, "flipped")
    status, out, errors = attnlab(*line, "sweep.retry_failed=true")
    assert status == 0, errors
    assert "run.json was edited: metrics; this command repairs it" in out
    assert f"{WEIGHTS} is truncated or was changed after the run wrote it; this command repairs it" in out
    assert {folder: run_directories.load_run_result(folder).metrics for folder in folders} == {
        folder: record.metrics for folder, record in before.items()
    }
    assert "0 to train\n" in attnlab(*line)[1]
