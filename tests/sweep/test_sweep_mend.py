"""What is broken in a store is named, never a parent, and made again by the same command where it can be."""

import json
import shutil

import pytest

from attnlab.errors import Refused
from attnlab.store import runs
from attnlab.store.guards import digests
from attnlab.sweep import reporting
from attnlab.sweep.execute import submit, worker
from attnlab.sweep.status.states import state, states
from attnlab.sweep.timing import timing

WEIGHTS, CURVES, MAPS = digests.WEIGHTS, digests.CURVES, digests.MAPS


@pytest.fixture
def trained(planned, tmp_path):
    """A plan of two arms, one the child of the other, with all its runs trained in this process."""
    files = "+model.files=[model.safetensors,curves.parquet,attention.npz]"
    [plan] = planned("+experiment=heads", "arms=[two,child]", "claims=[]", "held=[]", "match=none", files)
    root = tmp_path / "runs"
    for run in sorted(plan.runs, key=lambda run: bool(run.config["parent"])):
        runs.write_spec(root, run)
        assert worker.train(root / run.id) == 0
    assert submit.todo(plan.runs, root, retry_failed=False) == []
    return plan, root


def spoil(path, how):
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-2])
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"!")


def edit(folder, **changes):
    content = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**content, **changes}))


def attempts(tmp_path):
    return len((tmp_path / "trained").read_text().splitlines())


@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
@pytest.mark.parametrize("name", [CURVES, MAPS])
def test_the_same_command_trains_a_run_whose_curves_or_maps_are_broken(trained, tmp_path, name, how):
    plan, root = trained
    run = plan.runs[0]
    spoil(root / run.id / name, how)
    assert state(root / run.id).word == "to train"
    assert name in state(root / run.id).detail
    assert submit.todo(plan.runs, root, retry_failed=False) == [run]
    before = attempts(tmp_path)
    assert worker.train(root / run.id) == 0
    assert attempts(tmp_path) == before + 1
    assert digests.broken(root / run.id, runs.record(root / run.id)) == {}
    assert submit.todo(plan.runs, root, retry_failed=False) == []
    assert not (root / run.id / runs.BEFORE).exists()


@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
def test_broken_weights_are_named_and_trained_again_where_that_is_asked(trained, how, capsys):
    plan, root = trained
    run = next(run for run in plan.runs if run.arm == "child")
    spoil(root / run.id / WEIGHTS, how)
    told = states(plan.runs, root, weights=True)[run.id]
    assert (told.word, told.done) == ("done", 1.0)
    assert f"; {WEIGHTS} is" in told.detail
    assert submit.todo(plan.runs, root, retry_failed=False) == []
    reporting.announce([plan], [], root, 0.0)
    said = capsys.readouterr().out
    assert f"child seed={run.seed}: {WEIGHTS} is" in said
    assert "sweep.retry_failed=true trains it again" in said
    assert submit.todo(plan.runs, root, retry_failed=True) == [run]
    assert worker.train(root / run.id) == 0
    assert digests.broken(root / run.id, runs.record(root / run.id)) == {}


def test_a_parent_with_broken_weights_is_trained_again_before_its_child(trained):
    plan, root = trained
    child = next(run for run in plan.runs if run.arm == "child")
    [parent] = [run for run in plan.runs if run.id == child.config["parent"]]
    spoil(root / parent.id / WEIGHTS, "flipped")
    assert submit.todo(plan.runs, root, retry_failed=False) == []
    shutil.rmtree(root / child.id)
    assert submit.todo(plan.runs, root, retry_failed=False) == [child, parent]
    assert [run.id for run in submit._ready([child, parent], root)] == [parent.id]


def test_broken_weights_are_never_a_parent(trained, tmp_path, capsys):
    plan, root = trained
    child = next(run for run in plan.runs if run.arm == "child")
    parent = root / child.config["parent"]
    spoil(parent / WEIGHTS, "cut")
    with pytest.raises(Refused, match=f"{WEIGHTS} is not what the run wrote") as refused:
        submit.refuse_unknown_parents([child], root)
    assert "\n" not in str(refused.value)
    assert submit._ready([child], root) == [child]
    assert f"whose parent {parent.name} {parent / WEIGHTS} is not" in capsys.readouterr().out
    (root / child.id / "run.json").unlink()
    before = attempts(tmp_path)
    assert worker.train(root / child.id) == 1, "started by hand, past the sweep"
    assert attempts(tmp_path) == before
    assert WEIGHTS in runs.record(root / child.id).failure.message


