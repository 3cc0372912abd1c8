"""What other code has measured in a finished run is measured again from its final weights, and no more."""

import json

import pytest

from attnlab.store import runs
from attnlab.store.schema import Estimate
from attnlab.sweep.execute import worker
from attnlab.training import again, run


@pytest.fixture
def trained(compose, store):
    """The folder of a finished run."""
    folder = store("trained", compose("trainer.max_steps=3", "measure.every=2", "measure.lengths=[1,2]"))
    run.run(folder)
    return folder


def old(folder, *parts, **changes):
    """The record as if other code had measured these parts, with other values in it; the spec as of today."""
    spec, record = runs.spec(folder), runs.record(folder)
    estimate = Estimate.model_validate(run.check(spec.config))
    runs.write_spec(folder.parent, spec.but(estimate=estimate))
    digests = {part: digest for part, digest in record.measured_by.items() if part not in parts}
    runs.write_record(folder, record.model_copy(update={"measured_by": digests, **changes}))
    return record


def test_what_is_measured_again_is_what_was_measured_at_the_end(trained):
    metrics = {**runs.record(trained).metrics, "val/loss": 0.123, "length/2": 7.0}
    before = old(trained, "accuracy", "length", "memory", "heads", head_scores={}, metrics=metrics)
    assert runs.record(trained).outdated(runs.spec(trained).estimate) == [
        "accuracy",
        "length",
        "memory",
        "heads",
    ]
    weights = (trained / "model.safetensors").read_bytes()
    again.measure_again(trained)
    after = runs.record(trained)
    assert after.outdated(runs.spec(trained).estimate) == []
    assert after.metrics == before.metrics
    assert after.head_scores == before.head_scores
    assert after.by_position == before.by_position
    assert {key: after.memory[key] for key in ("kv_bytes_per_token_live", "saved_for_backward_bytes")} == {
        key: before.memory[key] for key in ("kv_bytes_per_token_live", "saved_for_backward_bytes")
    }
    assert after.seconds == before.seconds
    assert (trained / "model.safetensors").read_bytes() == weights


def test_a_part_that_is_not_outdated_stays_as_it_is(trained):
    old(trained, "heads", metrics={"val/loss": 0.5}, head_scores={})
    again.measure_again(trained)
    assert runs.record(trained).metrics == {"val/loss": 0.5}
    assert runs.record(trained).head_scores


def test_what_only_training_shows_is_named(trained):
    estimate = Estimate.model_validate(run.check(runs.spec(trained).config))
    record = runs.record(trained)
    assert record.unseen(estimate) == []
    assert record.model_copy(update={"observed_by": {"maps": "other"}}).unseen(estimate) == ["maps", "curves"]


def test_of_a_strangers_record_nothing_is_run(trained, tmp_path):
    record = old(trained, "heads", head_scores={})
    harm = {"_target_": "os.mkdir", "path": str(tmp_path / "harmed")}
    config = {**record.config, "model": {**record.config["model"], "positions": harm}}
    runs.write_record(trained, runs.record(trained).model_copy(update={"config": config}))
    again.measure_again(trained)
    assert not (tmp_path / "harmed").exists()


def test_an_edited_record_is_measured_again_from_the_weights_and_is_what_it_was(trained):
    estimate = Estimate.model_validate(run.check(runs.spec(trained).config))
    runs.write_spec(trained.parent, runs.spec(trained).but(estimate=estimate))
    was = runs.record(trained)
    assert set(was.files) == {"model.safetensors", "curves.parquet", "attention.npz", "vocabulary.json"}
    content = was.plain()
    content["metrics"] |= {"val/loss": 0.001, "invented": 1.0}
    content["head_scores"] = {}
    (trained / "run.json").write_text(json.dumps(content))
    assert runs.record(trained) is None
    assert runs.edited(trained)[1] == ["metrics", "head_scores"]
    weights = (trained / "model.safetensors").stat().st_mtime_ns
    assert worker.train(trained) == 0
    after = runs.record(trained)
    assert (after.metrics, after.head_scores) == (was.metrics, was.head_scores)
    assert (after.censored, after.by_position, after.leakage) == (
        was.censored,
        was.by_position,
        was.leakage,
    )
    assert (after.files, after.seconds) == (was.files, was.seconds)
    assert (trained / "model.safetensors").stat().st_mtime_ns == weights, "nothing was trained"
