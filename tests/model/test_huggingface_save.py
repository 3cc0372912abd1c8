"""What no family can hold is refused before anything is written, in the words of our config."""

import json
import re

import pytest
import torch
from test_huggingface import CASES, theirs

from attnlab.model.build import build_model
from attnlab.model.huggingface.convert import load, save
from attnlab.model.huggingface.families import LLAMA

TOKENS = torch.arange(13)[None]
WINDOW = {"masks": {"near": {"_target_": "attnlab.attention.masks.window.window", "size": 3}}}


@pytest.fixture
def squeezed(tmp_path):
    """Config and model of a folder with linear scaling, and a place to save to."""
    theirs(CASES["llama-linear"], tmp_path)
    return *load(tmp_path), tmp_path / "ours"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_kv_heads": 1}, "gpt2 .* model.attention.heads.n_kv_heads = 1 .only 3."),
        ({"epilogue": True}, "model.attention.epilogue"),
        ({"bias": False}, "model.attention.heads.bias = False .only True."),
    ],
)
def test_what_no_family_can_hold_is_refused_with_the_reason(change, message, tmp_path):
    theirs(CASES["gpt2"], tmp_path)
    config, _ = load(tmp_path)
    heads = config["attention"]["heads"]
    if change.pop("epilogue", False):
        gate = {"_target_": "attnlab.attention.epilogue.Gate", "dim": 21, "n_heads": 3, "head_dim": 7}
        config["attention"]["epilogue"] = gate
    heads |= change
    with pytest.raises(ValueError, match=message):
        save(tmp_path / "no", build_model({"model": config}, 31), config)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("layers", "where"),
    [
        ([{"rotary": None}, {}], 0),
        ([{}, {"rotary": {"scaling": None}}], 1),
        ([{"epilogue": None}, {"masks": {"causal": {"path": "attnlab.attention.masks.full.full"}}}], 1),
        ([{}, WINDOW, {}], 1),
        ([{"rotary": {"base": 3.0}}], 0),
    ],
)
def test_a_patch_that_changes_a_layer_is_refused_as_it_was_written(layers, where, squeezed):
    config, _, folder = squeezed
    config["layers"] = layers
    message = re.escape(
        f"llama comes nearest and cannot have model.layers[{where}] = {json.dumps(layers[where])}"
    )
    with pytest.raises(ValueError, match=message) as refused:
        save(folder, build_model({"model": config}, 31), config, {"llama": LLAMA})
    assert str(refused.value).count("model.") == 1
    assert not folder.exists()


@pytest.mark.parametrize(
    "layers",
    [
        [{"epilogue": None}, {"scores": {}, "rotary": {"fraction": 1.0}}],
        [{"heads": {"head_dim": 4}}, {"dropout": 0.3}],
        [{}, {}, {"rotary": None}],  # of two layers none takes it
    ],
)
def test_patches_that_change_no_layer_do_not_stand_in_the_way(layers, squeezed):
    config, model, folder = squeezed
    save(folder, model, config | {"layers": layers})
    assert torch.equal(load(folder)[1](TOKENS), model(TOKENS))


def test_a_mixer_is_judged_by_what_it_is(squeezed):
    config, model, folder = squeezed
    other = {"attention": {"_target_": "nowhere"}, "mixer": config["attention"]}
    save(folder, model, config | other)
    assert torch.equal(load(folder)[1](TOKENS), model(TOKENS))
    config |= {"mixer": config["attention"] | {"rotary": None}}
    with pytest.raises(ValueError, match=r"model\.mixer\.rotary.* = absent"):
        save(folder, model, config, {"llama": LLAMA})


def test_a_config_of_another_model_is_refused(squeezed):
    config, model, folder = squeezed
    with pytest.raises(ValueError, match="describes another model"):
        save(folder, model, config | {"ffn_width": 11})


def test_training_settings_do_not_stand_in_the_way(squeezed):
    config, model, folder = squeezed
    attention = config["attention"] | {"dropout": 0.1, "kernel": {"_target_": "hydra.utils.get_method"}}
    attention["kernel"]["path"] = "attnlab.attention.kernels.eager.eager"
    training = {"attention": attention, "dropout": 0.2, "seed": 4, "layers": [{}]}
    save(folder, model, config | training)
    assert torch.equal(load(folder)[1](TOKENS), model(TOKENS))
