"""Remeasuring finished runs from their final weights, where the measuring code has changed."""

import json

import pytest

from attnlab.store import run_directories
from attnlab.store.run_schema import RunEstimate
from attnlab.sweep.execute import worker
from attnlab.training import remeasure, run


@pytest.fixture
def finished_run(compose, make_run_dir, request):
    """The folder of a finished run, with overrides as an indirect parameter."""
    line = ["trainer.max_steps=3", "measure.every=2", "measure.lengths=[1,2]", *getattr(request, "param", ())]
    folder = make_run_dir("trained", compose(*line))
    run.run(folder)
    return folder


def outdate(folder, *parts, **changes):
    """Pretend that other code measured these parts with other values; return the original."""
    run_config, result = run_directories.load_run_config(folder), run_directories.load_run_result(folder)
    estimate = RunEstimate.model_validate(run.check(run_config.config))
    run_directories.write_run_config(folder.parent, run_config.with_changes(estimate=estimate))
    digests = {part: digest for part, digest in result.measured_by.items() if part not in parts}
    run_directories.write_run_result(folder, result.model_copy(update={"measured_by": digests, **changes}))
    return result


@pytest.mark.parametrize(
    "finished_run",
    [[f"trainer.precision={name}"] for name in ("32-true", "bf16-mixed", "bf16-true", "64-true")],
    indirect=True,
)
def test_remeasured_parts_equal_those_measured_after_training(finished_run):
    metrics = {**run_directories.load_run_result(finished_run).metrics, "val/loss": 0.123, "length/2": 7.0}
    before = outdate(finished_run, "accuracy", "length", "memory", "heads", head_scores={}, metrics=metrics)
    assert run_directories.load_run_result(finished_run).list_outdated_parts(
        run_directories.load_run_config(finished_run).estimate
    ) == [
        "accuracy",
        "length",
        "memory",
        "heads",
    ]
    weights = (finished_run / "model.safetensors").read_bytes()
    remeasure.measure_again(finished_run)
    after = run_directories.load_run_result(finished_run)
    assert after.list_outdated_parts(run_directories.load_run_config(finished_run).estimate) == []
    assert after.metrics == before.metrics
    assert after.head_scores == before.head_scores
    assert after.by_position == before.by_position
    assert {key: after.memory[key] for key in ("kv_bytes_per_token_live", "saved_for_backward_bytes")} == {
        key: before.memory[key] for key in ("kv_bytes_per_token_live", "saved_for_backward_bytes")
    }
    assert after.seconds == before.seconds
    assert (finished_run / "model.safetensors").read_bytes() == weights


def test_a_remeasured_metric_has_its_definition(finished_run):
    result = run_directories.load_run_result(finished_run)
    definitions = dict(result.estimate.metric_definitions)
    unit = definitions.pop("val/bits_per_byte").unit
    estimate = result.estimate.model_copy(update={"metric_definitions": definitions})
    outdate(finished_run, "text", estimate=estimate)
    remeasure.measure_again(finished_run)
    assert (
        run_directories.load_run_result(finished_run).get_metric("val/bits_per_byte").unit == unit == "bits"
    )


def test_other_parts_stay_unchanged(finished_run):
    outdate(finished_run, "heads", metrics={"val/loss": 0.5}, head_scores={})
    remeasure.measure_again(finished_run)
    assert run_directories.load_run_result(finished_run).metrics == {"val/loss": 0.5}
    assert run_directories.load_run_result(finished_run).head_scores


def test_unobserved_parts_are_listed(finished_run):
    estimate = RunEstimate.model_validate(run.check(run_directories.load_run_config(finished_run).config))
    result = run_directories.load_run_result(finished_run)
    assert result.list_unobserved_parts(estimate) == []
    assert result.model_copy(update={"observed_by": {"maps": "other"}}).list_unobserved_parts(estimate) == [
        "maps",
        "curves",
    ]


def test_targets_in_a_result_are_not_built(finished_run, tmp_path):
    result = outdate(finished_run, "heads", head_scores={})
    harm = {"_target_": "os.mkdir", "path": str(tmp_path / "harmed")}
    config = {**result.config, "model": {**result.config["model"], "positions": harm}}
    run_directories.write_run_result(
        finished_run, run_directories.load_run_result(finished_run).model_copy(update={"config": config})
    )
    remeasure.measure_again(finished_run)
    assert not (tmp_path / "harmed").exists()


def test_an_edited_result_is_restored_from_the_weights(finished_run):
    estimate = RunEstimate.model_validate(run.check(run_directories.load_run_config(finished_run).config))
    run_directories.write_run_config(
        finished_run.parent, run_directories.load_run_config(finished_run).with_changes(estimate=estimate)
    )
    before = run_directories.load_run_result(finished_run)
    assert set(before.files) == {"model.safetensors", "curves.parquet", "attention.npz", "vocabulary.json"}
    content = before.to_dict()
    content["metrics"] |= {"val/loss": 0.001, "invented": 1.0}
    content["head_scores"] = {}
    (finished_run / "run.json").write_text(json.dumps(content))
    assert run_directories.load_run_result(finished_run) is None
    assert run_directories.load_edited_result(finished_run)[1] == ["metrics", "head_scores"]
    weights = (finished_run / "model.safetensors").stat().st_mtime_ns
    assert worker.train_run(finished_run) == 0
    after = run_directories.load_run_result(finished_run)
    assert (after.metrics, after.head_scores) == (before.metrics, before.head_scores)
    assert (after.censored, after.by_position, after.leakage) == (
        before.censored,
        before.by_position,
        before.leakage,
    )
    assert (after.files, after.seconds) == (before.files, before.seconds)
    assert (finished_run / "model.safetensors").stat().st_mtime_ns == weights, "nothing was finished_run"
