"""Configs that no family can express raise before any file is written, naming keys of our config."""

import json
import re

import pytest
import torch
from test_huggingface import CASES, make_hf_model

from attnlab.model.build import build_model
from attnlab.model.huggingface.conversion import load_hf_model, save_hf_model
from attnlab.model.huggingface.families import LLAMA

TOKENS = torch.arange(13)[None]
WINDOW = {"masks": {"near": {"_target_": "attnlab.attention.masks.window.window", "size": 3}}}


@pytest.fixture
def scaled_llama(tmp_path):
    """Config and model of a checkpoint with linear RoPE scaling, and a folder to save to."""
    make_hf_model(CASES["llama-linear"], tmp_path)
    return *load_hf_model(tmp_path), tmp_path / "ours"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_kv_heads": 1}, "gpt2, .* model.attention.heads.n_kv_heads = 1 .only 3."),
        ({"epilogue": True}, "model.attention.epilogue"),
        ({"bias": False}, "model.attention.heads.bias = False .only True."),
    ],
)
def test_unsupported_config_raises_with_the_reason(change, message, tmp_path):
    make_hf_model(CASES["gpt2"], tmp_path)
    config, _ = load_hf_model(tmp_path)
    heads = config["attention"]["heads"]
    if change.pop("epilogue", False):
        gate = {"_target_": "attnlab.attention.epilogue.Gate", "dim": 21, "n_heads": 3, "head_dim": 7}
        config["attention"]["epilogue"] = gate
    heads |= change
    with pytest.raises(ValueError, match=message):
        save_hf_model(tmp_path / "no", build_model({"model": config}, 31), config)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("layers", "where"),
    [
        ([{"rotary": None}, {}], 0),
        ([{}, {"rotary": {"scaling": None}}], 1),
        ([{"epilogue": None}, {"masks": {"causal": {"path": "attnlab.attention.masks.full.full"}}}], 1),
        ([{}, WINDOW, {}], 1),
        ([{"rotary": {"base": 3.0}}], 0),
        ([{"rotary": {"frequencies": "head"}}], 0),
    ],
)
def test_layer_patch_with_an_effect_is_named(layers, where, scaled_llama):
    config, _, folder = scaled_llama
    config["layers"] = layers
    message = re.escape(
        f"the nearest, llama, does not support model.layers[{where}] = {json.dumps(layers[where])}"
    )
    with pytest.raises(ValueError, match=message) as error:
        save_hf_model(folder, build_model({"model": config}, 31), config, {"llama": LLAMA})
    assert str(error.value).count("model.") == 1
    assert not folder.exists()


@pytest.mark.parametrize(
    "layers",
    [
        [{"epilogue": None}, {"scores": {}, "rotary": {"fraction": 1.0}}],
        [{"heads": {"head_dim": 4}}, {"dropout": 0.3}],
        [{}, {}, {"rotary": None}],  # the model has only two layers
    ],
)
def test_layer_patches_without_effect_are_accepted(layers, scaled_llama):
    config, model, folder = scaled_llama
    save_hf_model(folder, model, config | {"layers": layers})
    assert torch.equal(load_hf_model(folder)[1](TOKENS), model(TOKENS))


def test_mixer_key_is_compared_by_content(scaled_llama):
    config, model, folder = scaled_llama
    other = {"attention": {"_target_": "nowhere"}, "mixer": config["attention"]}
    save_hf_model(folder, model, config | other)
    assert torch.equal(load_hf_model(folder)[1](TOKENS), model(TOKENS))
    config |= {"mixer": config["attention"] | {"rotary": None}}
    with pytest.raises(ValueError, match=r"model\.mixer\.rotary.* = absent"):
        save_hf_model(folder, model, config, {"llama": LLAMA})


def test_config_of_another_model_is_rejected(scaled_llama):
    config, model, folder = scaled_llama
    with pytest.raises(ValueError, match="does not describe this model"):
        save_hf_model(folder, model, config | {"ffn_width": 11})


def test_training_settings_are_ignored(scaled_llama):
    config, model, folder = scaled_llama
    attention = config["attention"] | {"dropout": 0.1, "kernel": {"_target_": "hydra.utils.get_method"}}
    attention["kernel"]["path"] = "attnlab.attention.kernels.eager.eager"
    training = {"attention": attention, "dropout": 0.2, "seed": 4, "layers": [{}]}
    save_hf_model(folder, model, config | training)
    assert torch.equal(load_hf_model(folder)[1](TOKENS), model(TOKENS))
