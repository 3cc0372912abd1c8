"""Run directories: configs, results and failures on disk."""

import json

import pytest
from stored_runs import make_spec, write_spec

from attnlab.errors import InvalidConfig
from attnlab.store import run_directories
from attnlab.store.run_schema import Failure, RunEstimate

DONE = {"schema": 2, "status": "done", "seed": 0, "config": {}, "metrics": {"val/loss": 1.5}}


@pytest.fixture
def run_folder(tmp_path):
    estimate = RunEstimate(data={"name": "toy"}, parameters=7)
    config = {"seed": 3, "model": {"rotary": {"base": 10000}}, "paths": {"runs": "here"}}
    return write_spec(tmp_path, make_spec(config, estimate=estimate))


def write_result(folder, **changes):
    (folder / "run.json").write_text(json.dumps({**DONE, "id": folder.name, **changes}))


def test_a_run_is_done_when_its_result_validates(run_folder):
    assert not run_directories.is_done(run_folder)
    write_result(run_folder)
    assert run_directories.is_done(run_folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "fedcba9876543210"},
        {"status": "fine"},
        {"metrics": {}},
        {"metrics": {"val/loss": float("nan")}},
        {"metrics": {"val/loss": None}},
        {"metrics": {"val/loss": "1.5"}},
        {"head_score": {}},
    ],
)
def test_an_invalid_result_is_not_loaded(run_folder, changes):
    write_result(run_folder, **changes)
    assert run_directories.load_run_result(run_folder) is None


def test_a_truncated_result_is_not_loaded(run_folder):
    write_result(run_folder)
    text = (run_folder / "run.json").read_text()
    (run_folder / "run.json").write_text(text[: len(text) // 2])
    assert run_directories.load_run_result(run_folder) is None


def test_a_result_of_another_schema_is_rejected(run_folder):
    write_result(run_folder, schema=1)
    with pytest.raises(InvalidConfig, match="schema 1, but this version reads 2"):
        run_directories.load_run_result(run_folder)


def test_a_failure_records_the_step_and_the_last_lines(run_folder):
    (run_folder / "log.txt").write_text("".join(f"line {i}\n" for i in range(30)))
    (run_folder / "progress.json").write_text('{"step": 11}')
    run_directories.write_failure(run_folder, "crashed", "it broke", started=0.0)
    result = run_directories.load_run_result(run_folder)
    assert result.status == "crashed"
    assert result.failure == Failure(
        message="it broke", step=11, tail=tuple(f"line {i}" for i in range(10, 30))
    )
    assert (result.seed, result.estimate.data["name"], result.estimate.parameters) == (3, "toy", 7)


def test_the_fault_of_a_result_is_described(run_folder):
    write_result(run_folder, seed="three")
    assert "seed: Input should be a valid integer" in run_directories.describe_result_fault(run_folder)


def test_a_run_config_is_read_as_written(run_folder):
    run_config = run_directories.load_run_config(run_folder)
    changed = run_config.with_changes(
        use=run_config.use.model_copy(update={"split": 2, "overrides": ("a=1",)})
    )
    run_directories.write_run_config(run_folder.parent, changed)
    assert run_directories.load_run_config(run_folder) == changed
    assert run_directories.read_batch_split(run_folder) == 2


@pytest.mark.parametrize(
    ("text", "message"), [("{", "truncated"), ('{"schema": 2, "id": "a"}', "config: Field required")]
)
def test_an_unreadable_run_config_is_rejected_in_one_line(run_folder, text, message):
    (run_folder / "spec.json").write_text(text)
    with pytest.raises(InvalidConfig, match=message) as refused:
        run_directories.load_run_config(run_folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda spec: spec["config"]["model"]["rotary"].update(base=50),
            "was edited: model.rotary.base is 50, its run was planned with 10000: run the experiment's",
        ),
        (lambda spec: spec["config"]["model"]["rotary"].update(base=1e4), "base is 10000.0, .* with 10000:"),
        (lambda spec: spec["config"].update(convert="mine"), 'convert is "mine", .* with no such key'),
        (lambda spec: spec["config"].pop("seed"), "seed is missing, its run was planned with 3"),
        (lambda spec: spec["config"].update({"model.rotary.base": 10000, "model": {}}), "model is {}"),
        (lambda spec: spec["identity"]["config"].update(seed=4), "`identity` is not that of run"),
        (lambda spec: spec.pop("identity"), "`identity` is not that of run"),
        (lambda spec: spec.update(id="0123456789abcdef"), "is of run 0123456789abcdef"),
        (lambda spec: spec["identity"].update(data=float("nan")), "spec.json: .* is not finite"),
    ],
)
def test_an_edited_run_config_is_rejected_with_both_values(run_folder, change, message):
    spec = json.loads((run_folder / "spec.json").read_text())
    spec["config"]["paths"]["runs"] = "elsewhere"  # not part of the id
    (run_folder / "spec.json").write_text(json.dumps(spec))
    planned = run_directories.load_run_config(run_folder)
    change(spec)
    (run_folder / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(InvalidConfig, match=message) as refused:
        run_directories.load_run_config(run_folder)
    assert str(run_folder / "spec.json") in str(refused.value)
    assert "\n" not in str(refused.value)
    run_directories.restore_run_config(run_folder.parent, planned)
    assert run_directories.load_run_config(run_folder) == planned


@pytest.mark.parametrize("name", ["spec.json", "run.json"])
@pytest.mark.parametrize("damage", ["folder", "link to itself"])
def test_an_unreadable_path_is_rejected_in_one_line(run_folder, name, damage):
    path = run_folder / name
    path.unlink(missing_ok=True)
    if damage == "folder":
        path.mkdir()
    else:
        path.symlink_to(name)
    load = run_directories.load_run_config if name == "spec.json" else run_directories.load_run_result
    with pytest.raises(InvalidConfig, match=rf"{name}: .*: move it away") as refused:
        load(run_folder)
    assert "\n" not in str(refused.value)


def test_an_unwritable_store_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="is not writable"):
        run_directories.require_writable_folder(tmp_path / "file" / "runs")
