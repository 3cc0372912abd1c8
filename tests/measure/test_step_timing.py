"""Interleaving, results and unsupported arms of timings; durations are not tested."""

import pytest
import torch
from pydantic import ValidationError

from attnlab.measure import step_timing
from attnlab.measure.step_timing import interleave_calls, measure_timings
from attnlab.report.schema import TimingResult
from attnlab.training import run

torch.set_num_threads(1)


def test_calls_are_interleaved_forward_then_backward_after_a_warm_up():
    calls = []

    def make_work(name):
        def record_call():
            calls.append(name)
            return float(len(calls))

        return record_call

    samples = interleave_calls({name: make_work(name) for name in "abc"}, rounds=2)
    assert "".join(calls) == "abc" + "abccba" * 2
    assert samples == {"a": [4, 9, 10, 15], "b": [5, 8, 11, 14], "c": [6, 7, 12, 13]}


def test_timings_round_trip_and_another_schema_version_is_rejected(compose, make_run_dir, monkeypatch):
    monkeypatch.setattr(
        step_timing, "interleave_calls", lambda works: {name: [1.0, 2.0, 3.0] * 8 for name in works}
    )
    folder = make_run_dir("mha", compose("trainer.max_steps=1"))
    run.run(folder)
    times = TimingResult.model_validate(measure_timings({"mha": folder}))
    assert times.get_time("mha", "train_step_ms").median == 2.0
    assert times.get_time("mha", "note") is times.get_time("gqa", "train_step_ms") is None
    assert TimingResult.model_validate(times.to_dict()) == times
    with pytest.raises(ValidationError, match="schema"):
        TimingResult.model_validate(times.to_dict() | {"schema": 1})


@pytest.mark.rare
def test_arms_are_timed_with_and_without_cache(compose, make_run_dir):
    folders = {}
    arms = {"mha": "heads=mha", "gqa": "heads=gqa", "gru": "model=gru"}
    for arm, choice in arms.items():
        folders[arm] = make_run_dir(arm, compose(choice, "trainer.max_steps=1"))
        run.run(folders[arm])
    weights = (folders["mha"] / "model.safetensors").read_bytes()
    timings = measure_timings(folders)
    assert timings["order"] == "ABBA"
    assert timings["arms"]["gru"]["decode_ms_per_token"] is None
    assert {name for row in timings["arms"].values() for name in row} == {
        *timings["metric_definitions"],
        "note",
    }
    step, throughput = timings["arms"]["gqa"]["train_step_ms"], timings["arms"]["gqa"]["train_tokens_per_s"]
    tokens = timings["batch"] * timings["context"]
    assert throughput["median"] * step["median"] == pytest.approx(1e3 * tokens)
    assert throughput["low"] <= throughput["median"] <= throughput["high"]
    assert "no keys to cache" in timings["arms"]["gru"]["note"]
    for arm in ("mha", "gqa"):
        for kind in ("train_step_ms", "decode_ms_per_token", "decode_uncached_ms_per_token"):
            timing = timings["arms"][arm][kind]
            assert len(timing["samples"]) == 24
            assert timing["low"] <= timing["median"] <= timing["high"]
    assert (
        TimingResult.model_validate(timings).get_time("gqa", "train_step_ms").samples
        == timings["arms"]["gqa"]["train_step_ms"]["samples"]
    )
    assert (folders["mha"] / "model.safetensors").read_bytes() == weights
