"""Every shipped axis value composes, and trains two steps on text."""

import pytest
import torch

from attnlab.attention.contracts import Unsupported
from attnlab.model.build import build_model, make
from attnlab.testing.laws.compose import AXES, BESIDE, options
from attnlab.training.preflight import check

TRIED = ("model", "layers", "residual", "block", *AXES)
VALUES = [f"{axis}={option}" for axis in TRIED for option in options(axis)]
DEEP = [value for value in VALUES if value.startswith("layers=")]  # eight layers each
SCORED = {  # sdpa, the usual kernel, takes none of them
    "score=softcap", "score=log_length", "score=ssmax", "epilogue=sinks",
    "normaliser=off_by_one", "normaliser=sigmoid", "normaliser=softpick", "normaliser=talking",
}  # fmt: skip


def overrides(value):
    kernel = ["kernel=eager"] if value in SCORED else []
    beside = [f"{axis}={option}" for axis, option in BESIDE.get(value, {}).items()]
    deep = ["model.n_layers=8"] if value in DEEP else []  # a layer for each patch
    return [value, *kernel, *beside, *deep]


@pytest.mark.rare(sample=16)
@pytest.mark.parametrize("value", VALUES)
def test_it_trains_two_steps_on_text(compose, value):
    config = compose("size=debug", *overrides(value))
    if value == "kernel=flex":
        with pytest.raises(ValueError, match="no backward pass on a CPU"):
            check(config)
        return
    if value in DEEP:  # each kind of layer is tried before it is trained
        check(config)
    data = make(config["data"])
    module = make(config["optim"], model=build_model(config, data.task.vocab_size))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = module.losses(data.task.train_batch(0, 0, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]


@pytest.mark.parametrize("value", sorted(SCORED))
def test_what_the_usual_kernel_cannot_do_is_refused_before_training(compose, value):
    with pytest.raises((ValueError, Unsupported), match="kernel=eager"):
        check(compose("size=debug", value))
