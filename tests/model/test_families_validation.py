"""Unsupported values in a family's config raise a one-line error that names the key."""

import json
import random

import pytest
import torch
from test_families import CASES, SIZES, make_hf_model

from attnlab.model.huggingface.conversion import load_hf_model

ODD_VALUES = (None, "x", -1, 0, 2.5, 10**12, 10**30, [], ["x"], [1], {}, {"x": 1}, True)


def try_load(folder):
    """Load a folder, run the model, and return the error message or an empty string."""
    try:
        _, model = load_hf_model(folder)
        with torch.no_grad():
            model(torch.arange(7)[None])
    except ValueError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def family_folders(tmp_path_factory):
    """Checkpoint folders: the first case of each family."""
    folders = {}
    for kind, changes in CASES.items():
        if changes:
            folders[kind] = tmp_path_factory.mktemp(kind)
            make_hf_model(kind, SIZES | changes[0]).save_pretrained(folders[kind])
    return folders


@pytest.fixture
def edit_config(family_folders):
    """Function `edit(kind, **keys)`: sets config keys until the test ends and returns the folder."""
    original_texts = {kind: (folder / "config.json").read_text() for kind, folder in family_folders.items()}

    def edit(kind, **keys):
        (family_folders[kind] / "config.json").write_text(json.dumps(json.loads(original_texts[kind]) | keys))
        return family_folders[kind]

    yield edit
    for kind, text in original_texts.items():
        (family_folders[kind] / "config.json").write_text(text)


@pytest.mark.parametrize("kind", [kind for kind, changes in CASES.items() if changes])
def test_quantized_weights_are_rejected_in_every_family(edit_config, kind):
    with pytest.raises(ValueError, match=r"quantization_config = .*is not supported"):
        load_hf_model(edit_config(kind, quantization_config={"quant_method": "mxfp4"}))


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        (
            "qwen2",
            {"layer_types": ["chunked_attention"] * 3},
            "layer_types = .*'chunked_attention'.* is not supported",
        ),
        ("qwen2", {"layer_types": ["full_attention"] * 2}, "layer_types = .* is not supported .only 3 of"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "sliding_window is missing"),
        ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types = .* is not supported"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "rope_type = 'longrope' is not supported"),
        (
            "phi3",
            {"rope_parameters": {}, "partial_rotary_factor": 0.4},
            "partial_rotary_factor = 0.4 of 4 features",
        ),
        ("gpt_neox", {"hidden_act": "relu"}, "hidden_act = 'relu' is not supported"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers = .1. is not supported"),
        (
            "gemma2",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention = True is not supported",
        ),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar .* must be more than 0"),
        ("gemma3_text", {"attn_logit_softcapping": 2.0}, "attn_logit_softcapping = 2.0 is not supported"),
        (
            "gemma3_text",
            {"rope_parameters": {"rope_type": "linear"}},
            "rope_parameters must hold full_attention",
        ),
        ("gpt_oss", {"num_experts_per_tok": 9}, "n_chosen=9 and n_experts=5"),
        ("deepseek_v3", {"first_k_dense_replace": 1}, "first_k_dense_replace = 1 is not supported: experts"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave = False is not supported"),
        ("deepseek_v3", {"num_key_value_heads": 3}, "num_key_value_heads = 3 is not supported .only 6."),
        ("mpt", {"attn_config": {"clip_qkv": 6.0}}, "attn_config.clip_qkv = 6.0 is not supported"),
        ("mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi = False is not supported"),
        ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn = 2 is not supported"),
        ("diffllama", {"num_key_value_heads": 3}, "an even n_heads and an even n_kv_heads"),
    ],
)
def test_unsupported_value_is_named(edit_config, kind, keys, message):
    folder = edit_config(kind, **keys)
    with pytest.raises(ValueError, match=message) as error:
        load_hf_model(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("kind", [kind for kind, changes in CASES.items() if changes])
def test_odd_config_values_load_or_fail_in_one_line(edit_config, family_folders, kind):
    config = json.loads((family_folders[kind] / "config.json").read_text())
    nested = {key: value for key, value in config.items() if isinstance(value, dict)}
    edits = [{key: odd} for key in config for odd in ODD_VALUES]
    edits += [
        {key: value | {name: odd}} for key, value in nested.items() for name in value for odd in ODD_VALUES
    ]
    for keys in random.Random(0).sample(edits, 40):
        message = try_load(edit_config(kind, **keys))
        assert "\n" not in message, keys
        assert len(message) < 1000, keys
