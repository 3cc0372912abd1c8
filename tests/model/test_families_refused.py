"""What a family's config says and we cannot compute is refused in a line that names the key."""

import json
import random

import pytest
import torch
from test_families import CASES, SIZES, theirs

from attnlab.model.huggingface.convert import load

ODD = (None, "x", -1, 0, 2.5, 10**12, 10**30, [], ["x"], [1], {}, {"x": 1}, True)


def edit(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refusal(folder):
    """Why it is not read; nothing where it is, and answers."""
    try:
        _, model = load(folder)
        with torch.no_grad():
            model(torch.arange(7)[None])
    except ValueError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each family, by its first case."""
    made = {}
    for kind, changes in CASES.items():
        if changes:
            made[kind] = tmp_path_factory.mktemp(kind)
            theirs(kind, SIZES | changes[0]).save_pretrained(made[kind])
    return made


@pytest.fixture
def edited(folders):
    """`edited(kind, **keys)`: its folder with these keys in the config, until the test ends."""
    kept = {kind: (folder / "config.json").read_text() for kind, folder in folders.items()}

    def edit(kind, **keys):
        (folders[kind] / "config.json").write_text(json.dumps(json.loads(kept[kind]) | keys))
        return folders[kind]

    yield edit
    for kind, text in kept.items():
        (folders[kind] / "config.json").write_text(text)


@pytest.mark.parametrize("kind", [kind for kind, changes in CASES.items() if changes])
def test_quantised_weights_are_refused_in_every_family(edited, kind):
    with pytest.raises(ValueError, match=r"quantization_config = .*is not supported"):
        load(edited(kind, quantization_config={"quant_method": "mxfp4"}))


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
        ("gpt_oss", {"num_experts_per_tok": 9}, "9 of 5"),
        ("deepseek_v3", {"first_k_dense_replace": 1}, "first_k_dense_replace = 1 is not supported: experts"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave = False is not supported"),
        ("deepseek_v3", {"num_key_value_heads": 3}, "num_key_value_heads = 3 is not supported .only 6."),
        ("mpt", {"attn_config": {"clip_qkv": 6.0}}, "attn_config.clip_qkv = 6.0 is not supported"),
        ("mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi = False is not supported"),
        ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn = 2 is not supported"),
        ("diffllama", {"num_key_value_heads": 3}, "even numbers of heads and KV heads"),
    ],
)
def test_a_value_that_we_cannot_compute_is_named(edited, kind, keys, message):
    folder = edited(kind, **keys)
    with pytest.raises(ValueError, match=message) as refused:
        load(folder)
    assert "\n" not in str(refused.value)
    assert str(folder) in str(refused.value)


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("kind", [kind for kind, changes in CASES.items() if changes])
def test_whatever_a_config_says_is_read_or_refused_in_a_line(edited, folders, kind):
    usual = json.loads((folders[kind] / "config.json").read_text())
    inner = {key: held for key, held in usual.items() if isinstance(held, dict)}
    places = [{key: odd} for key in usual for odd in ODD]
    places += [{key: held | {name: odd}} for key, held in inner.items() for name in held for odd in ODD]
    for keys in random.Random(0).sample(places, 40):
        reason = refusal(edited(kind, **keys))
        assert "\n" not in reason, keys
        assert len(reason) < 1000, keys
