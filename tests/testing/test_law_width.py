"""The law of width holds for all heads, in any number, with either optimiser; and it sees a mistake in each
row of the table, and a constant rate.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.optim import _muon

from attnlab.model import parametrization
from attnlab.testing.laws import Law, width
from attnlab.testing.laws.compose import combination, composed, options
from attnlab.testing.laws.width import check_width_changes_no_size, require_flat, slopes, wider
from attnlab.training.module import LanguageModel
from attnlab.training.optim.adamw import adamw
from attnlab.training.optim.muon import MuonAdamW

torch.set_num_threads(1)
OPTIMIZERS = {"adamw": adamw, "muon": partial(MuonAdamW, momentum=0.95)}
AXES = ("heads", "position", "score", "epilogue", "model")
FAST = {"factors": (2, 8), "seeds": (0,), "steps": (1,)}  # for mistakes, which are not small


def scaled(choice="heads=mha", **settings):
    variant = combination(**dict([choice.split("=")]), parametrization="mup")
    return replace(variant, parametrization={**variant.parametrization, **settings})


def faults(variant, **settings):
    """The first slope that is too steep, in words; empty where there is none."""
    try:
        require_flat(slopes(partial(wider, variant), **settings))
    except AssertionError as error:
        return str(error)
    return ""


@pytest.fixture
def in_float32(monkeypatch):
    """Muon's products in float32: bfloat16, which torch takes, is a hundred times slower on many CPUs."""

    def orthogonal(grad, coefficients, steps, eps):
        a, b, c = coefficients
        x = grad.T if grad.size(0) > grad.size(1) else grad
        x = x / x.norm().clamp(min=eps)
        for _ in range(steps):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.T if grad.size(0) > grad.size(1) else x

    monkeypatch.setattr(_muon, "_zeropower_via_newtonschulz", orthogonal)


def trained_by(optimizer):
    """What a run would step with, without warm-up."""

    def make(model):
        module = LanguageModel(
            model, lr=1e-3, min_lr=1e-3, warmup=0, betas=(0.9, 0.99), weight_decay=0.1, compile=False, seed=0,
            optimizer=OPTIMIZERS[optimizer],
        )  # fmt: skip
        return module.optimizer(10**6)[0]

    return make


def test_the_law_is_asked_where_a_parametrization_is_set():
    law = Law(check_width_changes_no_size, width.is_scaled)
    assert law.applies(scaled())
    assert not law.applies(combination())


def test_no_size_goes_with_the_width():
    check_width_changes_no_size(scaled("heads=mla"))


CHOICES = [f"{axis}={name}" for axis in AXES for name in options(axis)]
STEEP = ("score=forget", "epilogue=gate_few", "epilogue=gate_per_head")  # a row for each head
KNOWN = pytest.mark.xfail(
    reason="from 64 to 1024 as the width to the power of 0.12 to 0.18: a gate's gradient is a product over a "
    "head's features, and agrees the better among tokens the more there are; flat where heads grow in number"
)
UNKNOWN = {
    "heads=tpa": "factors",
    "convolution=kv": "convolution",
    "epilogue=convolved": "convolution",
    "model=gated_delta": "convolution",
    "model=scalar_decay": "convolution",
    "model=taylor": "convolution",
}


LONG = [
    choice for choice in CHOICES if choice.split("=")[0] in ("heads", "model", "epilogue") or choice in STEEP
]  # has matrices of its own; to width 1024, which takes ten seconds


@pytest.mark.rare
@pytest.mark.parametrize(
    "choice",
    [
        choice
        for choice in CHOICES
        if choice not in UNKNOWN and (choice not in LONG or choice in STEEP or "heads=" in choice)
    ],
)
def test_no_size_goes_with_the_width_as_the_law_asks(choice):
    check_width_changes_no_size(scaled(choice))


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice in UNKNOWN])
def test_what_no_row_is_known_for_is_refused(choice):
    with pytest.raises(ValueError, match=rf"parametrization=mup has no row for .*{UNKNOWN[choice]}\.weight"):
        check_width_changes_no_size(scaled(choice))


@pytest.mark.rare
@pytest.mark.parametrize("heads", ["gqa", "mla", "differential"])
def test_heads_may_grow_in_number_too(heads):
    check_width_changes_no_size(scaled(f"heads={heads}", base_head_dim=8))


