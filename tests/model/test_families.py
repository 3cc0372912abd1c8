"""Each family's checkpoints mean here what they mean in `transformers`: logits in float64, greedy text, and
what we save. Theirs is made to compute in float64 throughout, since its modules round to float32 whatever
the weights are.
"""

from contextlib import contextmanager

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from attnlab.attention.cache import DynamicCache
from attnlab.model.generation import Decoder
from attnlab.model.huggingface.canonical import canonical
from attnlab.model.huggingface.convert import load, save
from attnlab.model.huggingface.families import FAMILIES

VOCABULARY, LENGTH = 31, 13
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 11, "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

CASES = {
    "llama": [{"rope_parameters": YARN}, {"rope_parameters": YARN | {"truncate": False, "mscale": 0.7}}],
    "gpt2": [],
    "qwen2": [
        {"rms_norm_eps": 1e-3, "rope_theta": 700.0},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True},
        {"use_sliding_window": True, "sliding_window": 5, "layer_types": SLIDING, "num_key_value_heads": 6},
        {"rope_parameters": YARN | {"beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.3}},
    ],
    "qwen3": [
        {"head_dim": 10, "rms_norm_eps": 1e-2, "tie_word_embeddings": True},
        {"head_dim": 4, "attention_bias": True, "num_key_value_heads": 1, "rope_parameters": LINEAR},
        {"head_dim": 6, "use_sliding_window": True, "sliding_window": 3, "layer_types": SLIDING},
    ],
    "mistral": [
        {"sliding_window": 5, "rms_norm_eps": 1e-3},
        {"sliding_window": None, "head_dim": 10, "rope_theta": 300.0},
        {"sliding_window": 4, "tie_word_embeddings": True, "rope_parameters": YARN | {"mscale": 2.0, "mscale_all_dim": 1.0}},
    ],
    "phi3": [
        {"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-3},
        {"sliding_window": 5, "num_key_value_heads": 6, "rope_theta": 300.0},
        {"hidden_size": 48, "partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    ],
    "gpt_neox": [
        {"hidden_size": 48, "rotary_pct": 0.25, "layer_norm_eps": 1e-3},
        {"use_parallel_residual": False, "rotary_pct": 0.5, "rotary_emb_base": 300.0, "attention_bias": False},
        {"rotary_pct": 1.0, "tie_word_embeddings": True, "hidden_act": "gelu_new", "rope_scaling": LINEAR},
    ],
    "smollm3": [
        {"rms_norm_eps": 1e-3, "no_rope_layer_interval": 2, "tie_word_embeddings": False},
        {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 4, "attention_bias": True},
        {"num_hidden_layers": 5, "mlp_bias": True, "rope_parameters": YARN},
    ],
    "olmo2": [
        {"rms_norm_eps": 1e-2, "rope_theta": 300.0},
        {"attention_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1, "rope_parameters": YARN},
    ],
}  # fmt: skip
EAGER = {"attn_implementation": "eager"}
NAMED = [(kind, n) for kind, changes in CASES.items() for n in range(len(changes))]
ONE_EACH = [(kind, 0) for kind, changes in CASES.items() if changes]


@contextmanager
def in_double():
    """Where `transformers` asks for float32, it gets float64."""
    narrow, usual = torch.float32, torch.get_default_dtype()
    as_float = torch.Tensor.float
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32 = torch.float = narrow
        torch.Tensor.float = as_float
        torch.set_default_dtype(usual)


def theirs(kind, values, how=EAGER):
    """A model of theirs; every parameter, gains and biases too, is random and large."""
    torch.manual_seed(5)
    with in_double():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values), **how).double().eval()
        for parameter in model.parameters():
            parameter.data.add_(0.15 * torch.randn(parameter.shape))
    return model


def values(kind, n):
    return SIZES | CASES[kind][n]


def logits(model, tokens):
    with in_double(), torch.no_grad():
        return model(tokens).logits


def same(ours, want):
    assert want.std() > 0.2  # else agreement would say little
    assert (ours - want).abs().max() < 1e-10 * want.abs().max()


@pytest.fixture
def tokens():
    return torch.randint(0, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("kind", "n"), NAMED)
def test_a_checkpoint_is_read_written_and_means_the_same(kind, n, tokens, tmp_path):
    model = theirs(kind, values(kind, n))
    model.save_pretrained(tmp_path / "theirs")
    config, ours = load(tmp_path / "theirs")
    want = logits(model, tokens)
    with torch.no_grad():
        same(ours(tokens), want)
    save(tmp_path / "ours", ours, config, {kind: FAMILIES[kind]})
    with in_double():
        back = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float64, **EAGER).eval()
    same(logits(back, tokens), want)
    assert canonical(load(tmp_path / "ours")[0]) == canonical(config)


@pytest.mark.parametrize(("kind", "n"), NAMED)
def test_greedy_text_is_theirs_cached_or_not(kind, n, tokens, tmp_path):
    model = theirs(kind, values(kind, n))
    model.save_pretrained(tmp_path)
    _, ours = load(tmp_path)
    prompt = tokens[:, :5]
    with in_double():
        want = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
    assert want.unique().numel() > 5
    for cache in (None, DynamicCache):
        assert torch.equal(Decoder(ours, cache).generate(prompt, 12), want)
