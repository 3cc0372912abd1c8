"""A configured part that has no value is an error: left out silently, it would be another design."""

import pytest
import torch
from torch import nn

from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.full import full
from attnlab.measure.leakage import leakage
from attnlab.model.build import build_model, make

HERE = "model.test_missing_parts"


def forgets_to_return(**_):
    """A factory whose author forgot the return statement."""


def holder(**parts):
    return parts


@pytest.mark.parametrize(
    "config",
    [
        {"_target_": f"{HERE}.forgets_to_return"},
        {"_target_": f"{HERE}.holder", "part": {"_target_": f"{HERE}.forgets_to_return"}},
        {"_target_": f"{HERE}.holder", "parts": {"one": {"_target_": f"{HERE}.forgets_to_return", "n": 2}}},
        {"_target_": f"{HERE}.holder", "parts": [{"_target_": f"{HERE}.forgets_to_return"}]},
        {"_target_": f"{HERE}.holder", "a": {"_target_": f"{HERE}.holder",
                                             "b": {"_target_": f"{HERE}.forgets_to_return"}}},
    ],
)  # fmt: skip
def test_a_part_that_evaluates_to_none_is_an_error_at_any_depth(config):
    with pytest.raises(ValueError, match="forgets_to_return returned None"):
        make(config)


def test_nested_parts_are_made_once_and_handed_on_as_they_are():
    inner = {"_target_": "collections.OrderedDict", "_partial_": False}
    made = make(
        {"_target_": f"{HERE}.holder", "parts": {"one": inner, "two": 2}, "list": [inner, 3]}, given=4
    )
    assert (made["parts"], made["list"], made["given"]) == ({"one": {}, "two": 2}, [{}, 3], 4)
    assert type(made["parts"]["one"]).__name__ == "OrderedDict"
    function = make({"_target_": f"{HERE}.holder", "_partial_": True, "part": inner})
    assert list(function.keywords) == ["part"]
    assert function(more=1)["more"] == 1


@pytest.mark.parametrize(
    ("group", "parts"),
    [
        ("masks", {"causal": None}),
        ("masks", {"causal": 3}),
        ("scores", {"mine": None}),
        ("scores", {"mine": []}),
    ],
)
def test_a_mask_or_score_that_is_no_function_is_named(compose, group, parts):
    heads = make(compose()["model"]["attention"]["heads"])
    with pytest.raises(
        ValueError, match=rf"model\.attention\.{group}\.{next(iter(parts))} is .* no function"
    ):
        Attention(heads, eager, **{group: parts})


@pytest.mark.parametrize("masks", [None, {}])
def test_a_decoder_without_a_mask_is_refused_and_full_attention_says_so(compose, masks):
    config = compose()
    config["model"]["attention"]["masks"] = masks
    with pytest.raises(ValueError, match="add a mask, as in mask=causal, or say so with mask=full"):
        build_model(config, 31)


def test_a_layer_of_the_model_without_a_mask_is_named(compose):
    config = compose("layers=local_global")
    config["model"]["layers"][1]["masks"] = None
    config["model"]["attention"]["masks"] = {}
    with pytest.raises(ValueError, match="masks of layer"):
        build_model(config, 31)


def test_mixers_without_masks_are_unaffected(compose):
    for model in ("gru", "linear", "gated_delta"):
        tokens = torch.randint(31, (2, 7))
        assert build_model(compose(f"model={model}"), 31)(tokens).shape == (2, 7, 31)


def test_mask_full_is_an_explicit_part_that_shows_every_key(compose):
    built = build_model(compose("mask=full"), 31)
    layer = built.blocks[0].mixer
    assert isinstance(layer, nn.Module)
    assert layer.mask is full
    assert layer.looks_ahead
    where = torch.arange(5)
    zero = torch.zeros(1, dtype=torch.long)
    assert full(zero, zero, where[:, None], where).all()
    tokens = torch.randint(31, (3, 7), generator=torch.Generator().manual_seed(1))
    assert leakage(built, {"tokens": tokens, "targets": tokens.roll(-1, 1)})["sees_future"] == 1


def test_positional_arguments_may_be_parts():
    assert make({"_target_": "builtins.max", "_args_": [1, {"_target_": "builtins.int"}]}) == 1
    assert make({"_target_": "builtins.max", "_args_": [1, 2]}) == 2