def test_an_edited_metric_is_named_and_measured_again(trained, tmp_path, capsys):
    plan, root = trained
    run = plan.runs[0]
    folder = root / run.id
    was = runs.record(folder)
    edit(folder, metrics={"val/loss": 0.001})
    assert str(state(folder)) == "to train  run.json was edited: metrics"
    assert submit.todo(plan.runs, root, retry_failed=False) == [run]
    reporting.announce([plan], [run], root, 0.0)
    said = capsys.readouterr().out
    assert f"{run.arm} seed={run.seed}: run.json was edited: metrics; it is made again" in said
    assert "0 to train, 1 edited" in said
    before = attempts(tmp_path)
    assert worker.train(folder) == 0
    assert attempts(tmp_path) == before, "its weights are sound, so nothing was trained"
    assert runs.record(folder) == was
    assert json.loads((folder / runs.EDITED).read_text())["metrics"] == {"val/loss": 0.001}


@pytest.mark.parametrize(("changes", "name"), [({"seconds": 1.0}, None), ({"metrics": {"a": 1.0}}, WEIGHTS)])
def test_what_no_weights_can_tell_is_trained_again(trained, tmp_path, changes, name):
    plan, root = trained
    folder = root / plan.runs[0].id
    was = runs.record(folder)
    edit(folder, **changes)
    if name:
        spoil(folder / name, "flipped")
    before = attempts(tmp_path)
    assert worker.train(folder) == 0
    assert attempts(tmp_path) == before + 1
    assert runs.record(folder) == was


def test_an_edit_that_cannot_be_measured_again_stays_an_edit(trained, monkeypatch):
    import toy_trainer

    plan, root = trained
    folder = root / plan.runs[0].id
    edit(folder, metrics={"val/loss": 0.001})
    monkeypatch.delattr(toy_trainer, "loss")
    assert worker.train(folder) == 1
    assert runs.record(folder) is None
    assert runs.edited(folder)[1] == ["metrics"]


def test_a_run_that_cannot_be_trained_again_keeps_its_numbers(trained, monkeypatch):
    import toy_trainer

    plan, root = trained
    folder = root / plan.runs[0].id
    was = runs.record(folder)
    spoil(folder / CURVES, "flipped")
    monkeypatch.delattr(toy_trainer, "loss")
    assert worker.train(folder) == 1
    assert runs.record(folder) == was


def test_broken_weights_are_not_timed(trained):
    plan, root = trained
    folders = {arm: root / next(run.id for run in plan.runs if run.arm == arm) for arm in plan.arms()}
    spoil(folders["child"] / WEIGHTS, "cut")
    times, note = timing(folders, "cpu", None)
    assert times is None
    assert note == f"{folders['child'] / WEIGHTS} is not what the run wrote: cut short or changed"


@pytest.mark.parametrize("changes", [{"metrics": {"val/loss": 0.001}}])
def test_the_page_of_a_sweep_with_an_edited_record_says_so_and_counts_it_as_missing(
    trained, tmp_path, changes
):
    plan, root = trained
    run = plan.runs[0]
    edit(root / run.id, **changes)
    for other in plan.runs:  # the toy's curves and maps are no real ones
        for name in (CURVES, MAPS):
            (root / other.id / name).unlink()
    reporting.publish(reporting.built(plan, root, None, []), root, tmp_path / "reports")
    verdict = json.loads((tmp_path / "reports" / plan.title / "report.json").read_text())["verdict"]
    assert verdict["finished"] == len(plan.runs) - 1
    assert f"{run.arm}, seed {run.seed}: run.json was edited: metrics: its numbers are not here; " in str(
        verdict["unlike"]
    )


@pytest.mark.rare
def test_a_command_given_again_makes_again_what_is_broken(attnlab):
    line = ["+experiment=heads", "arms=[two,child]", "claims=[]", "held=[]", "match=none",
            "+model.files=[model.safetensors]"]  # fmt: skip
    assert attnlab(*line)[0] == 0
    folders = sorted(path.parent for path in attnlab.folder.glob("runs/*/run.json"))
    before = {folder: runs.record(folder) for folder in folders}
    edit(folders[0], metrics={"val/loss": 0.001})
    spoil(folders[1] / WEIGHTS, "flipped")
    status, out, errors = attnlab(*line, "sweep.retry_failed=true")
    assert status == 0, errors
    assert "run.json was edited: metrics; it is made again" in out
    assert f"{WEIGHTS} is not what the run wrote: cut short or changed; it is made again" in out
    assert {folder: runs.record(folder).metrics for folder in folders} == {
        folder: record.metrics for folder, record in before.items()
    }
    assert "0 to train\n" in attnlab(*line)[1]
