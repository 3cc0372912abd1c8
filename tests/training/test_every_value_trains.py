"""Every shipped option of every axis composes and trains two steps on text."""

import pytest
from training_steps import train_on_one_batch

from attnlab.attention.contracts import Unsupported
from attnlab.testing.invariants.variant_composition import AXES, REQUIRED_CHOICES, list_options
from attnlab.training.preflight import check

TESTED_AXES = ("model", "layers", "residual", "block", *AXES)
VALUES = [f"{axis}={option}" for axis in TESTED_AXES for option in list_options(axis)]
DEEP = [value for value in VALUES if value.startswith("layers=")]  # eight layers each
SCORED = {  # unsupported by sdpa, the default kernel
    "score=softcap", "score=log_length", "score=ssmax", "position=cope", "position=path", "score=multi_token",
    "epilogue=sinks",
    "normalizer=off_by_one", "normalizer=sigmoid", "normalizer=softpick", "normalizer=talking",
}  # fmt: skip


def make_overrides(value):
    kernel = ["kernel=eager"] if value in SCORED else []
    required = [f"{axis}={option}" for axis, option in REQUIRED_CHOICES.get(value, {}).items()]
    deep = ["model.n_layers=8"] if value in DEEP else []  # a layer for each patch
    return [value, *kernel, *required, *deep]


@pytest.mark.rare(sample=16)
@pytest.mark.parametrize("value", VALUES)
def test_every_option_trains_two_steps_on_text(compose, value):
    config = compose("size=debug", *make_overrides(value))
    if value == "kernel=flex":
        with pytest.raises(ValueError, match="no backward pass on a CPU"):
            check(config)
        return
    if value in DEEP:  # also runs every kind of layer once
        check(config)
    losses = train_on_one_batch(config)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("value", sorted(SCORED))
def test_options_that_sdpa_lacks_are_rejected_before_training(compose, value):
    with pytest.raises((ValueError, Unsupported), match="kernel=eager"):
        check(compose("size=debug", value))
