"""Each family agrees with `transformers`: float64 logits, greedy text and saved checkpoints.

`transformers` is patched to compute in float64 throughout, because its modules round to float32 for any
weights.
"""

import json
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from attnlab.attention.cache import DynamicCache
from attnlab.inference_cost.hf_config import load_hf_cost
from attnlab.measure.module_costs import count_module_cost
from attnlab.model.generation import Decoder
from attnlab.model.huggingface.canonical_config import canonicalize_config
from attnlab.model.huggingface.conversion import load_hf_model, save_hf_model
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
MLA = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 7,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "first_k_dense_replace": 3,
}
QWEN_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 13}

CASES = {
    "llama": [{"rope_parameters": YARN}, {"rope_parameters": YARN | {"truncate": False, "mscale": 0.7}}],
    "gpt2": [],
    "qwen2": [
        {"rms_norm_eps": 1e-3, "rope_theta": 700.0},
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
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
        {
            "sliding_window": 4,
            "tie_word_embeddings": True,
            "rope_parameters": YARN | {"mscale": 2.0, "mscale_all_dim": 1.0},
        },
    ],
    "phi3": [
        {"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-3},
        {"sliding_window": 5, "num_key_value_heads": 6, "rope_theta": 300.0},
        {"hidden_size": 48, "partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    ],
    "gpt_neox": [
        {"hidden_size": 48, "rotary_pct": 0.25, "layer_norm_eps": 1e-3},
        {
            "use_parallel_residual": False,
            "rotary_pct": 0.5,
            "rotary_emb_base": 300.0,
            "attention_bias": False,
        },
        {"rotary_pct": 1.0, "tie_word_embeddings": True, "hidden_act": "gelu_new", "rope_scaling": LINEAR},
    ],
    "smollm3": [
        {"rms_norm_eps": 1e-3, "no_rope_layer_interval": 2, "tie_word_embeddings": False},
        {
            "no_rope_layers": [0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 4,
            "attention_bias": True,
        },
        {"num_hidden_layers": 5, "mlp_bias": True, "rope_parameters": YARN},
    ],
    "olmo2": [
        {"rms_norm_eps": 1e-2, "rope_theta": 300.0},
        {
            "attention_bias": True,
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
            "rope_parameters": YARN,
        },
    ],
    "gemma2": [
        {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 4, "attn_logit_softcapping": 2.0},
        {
            "head_dim": 6,
            "query_pre_attn_scalar": 6,
            "sliding_window": 5,
            "layer_types": SLIDING[::-1],
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
        },
        {
            "head_dim": 4,
            "final_logit_softcapping": 1.5,
            "attention_bias": True,
            "rope_parameters": YARN,
            "hidden_activation": "gelu",
            "rms_norm_eps": 1e-2,
        },
        {"head_dim": 4, "layer_types": ["full_attention"] * 3},
    ],
    "gemma3_text": [
        {"head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 4, "sliding_window_pattern": 2},
        {
            "head_dim": 6,
            "sliding_window": 5,
            "layer_types": SLIDING,
            "final_logit_softcapping": 2.0,
            "rope_theta": 900.0,
            "rope_local_base_freq": 70.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "head_dim": 4,
            "rms_norm_eps": 1e-2,
            "sliding_window": 3,
            "layer_types": SLIDING,
            "rope_parameters": {"full_attention": LINEAR, "sliding_attention": YARN},
        },
        {"head_dim": 4, "layer_types": ["full_attention"] * 3},
    ],
    "gpt_oss": [
        {"head_dim": 10, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 4},
        {
            "head_dim": 4,
            "num_local_experts": 3,
            "num_experts_per_tok": 3,
            "layer_types": SLIDING[::-1],
            "sliding_window": 3,
            "attention_bias": False,
            "rope_parameters": YARN | {"truncate": False},
            "swiglu_limit": 0.5,
            "swiglu_alpha": 1.2,
            "rms_norm_eps": 1e-2,
        },
        {
            "head_dim": 4,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "layer_types": ["full_attention"] * 3,
        },
    ],
    "deepseek_v3": [
        MLA | {"q_lora_rank": 9, "rms_norm_eps": 1e-3},
        MLA | {"q_lora_rank": None, "v_head_dim": 6, "tie_word_embeddings": True, "rope_theta": 300.0},
        MLA
        | {
            "q_lora_rank": 5,
            "attention_bias": True,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        },
        MLA | {"q_lora_rank": 5, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ],
    "mpt": [
        {"d_model": 24, "n_heads": 6, "n_layers": 2, "max_seq_len": 64, "layer_norm_epsilon": 1e-3},
        {
            "d_model": 32,
            "n_heads": 16,
            "n_layers": 2,
            "max_seq_len": 64,
            "tie_word_embeddings": False,
            "attn_config": {"softmax_scale": 0.3},
        },
    ],
    "falcon": [
        {"parallel_attn": True, "multi_query": True, "layer_norm_epsilon": 1e-3},
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "rope_theta": 300.0},
        {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
        {"parallel_attn": False, "multi_query": False, "ffn_hidden_size": 20, "rope_scaling": LINEAR},
        {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True},
        {"alibi": True, "hidden_size": 32, "num_attention_heads": 16, "tie_word_embeddings": False},
    ],
    "diffllama": [
        {"num_key_value_heads": 2, "rms_norm_eps": 1e-2},
        {"num_attention_heads": 8, "num_key_value_heads": 4, "attention_bias": True, "head_dim": 6},
        {
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "head_dim": 4,
            "tie_word_embeddings": True,
            "rope_parameters": YARN,
        },
    ],
    "granite": [
        {
            "attention_multiplier": 0.7,
            "residual_multiplier": 0.6,
            "logits_scaling": 0.5,
            "embedding_multiplier": 2.0,
            "rms_norm_eps": 1e-3,
        },
        {
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": YARN,
            "num_key_value_heads": None,
            "head_dim": 10,
        },
    ],
    "starcoder2": [
        {"sliding_window": 5, "norm_epsilon": 1e-3},
        {"use_bias": False, "tie_word_embeddings": False, "hidden_act": "gelu", "rope_theta": 300.0},
    ],
    "olmo3": [
        {"sliding_window": 4, "rms_norm_eps": 1e-2, "num_hidden_layers": 4},
        {
            "sliding_window": 3,
            "layer_types": SLIDING[::-1],
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "sliding_window": 5,
            "layer_types": SLIDING,
            "num_key_value_heads": 1,
            "rope_parameters": {"full_attention": YARN, "sliding_attention": LINEAR},
        },
        {"layer_types": ["full_attention"] * 3},
    ],
    "stablelm": [
        {"hidden_size": 48, "use_qkv_bias": True, "layer_norm_eps": 1e-3},
        {"use_parallel_residual": True, "partial_rotary_factor": 0.5, "tie_word_embeddings": True},
        {"partial_rotary_factor": 1.0, "num_key_value_heads": 1, "rope_parameters": YARN},
    ],
    "glm": [
        {"head_dim": 8, "rms_norm_eps": 1e-3},
        {
            "head_dim": 10,
            "partial_rotary_factor": 1.0,
            "attention_bias": False,
            "rope_theta": 300.0,
            "tie_word_embeddings": True,
        },
        {"head_dim": 8, "rope_parameters": LINEAR | {"partial_rotary_factor": 0.25}},
    ],
    "glm4": [
        {"head_dim": 8, "rms_norm_eps": 1e-3},
        {"head_dim": 12, "attention_bias": False, "num_key_value_heads": 6, "rope_parameters": YARN},
    ],
    "seed_oss": [
        {"head_dim": 10, "rms_norm_eps": 1e-3},
        {
            "head_dim": None,
            "attention_bias": False,
            "attention_out_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "num_key_value_heads": None,
            "rope_parameters": LINEAR,
        },
    ],
    "exaone4": [
        {"sliding_window": 4, "sliding_window_pattern": 2, "rms_norm_eps": 1e-2},
        {"sliding_window": None, "layer_types": ["full_attention"] * 3, "rope_parameters": YARN},
        {"layer_types": ["full_attention"] * 3, "tie_word_embeddings": True},
        {"sliding_window": 3, "layer_types": SLIDING[::-1], "num_key_value_heads": 1, "head_dim": 10},
    ],
    "ernie4_5": [
        {"head_dim": 10, "rms_norm_eps": 1e-3},
        {"head_dim": None, "use_bias": True, "tie_word_embeddings": False, "rope_parameters": YARN},
    ],
    "helium": [
        {"head_dim": 4, "rms_norm_eps": 1e-3},
        {
            "head_dim": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "num_key_value_heads": 6,
            "rope_parameters": LINEAR,
        },
    ],
    "gemma": [
        {"head_dim": 10, "rms_norm_eps": 1e-3},
        {"head_dim": 4, "hidden_act": "gelu", "attention_bias": True, "rope_parameters": YARN},
        {"head_dim": 4, "hidden_act": "gelu_python", "tie_word_embeddings": False, "num_key_value_heads": 1},
    ],
    "cohere": [
        {"logit_scale": 0.7, "layer_norm_eps": 1e-3},
        {
            "attention_bias": True,
            "tie_word_embeddings": False,
            "num_key_value_heads": None,
            "logit_scale": 1.0,
            "rope_parameters": YARN,
        },
    ],
    "cohere2": [
        {"logit_scale": 0.7, "sliding_window": 4, "sliding_window_pattern": 2},
        {
            "logit_scale": 1.5,
            "sliding_window": 3,
            "layer_types": SLIDING[::-1],
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": LINEAR,
        },
        {"logit_scale": 1.0, "layer_types": ["full_attention"] * 3, "layer_norm_eps": 1e-2},
    ],
    "arcee": [
        {"rms_norm_eps": 1e-3, "mlp_bias": True},
        {"attention_bias": True, "head_dim": 10, "tie_word_embeddings": True, "rope_parameters": YARN},
    ],
    "nemotron": [
        {"norm_eps": 1e-3},
        {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 8,
            "tie_word_embeddings": True,
            "rope_parameters": LINEAR | {"partial_rotary_factor": 0.25},
        },
    ],
    "opt": [
        {"ffn_dim": 37, "max_position_embeddings": 29},
        {"ffn_dim": 20, "enable_bias": False, "tie_word_embeddings": False},
    ],
    "mixtral": [
        {"num_local_experts": 4, "head_dim": 10, "sliding_window": 5, "rms_norm_eps": 1e-3},
        {
            "num_local_experts": 3,
            "num_experts_per_tok": 3,
            "num_key_value_heads": 6,
            "tie_word_embeddings": True,
            "rope_parameters": LINEAR,
        },
    ],
    "qwen2_moe": [
        QWEN_EXPERTS | {"shared_expert_intermediate_size": 17, "rms_norm_eps": 1e-3},
        QWEN_EXPERTS
        | {
            "shared_expert_intermediate_size": 9,
            "norm_topk_prob": True,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
        },
        QWEN_EXPERTS
        | {
            "num_experts_per_tok": 5,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": SLIDING[::-1],
            "rope_parameters": LINEAR,
        },
    ],
    "qwen3_moe": [
        QWEN_EXPERTS | {"norm_topk_prob": True, "head_dim": 10, "rms_norm_eps": 1e-2},
        QWEN_EXPERTS
        | {
            "num_experts_per_tok": 1,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 4,
            "tie_word_embeddings": True,
            "rope_parameters": YARN,
        },
    ],
}
CASE_KEYS = [(kind, n) for kind, changes in CASES.items() for n in range(len(changes))]


def choose_implementations(values):
    """Choose eager kernels; with ALiBi SDPA, because Falcon's eager attention adds its biases twice."""
    return {
        "attn_implementation": "sdpa" if values.get("alibi") else "eager",
        "experts_implementation": "eager",
    }


@contextmanager
def force_float64():
    """Replace float32 by float64 in `transformers`."""
    float32, default_dtype = torch.float32, torch.get_default_dtype()
    to_float = torch.Tensor.float
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32 = torch.float = float32
        torch.Tensor.float = to_float
        torch.set_default_dtype(default_dtype)


def make_hf_model(kind, values):
    """Make a `transformers` model whose parameters, gains and biases included, are random and large."""
    torch.manual_seed(5)
    with force_float64():
        model = (
            AutoModelForCausalLM.from_config(
                AutoConfig.for_model(kind, **deepcopy(values)),  # it writes into nested dicts
                **choose_implementations(values),
            )
            .double()
            .eval()
        )
        for parameter in model.parameters():
            parameter.data.add_(0.15 * torch.randn(parameter.shape))
    return model


def load_with_transformers(folder):
    config = json.loads((folder / "config.json").read_text())
    with force_float64():
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, **choose_implementations(config)
        ).eval()


def compute_hf_logits(model, tokens):
    with force_float64(), torch.no_grad():
        return model(tokens).logits


def assert_close_logits(actual, expected):
    assert expected.std() > 0.2  # small logits would agree trivially
    assert (actual - expected).abs().max() < 1e-10 * expected.abs().max()


CASE_PARAMS = [  # only the first case of each family is not rare
    pytest.param(case_key, marks=[pytest.mark.rare] if case_key[1] else []) for case_key in CASE_KEYS
]


@pytest.fixture(scope="module", params=CASE_PARAMS, ids=lambda case_key: f"{case_key[0]}-{case_key[1]}")
def case(request, tmp_path_factory):
    """A `transformers` model, and ours loaded from its folder."""
    kind, n = request.param
    folder = tmp_path_factory.mktemp(kind)
    model = make_hf_model(kind, SIZES | CASES[kind][n])
    model.save_pretrained(folder)
    config, ours = load_hf_model(folder)
    return SimpleNamespace(kind=kind, folder=folder, theirs=model, config=config, ours=ours)


TOKENS = torch.randint(0, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_logits_equal_transformers(case):
    assert_close_logits(case.ours(TOKENS), compute_hf_logits(case.theirs, TOKENS))


@torch.no_grad()
def test_costs_of_a_config_equal_the_live_model_and_cache(case):
    """Parameters of `transformers`, and the numbers in its cache after 13 tokens, by layer and tensor."""
    cost = load_hf_cost(case.folder)
    unread = 2 * case.config["dim"] if case.kind == "opt" else 0  # rows of OPT's positions
    assert cost.parameters + unread == sum(parameter.numel() for parameter in case.theirs.parameters())
    with force_float64():
        layers = case.theirs(TOKENS, use_cache=True).past_key_values.layers
    assert len(layers) == len(cost.layers)
    for layer, live in zip(cost.layers, layers, strict=True):
        n_cached = layer.count_cached_tokens(LENGTH) * cost.transformers_repeats
        live_numbers = [tensor.numel() / len(TOKENS) for tensor in (live.keys, live.values)]
        assert live_numbers == [width * n_cached for width in layer.cached_widths]


@pytest.mark.rare
def test_costs_of_a_config_equal_those_counted_in_the_built_model(case):
    """FLOPs by torch's count, parameters, cached tensors: all but how the latent cache is split."""
    counted = count_module_cost({"model": case.config}, VOCABULARY, torch.float64)
    assert merge_cached_widths(load_hf_cost(case.folder)) == merge_cached_widths(counted)


def merge_cached_widths(cost):
    """Costs with one cached tensor per layer: ours has one for the latent and its RoPE, theirs two."""
    layers = [
        replace(layer, cached_widths=sum(layer.cached_widths), read_widths=sum(layer.read_widths))
        for layer in cost.layers
    ]
    return replace(cost, layers=layers, transformers_repeats=1)


@pytest.mark.sampled(10)
@torch.no_grad()
def test_saved_model_loads_in_transformers_and_here(case, tmp_path):
    save_hf_model(tmp_path, case.ours, case.config, {case.kind: FAMILIES[case.kind]})
    assert_close_logits(
        compute_hf_logits(load_with_transformers(tmp_path), TOKENS), compute_hf_logits(case.theirs, TOKENS)
    )
    config, ours = load_hf_model(tmp_path)
    assert canonicalize_config(config) == canonicalize_config(case.config)
    assert_close_logits(ours(TOKENS), compute_hf_logits(case.theirs, TOKENS))


def test_greedy_tokens_equal_transformers_cached_and_uncached(case):
    prompt = TOKENS[:, :5]
    with force_float64():
        expected = case.theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
    assert expected.unique().numel() > 5
    for cache in (None, DynamicCache):
        assert torch.equal(Decoder(case.ours, cache).generate(prompt, 12), expected)
