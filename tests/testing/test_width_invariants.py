"""The width invariant holds for all heads, by either growth, with either optimizer, and detects errors.

Errors are in each row of the scaling table, and a constant learning rate.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.optim import _muon

from attnlab.model import parametrization
from attnlab.testing.invariants import Invariant, width_scaling
from attnlab.testing.invariants.variant_composition import combine_choices, compose_variants, list_options
from attnlab.testing.invariants.width_scaling import (
    build_wider_model,
    check_activations_are_width_invariant,
    fit_width_slopes,
    require_flat_slopes,
)
from attnlab.training.language_model import LanguageModel
from attnlab.training.optim.adamw import adamw
from attnlab.training.optim.muon import MuonAdamW
from attnlab.training.optim.schedules import Cosine

torch.set_num_threads(1)
OPTIMIZERS = {"adamw": adamw, "muon": partial(MuonAdamW, momentum=0.95)}
AXES = ("heads", "position", "score", "epilogue", "model")
FAST = {"factors": (2, 8), "seeds": (0,), "steps": (1,)}  # enough for large errors


def make_scaled_variant(choice="heads=mha", **settings):
    variant = combine_choices(**dict([choice.split("=")]), parametrization="mup")
    return replace(variant, parametrization={**variant.parametrization, **settings})


def find_steep_slope(variant, **settings):
    """Return the message of the first slope that is too steep, or an empty string."""
    try:
        require_flat_slopes(fit_width_slopes(partial(build_wider_model, variant), **settings))
    except AssertionError as error:
        return str(error)
    return ""


@pytest.fixture
def muon_in_float32(monkeypatch):
    """Compute Muon's products in float32; torch's bfloat16 is a hundred times slower on many CPUs."""

    def orthogonalize(grad, coefficients, steps, eps):
        a, b, c = coefficients
        x = grad.T if grad.size(0) > grad.size(1) else grad
        x = x / x.norm().clamp(min=eps)
        for _ in range(steps):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.T if grad.size(0) > grad.size(1) else x

    monkeypatch.setattr(_muon, "_zeropower_via_newtonschulz", orthogonalize)


def choose_optimizer_factory(optimizer):
    """Make a factory of a run's optimizer, without warm-up."""

    def make(model):
        module = LanguageModel(
            model, lr=1e-3, min_lr=1e-3, warmup=0, betas=(0.9, 0.99), weight_decay=0.1, compile=False, seed=0,
            schedule=Cosine(), optimizer=OPTIMIZERS[optimizer],
        )  # fmt: skip
        return module.optimizer(10**6)[0]

    return make


def test_width_invariant_applies_to_parametrized_variants():
    invariant = Invariant(check_activations_are_width_invariant, width_scaling.has_parametrization)
    assert invariant.applies(make_scaled_variant())
    assert not invariant.applies(combine_choices())


def test_mla_activations_are_width_invariant():
    check_activations_are_width_invariant(make_scaled_variant("heads=mla"))


CHOICES = [f"{axis}={name}" for axis in AXES for name in list_options(axis)]
STEEP = ("score=forget", "epilogue=gate_few", "epilogue=gate_per_head")  # matrices with a row per head
KNOWN = pytest.mark.xfail(
    reason="from 64 to 1024 as the width to the power of 0.12 to 0.18: a gate's gradient is a product over a "
    "head's features, and agrees the better among tokens the more there are; flat where heads grow in number"
)
UNKNOWN = {
    "heads=tpa": "factors",
    "convolution=kv": "convolution",
    "epilogue=convolved": "convolution",
    "model=delta_product": "convolution",
    "model=gated_delta": "convolution",
    "model=gated_delta_2": "convolution",
    "model=gated_delta_negative": "convolution",
    "model=gated_linear": "decay_up",
    "model=kda": "convolution",
    "model=scalar_decay": "convolution",
    "model=taylor": "convolution",
    "position=path": "convolution",
}


LONG = [
    choice for choice in CHOICES if choice.split("=")[0] in ("heads", "model", "epilogue") or choice in STEEP
]  # parts with matrices of their own, checked up to width 1024 (ten seconds)


@pytest.mark.rare
@pytest.mark.parametrize(
    "choice",
    [
        choice
        for choice in CHOICES
        if choice not in UNKNOWN and (choice not in LONG or choice in STEEP or "heads=" in choice)
    ],
)
def test_activations_of_every_value_are_width_invariant(choice):
    check_activations_are_width_invariant(make_scaled_variant(choice))


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice in UNKNOWN])
def test_parameters_without_a_scaling_row_are_rejected(choice):
    with pytest.raises(ValueError, match=rf"parametrization=mup has no rule for .*{UNKNOWN[choice]}\.weight"):
        check_activations_are_width_invariant(make_scaled_variant(choice))


