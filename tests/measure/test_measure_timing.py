"""Interleaving and what is recorded; never how long anything takes."""

import pytest
import torch
from pydantic import ValidationError

from attnlab.measure import timing
from attnlab.measure.timing import interleave, measure
from attnlab.report.schema import Timing
from attnlab.training import run

torch.set_num_threads(1)


def test_arms_are_interleaved_forwards_then_backwards_after_one_call_that_does_not_count():
    calls = []

    def work(name):
        def figure():
            calls.append(name)
            return float(len(calls))

        return figure

    samples = interleave({name: work(name) for name in "abc"}, rounds=2)
    assert "".join(calls) == "abc" + "abccba" * 2
    assert samples == {"a": [4, 9, 10, 15], "b": [5, 8, 11, 14], "c": [6, 7, 12, 13]}


def test_what_is_measured_is_kept_and_read_back_and_another_version_is_not(compose, store, monkeypatch):
    monkeypatch.setattr(timing, "interleave", lambda works: {name: [1.0, 2.0, 3.0] * 8 for name in works})
    folder = store("mha", compose("trainer.max_steps=1"))
    run.run(folder)
    times = Timing.model_validate(measure({"mha": folder}))
    assert times.of("mha", "train_step_ms").median == 2.0
    assert times.of("mha", "note") is times.of("gqa", "train_step_ms") is None
    assert Timing.model_validate(times.plain()) == times
    with pytest.raises(ValidationError, match="schema"):
        Timing.model_validate(times.plain() | {"schema": 1})


@pytest.mark.rare
def test_a_sweep_is_timed_arm_by_arm_with_and_without_cache(compose, store):
    folders = {}
    arms = {"mha": "heads=mha", "gqa": "heads=gqa", "gru": "model=gru"}
    for arm, choice in arms.items():
        folders[arm] = store(arm, compose(choice, "trainer.max_steps=1"))
        run.run(folders[arm])
    weights = (folders["mha"] / "model.safetensors").read_bytes()
    found = measure(folders)
    assert found["order"] == "ABBA"
    assert found["arms"]["gru"]["decode_ms_per_token"] is None
    assert {name for row in found["arms"].values() for name in row} == {*found["declared"], "note"}
    step, rate = found["arms"]["gqa"]["train_step_ms"], found["arms"]["gqa"]["train_tokens_per_s"]
    tokens = found["batch"] * found["context"]
    assert rate["median"] * step["median"] == pytest.approx(1e3 * tokens)
    assert rate["low"] <= rate["median"] <= rate["high"]
    assert "no keys to cache" in found["arms"]["gru"]["note"]
    for arm in ("mha", "gqa"):
        for kind in ("train_step_ms", "decode_ms_per_token", "decode_uncached_ms_per_token"):
            timed = found["arms"][arm][kind]
            assert len(timed["samples"]) == 24
            assert timed["low"] <= timed["median"] <= timed["high"]
    assert (
        Timing.model_validate(found).of("gqa", "train_step_ms").samples
        == found["arms"]["gqa"]["train_step_ms"]["samples"]
    )
    assert (folders["mha"] / "model.safetensors").read_bytes() == weights