def test_a_constant_rate_is_seen():
    assert not faults(scaled(), **FAST)
    assert "power of" in faults(replace(scaled(), parametrization=None), **FAST)


FORGOTTEN = {  # a number of the table that is that of the base width
    "matrices start": ("heads=mha", "hidden", {"init": 1.0}),
    "matrices' rate": ("heads=mha", "hidden", {"adam": 1.0}),
    "latents start": ("heads=mla", "latent", {"init": 1.0}),
    "latents' rate": ("heads=mla", "latent", {"adam": 1.0}),
    "thin ones' rate": ("epilogue=gate_per_head", "thin", {"adam": 1.0}),
    "factors start": ("heads=differential", "factor", {"init": 1.0}),
    "factors' rate": ("heads=differential", "factor", {"adam": 1.0}),
    "readout": ("heads=mha", "readout", {"forward": 1.0}),
}
SCALED = {"inputs' rate": ("heads=mha", "input"), "vectors' rate": ("heads=mha", "vector")}


@pytest.mark.parametrize("fault", FORGOTTEN)
def test_a_number_that_is_forgotten_is_seen(fault, monkeypatch):
    choice, kind, wrong = FORGOTTEN[fault]
    assert not faults(scaled(choice), **FAST)
    right = parametrization.table
    monkeypatch.setattr(
        parametrization, "table",
        lambda *ratios: (found := right(*ratios)) | {kind: found[kind]._replace(**wrong)},
    )  # fmt: skip
    assert faults(scaled(choice), **FAST)


@pytest.mark.parametrize("fault", SCALED)
def test_a_rate_that_should_stay_is_seen(fault, monkeypatch):
    choice, kind = SCALED[fault]
    assert not faults(scaled(choice), **FAST)
    right = parametrization.table
    monkeypatch.setattr(
        parametrization, "table", lambda *ratios: (found := right(*ratios)) | {kind: found["hidden"]}
    )
    assert faults(scaled(choice), **FAST)


def test_scores_over_the_root_of_the_width_are_seen(monkeypatch):
    monkeypatch.setattr(parametrization, "scores", lambda head, exponent: 1.0)
    assert "scores" in faults(scaled(), **FAST)


def test_muons_rate_is_seen(monkeypatch, in_float32):
    right = parametrization.table
    assert not faults(scaled(), **FAST, optimizer=trained_by("muon"))
    monkeypatch.setattr(
        parametrization, "table",
        lambda *ratios: (found := right(*ratios)) | {"hidden": found["hidden"]._replace(muon=1.0)},
    )  # fmt: skip
    assert faults(scaled(), **FAST, optimizer=trained_by("muon"))


@pytest.mark.rare
@pytest.mark.parametrize(
    ("choice", "optimizer", "factors"),
    [
        *(
            pytest.param(choice, "adamw", (1, 4, 16), marks=[KNOWN] if choice in STEEP else [])
            for choice in LONG
            if choice not in UNKNOWN
        ),
        *(
            (f"heads={name}", "muon", (1, 4, 8)) for name in ("mha", "mla")
        ),  # its products take minutes at 1024
    ],
)
def test_no_size_goes_with_widths_from_64_on(choice, optimizer, factors, in_float32):
    """To 1024, with what a run steps with: its optimiser, rates and decay."""
    (variant,) = composed([choice, "kernel=eager", "parametrization=mup", "model.dim=64", "model.n_heads=4"])
    build = partial(wider, variant, n_layers=2)
    found = slopes(build, factors, steps=(1, 3, 10), optimizer=trained_by(optimizer))
    require_flat(found, least=-0.1)


@pytest.mark.rare
def test_a_gate_for_each_head_is_flat_where_heads_grow_in_number():
    line = ["kernel=eager", "parametrization=mup", "model.dim=64", "model.n_heads=4"]
    (variant,) = composed(["epilogue=gate_per_head", "model.parametrization.base_head_dim=16", *line])
    build = partial(wider, variant, n_layers=2)
    require_flat(slopes(build, (1, 4, 16), steps=(1, 10), optimizer=trained_by("adamw")))