@pytest.mark.rare
@pytest.mark.parametrize("heads", ["gqa", "mla", "differential"])
def test_activations_are_invariant_to_the_number_of_heads(heads):
    check_activations_are_width_invariant(make_scaled_variant(f"heads={heads}", base_head_dim=8))


def test_constant_learning_rate_is_detected():
    assert not find_steep_slope(make_scaled_variant(), **FAST)
    assert "scales as width^" in find_steep_slope(
        replace(make_scaled_variant(), parametrization=None), **FAST
    )


UNSCALED_ENTRIES = {  # entries of the scaling table left at the value of the base width
    "matrices start": ("heads=mha", "hidden", {"init": 1.0}),
    "matrices' rate": ("heads=mha", "hidden", {"adam_lr": 1.0}),
    "latents start": ("heads=mla", "latent", {"init": 1.0}),
    "latents' rate": ("heads=mla", "latent", {"adam_lr": 1.0}),
    "thin ones' rate": ("epilogue=gate_per_head", "thin", {"adam_lr": 1.0}),
    "factors start": ("heads=differential", "factor", {"init": 1.0}),
    "factors' rate": ("heads=differential", "factor", {"adam_lr": 1.0}),
    "readout": ("heads=mha", "readout", {"forward": 1.0}),
}
SCALED_CONSTANTS = {"inputs' rate": ("heads=mha", "input"), "vectors' rate": ("heads=mha", "vector")}


@pytest.mark.parametrize("fault", UNSCALED_ENTRIES)
def test_unscaled_table_entry_is_detected(fault, monkeypatch):
    choice, kind, wrong_entry = UNSCALED_ENTRIES[fault]
    assert not find_steep_slope(make_scaled_variant(choice), **FAST)
    build_table = parametrization.build_scaling_table
    monkeypatch.setattr(
        parametrization, "build_scaling_table",
        lambda *ratios: (table := build_table(*ratios)) | {kind: table[kind]._replace(**wrong_entry)},
    )  # fmt: skip
    assert find_steep_slope(make_scaled_variant(choice), **FAST)


@pytest.mark.parametrize("fault", SCALED_CONSTANTS)
def test_scaled_rate_that_should_be_constant_is_detected(fault, monkeypatch):
    choice, kind = SCALED_CONSTANTS[fault]
    assert not find_steep_slope(make_scaled_variant(choice), **FAST)
    build_table = parametrization.build_scaling_table
    monkeypatch.setattr(
        parametrization,
        "build_scaling_table",
        lambda *ratios: (table := build_table(*ratios)) | {kind: table["hidden"]},
    )
    assert find_steep_slope(make_scaled_variant(choice), **FAST)


def test_scores_scaled_by_the_root_of_the_width_are_detected(monkeypatch):
    monkeypatch.setattr(parametrization, "compute_score_factor", lambda head, exponent: 1.0)
    assert "scores" in find_steep_slope(make_scaled_variant(), **FAST)


def test_constant_muon_rate_is_detected(monkeypatch, muon_in_float32):
    build_table = parametrization.build_scaling_table
    assert not find_steep_slope(make_scaled_variant(), **FAST, optimizer=choose_optimizer_factory("muon"))
    monkeypatch.setattr(
        parametrization, "build_scaling_table",
        lambda *ratios: (table := build_table(*ratios)) | {"hidden": table["hidden"]._replace(muon_lr=1.0)},
    )  # fmt: skip
    assert find_steep_slope(make_scaled_variant(), **FAST, optimizer=choose_optimizer_factory("muon"))


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
        ),  # Muon's products take minutes at width 1024
    ],
)
def test_activations_are_width_invariant_up_to_width_1024(choice, optimizer, factors, muon_in_float32):
    """Check widths up to 1024 with a run's optimizer, learning rates and weight decay."""
    (variant,) = compose_variants(
        [choice, "kernel=eager", "parametrization=mup", "model.dim=64", "model.n_heads=4"]
    )
    build = partial(build_wider_model, variant, n_layers=2)
    slopes = fit_width_slopes(build, factors, steps=(1, 3, 10), optimizer=choose_optimizer_factory(optimizer))
    require_flat_slopes(slopes, min_slope=-0.1)


@pytest.mark.rare
def test_per_head_gate_is_invariant_to_the_number_of_heads():
    overrides = ["kernel=eager", "parametrization=mup", "model.dim=64", "model.n_heads=4"]
    (variant,) = compose_variants(
        ["epilogue=gate_per_head", "model.parametrization.base_head_dim=16", *overrides]
    )
    build = partial(build_wider_model, variant, n_layers=2)
    require_flat_slopes(
        fit_width_slopes(build, (1, 4, 16), steps=(1, 10), optimizer=choose_optimizer_factory("adamw"))
    )
