"""A configured part without a value is an error; omitting it silently would change the design."""

import pytest
import torch
from torch import nn

from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.full import full
from attnlab.measure.leakage import measure_leakage
from attnlab.model.build import build_model, instantiate_config

MODULE = "model.test_missing_parts"


def return_nothing(**_):
    """Factory without a return statement."""


def return_parts(**parts):
    return parts


@pytest.mark.parametrize(
    "config",
    [
        {"_target_": f"{MODULE}.return_nothing"},
        {"_target_": f"{MODULE}.return_parts", "part": {"_target_": f"{MODULE}.return_nothing"}},
        {"_target_": f"{MODULE}.return_parts",
         "parts": {"one": {"_target_": f"{MODULE}.return_nothing", "n": 2}}},
        {"_target_": f"{MODULE}.return_parts", "parts": [{"_target_": f"{MODULE}.return_nothing"}]},
        {"_target_": f"{MODULE}.return_parts", "a": {"_target_": f"{MODULE}.return_parts",
                                                   "b": {"_target_": f"{MODULE}.return_nothing"}}},
    ],
)  # fmt: skip
def test_part_that_is_none_is_an_error_at_any_depth(config):
    with pytest.raises(ValueError, match="return_nothing returned None"):
        instantiate_config(config)


def test_nested_parts_are_instantiated_once_and_passed_unchanged():
    inner = {"_target_": "collections.OrderedDict", "_partial_": False}
    parts = instantiate_config(
        {"_target_": f"{MODULE}.return_parts", "parts": {"one": inner, "two": 2}, "list": [inner, 3]}, given=4
    )
    assert (parts["parts"], parts["list"], parts["given"]) == ({"one": {}, "two": 2}, [{}, 3], 4)
    assert type(parts["parts"]["one"]).__name__ == "OrderedDict"
    function = instantiate_config({"_target_": f"{MODULE}.return_parts", "_partial_": True, "part": inner})
    assert list(function.keywords) == ["part"]
    assert function(more=1)["more"] == 1


@pytest.mark.parametrize(
    ("group", "parts"),
    [
        ("masks", {"causal": None}),
        ("masks", {"causal": 3}),
        ("scores", {"mine": None}),
        ("scores", {"mine": []}),
        ("score_maps", {"mine": None}),
    ],
)
def test_mask_or_score_that_is_no_function_is_named(compose, group, parts):
    heads = instantiate_config(compose()["model"]["attention"]["heads"])
    with pytest.raises(
        ValueError, match=rf"model\.attention\.{group}\.{next(iter(parts))} is .*, not a function"
    ):
        Attention(heads, eager, **{group: parts})


@pytest.mark.parametrize("masks", [None, {}])
def test_decoder_without_a_mask_is_rejected(compose, masks):
    config = compose()
    config["model"]["attention"]["masks"] = masks
    with pytest.raises(ValueError, match="add a mask, as in mask=causal, or set mask=full"):
        build_model(config, 31)


def test_layer_without_a_mask_is_named(compose):
    config = compose("layers=local_global")
    config["model"]["layers"][1]["masks"] = None
    config["model"]["attention"]["masks"] = {}
    with pytest.raises(ValueError, match="masks of layer"):
        build_model(config, 31)


def test_mixers_without_masks_are_accepted(compose):
    for model in ("gru", "linear", "gated_delta"):
        tokens = torch.randint(31, (2, 7))
        assert build_model(compose(f"model={model}"), 31)(tokens).shape == (2, 7, 31)


def test_mask_full_shows_every_key(compose):
    model = build_model(compose("mask=full"), 31)
    layer = model.blocks[0].mixer
    assert isinstance(layer, nn.Module)
    assert layer.mask is full
    assert layer.sees_future
    positions = torch.arange(5)
    zero = torch.zeros(1, dtype=torch.long)
    assert full(zero, zero, positions[:, None], positions).all()
    tokens = torch.randint(31, (3, 7), generator=torch.Generator().manual_seed(1))
    assert measure_leakage(model, {"tokens": tokens, "targets": tokens.roll(-1, 1)})["sees_future"] == 1


def test_positional_arguments_may_be_parts():
    assert instantiate_config({"_target_": "builtins.max", "_args_": [1, {"_target_": "builtins.int"}]}) == 1
    assert instantiate_config({"_target_": "builtins.max", "_args_": [1, 2]}) == 2


def test_an_old_name_of_an_argument_is_answered_with_the_new_one():
    config = {"_target_": "attnlab.attention.layer.Attention", "normaliser": None}
    with pytest.raises(ValueError, match=r"'normaliser' \(normaliser was renamed to normalizer\)"):
        instantiate_config(config)
