"""Keys that share features with other tokens, in plain loops over tokens and heads in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextAttention, Gemma4TextRotaryEmbedding

from attnlab.attention.cache import DynamicCache, SlidingWindowCache, StaticCache, count_bytes
from attnlab.attention.compressed_caches.evicting import HeavyHitterCache
from attnlab.attention.compressed_caches.quantized import QuantizedCache
from attnlab.attention.contracts import Unsupported
from attnlab.attention.heads.differential import DifferentialHeads
from attnlab.attention.heads.equal_kv import EqualKVHeads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.grouped_latent import GroupedLatentHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.heads.tensor_product import TensorProductHeads
from attnlab.attention.heads.tied import TiedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data_masks import make_document_mask
from attnlab.attention.masks.window import window
from attnlab.attention.rotary import Rope
from attnlab.testing.invariants.variant import randomize

T, M, H, D = 7, 13, 6, 8
WIDTH = 3  # of the convolution


def make_layer(heads, fraction=0.5, mask=causal):
    layer = Attention(heads, eager, {"mask": mask}, rotary=Rope(fraction=fraction))
    return randomize(layer).double().eval()


def make_input(rows=1):
    return torch.randn(rows, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def to_array(tensor):
    return tensor.detach().numpy()


def rotate(vector, position, fraction=0.5):
    """Rotate features f and f + R/2 by position * 10000^(-2f/R); the others stay."""
    width, out = round(len(vector) * fraction), vector.copy()
    for f in range(width // 2):
        angle = position * 10000.0 ** (-2 * f / width)
        a, b = vector[f], vector[f + width // 2]
        out[f] = a * math.cos(angle) - b * math.sin(angle)
        out[f + width // 2] = b * math.cos(angle) + a * math.sin(angle)
    return out


def normalize(vector, gain):
    return gain * vector / math.sqrt(vector @ vector / len(vector) + 1e-6)


def attend(q, k, v):
    """Output of one head, [T][D]."""
    out = []
    for t in range(len(q)):
        terms = [math.exp(q[t] @ k[s] / math.sqrt(D)) for s in range(t + 1)]
        out.append(sum(term * v[s] for s, term in enumerate(terms)) / sum(terms))
    return out


def project_output(module, by_head):
    """Project the outputs of heads [H][T]."""
    weight = to_array(module.heads.out.weight)
    return np.stack([weight @ np.concatenate([head[t] for head in by_head]) for t in range(len(by_head[0]))])


def convolve(convolution, rows):
    """Add to each row the weighted rows of the last tokens, its own included."""
    if convolution.weight is None:
        return rows
    taps = to_array(convolution.weight)
    return [row + sum(taps[j] * rows[t - j] for j in range(min(WIDTH, t + 1))) for t, row in enumerate(rows)]


def compute_offset_heads(module, x, fraction=0.5):
    """Output [T][M] of a layer whose keys have half of their features from the previous token."""
    heads, by_head = module.heads, []
    weight, G = to_array(heads.qkv.weight), heads.n_kv_heads
    rows = [weight @ token for token in x]
    keys_and_values = convolve(heads.convolution, [row[H * D :] for row in rows])
    for h in range(H):
        g = h // (H // G)
        queries = [row[h * D : (h + 1) * D] for row in rows]
        keys = [kv[g * D : (g + 1) * D] for kv in keys_and_values]
        values = [kv[(G + g) * D : (G + g + 1) * D] for kv in keys_and_values]
        if heads.q_norm is not None:
            queries = [normalize(query, to_array(heads.q_norm.weight)) for query in queries]
            keys = [normalize(key, to_array(heads.k_norm.weight)) for key in keys]
        keys = [np.concatenate((key[: D // 2], keys[max(t - 1, 0)][D // 2 :])) for t, key in enumerate(keys)]
        queries = [rotate(query, t, fraction) for t, query in enumerate(queries)]
        keys = [rotate(key, t, fraction) for t, key in enumerate(keys)]
        by_head.append(attend(queries, keys, values))
    return project_output(module, by_head)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"convolution": WIDTH}])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_half_of_each_key_comes_from_the_previous_token(groups, options, fraction):
    module = make_layer(GroupedHeads(M, H, groups, D, False, False, key_offset=True, **options), fraction)
    x = make_input()
    expected = compute_offset_heads(module, to_array(x)[0], fraction)
    np.testing.assert_allclose(to_array(module(x))[0], expected, rtol=0, atol=1e-12)
    plain = GroupedHeads(M, H, groups, D, False, False, **options).double()
    plain.load_state_dict(module.heads.state_dict())  # it has no parameters
    module.heads = plain
    assert not np.allclose(to_array(module(x))[0], expected)


@pytest.mark.parametrize("splits", [(T,), (1,) * T, (2, 1, 4), (0, 3, 4)])
def test_key_offset_crosses_cached_passes_but_no_document(splits):
    module = make_layer(GroupedHeads(M, H, 3, D, False, False, key_offset=True))
    x, lengths = make_input(rows=2), (3, T - 3)
    cache = DynamicCache()
    alone = torch.cat([module(part, cache=cache) for part in x.split(splits, dim=1)], dim=1)
    expected = np.stack([compute_offset_heads(module, row) for row in to_array(x)])
    np.testing.assert_allclose(to_array(alone), expected, rtol=0, atol=1e-12)
    assert cache.live_bytes() == 2 * (T * module.state_size() + module.carried_size())
    assert module.carried_size() == 3 * D // 2 * 8

    documents = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths)).expand(2, -1)
    packed = module(x, mask=make_document_mask(documents))
    parts = [
        np.stack([compute_offset_heads(module, row) for row in to_array(part)])
        for part in x.split(lengths, dim=1)
    ]
    np.testing.assert_allclose(to_array(packed), np.concatenate(parts, 1), rtol=0, atol=1e-12)


def test_other_heads_reject_a_key_offset():
    makers = {
        "tied_qkv": lambda: GroupedHeads(M, H, H, D, False, False, tied=True, key_offset=True),
        "mla": lambda: LatentHeads(M, H, 5, D, 4, False, False, key_offset=True),
        "gla": lambda: GroupedLatentHeads(M, H, 2, 5, D, 4, False, False, key_offset=True),
        "gta": lambda: TiedHeads(M, H, 2, D, 4, False, False, key_offset=True),
        "k_eq_v": lambda: EqualKVHeads(M, H, 2, D, False, False, key_offset=True),
        "tpa": lambda: TensorProductHeads(M, H, 2, 3, D, False, False, key_offset=True),
        "differential": lambda: DifferentialHeads(M, H, H, D, False, False, key_offset=True),
    }
    for name, make in makers.items():
        with pytest.raises(Unsupported, match=f"heads={name} .* shift.*: use keys=own"):
            make()


# --- one tensor as key and value ---


def compute_equal_kv_heads(module, x):
    """Output [T][M] of a layer whose values are its keys before RoPE."""
    heads, by_head = module.heads, []
    weight, G = to_array(heads.qkv.weight), heads.n_kv_heads
    rows = [weight @ token for token in x]
    shared = convolve(heads.convolution, [row[H * D :] for row in rows])
    for h in range(H):
        queries = [row[h * D : (h + 1) * D] for row in rows]
        keys = values = [row[h // (H // G) * D :][:D] for row in shared]
        if heads.q_norm is not None:
            queries = [normalize(query, to_array(heads.q_norm.weight)) for query in queries]
            keys = [normalize(key, to_array(heads.k_norm.weight)) for key in keys]
        queries = [rotate(query, t) for t, query in enumerate(queries)]
        by_head.append(attend(queries, [rotate(key, t) for t, key in enumerate(keys)], values))
    return project_output(module, by_head)


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"convolution": WIDTH}])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_values_are_the_keys_before_rotation(groups, options):
    module, x = make_layer(EqualKVHeads(M, H, groups, D, False, False, **options)), make_input()
    expected = compute_equal_kv_heads(module, to_array(x)[0])
    np.testing.assert_allclose(to_array(module(x))[0], expected, rtol=0, atol=1e-12)


CACHES = {
    "dynamic": DynamicCache,
    "static": lambda: StaticCache(T),
    "sliding": lambda: SlidingWindowCache(3, keep=1),
    "quantized": lambda: QuantizedCache(bits=16),
    "evicting": lambda: HeavyHitterCache(T),
}


@torch.no_grad()
@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("cache", CACHES)
def test_equal_keys_and_values_halve_every_cache(cache, first):
    x, mask = make_input(rows=2), window(3, keep=1) if cache == "sliding" else causal
    equal, grouped = (
        make_layer(kind(M, H, 3, D, False, False), mask=mask) for kind in (EqualKVHeads, GroupedHeads)
    )
    assert 2 * equal.state_size() == grouped.state_size()
    caches = [CACHES[cache](), CACHES[cache]()]
    parts = x.split((first, *(1,) * (T - first)), dim=1)
    stepwise = [
        torch.cat([module(part, cache=filled) for part in parts], dim=1)
        for module, filled in zip((equal, grouped), caches, strict=True)
    ]
    torch.testing.assert_close(stepwise[0], equal(x), rtol=0, atol=1e-13)
    cached_bytes = [count_bytes(filled.state) for filled in caches]
    assert 2 * cached_bytes[0] == cached_bytes[1] > 0


@pytest.mark.parametrize("heads", [EqualKVHeads, GroupedHeads])
def test_quantized_keys_are_rotated_at_their_positions(heads):
    module, x = make_layer(heads(M, H, 3, D, False, False)), make_input(rows=2)
    cache = QuantizedCache(bits=8, group=2)
    stepwise = torch.cat([module(part, cache=cache) for part in x.split(1, dim=1)], dim=1)
    error = (stepwise - module(x)).abs().max() / module(x).abs().max()
    assert 0 < error < 0.01


@torch.no_grad()
def test_equal_keys_and_values_equal_gemma_4_without_its_value_norm():
    config = Gemma4TextConfig(
        hidden_size=48, num_attention_heads=H, num_key_value_heads=H, num_global_key_value_heads=3,
        global_head_dim=16, num_hidden_layers=1, layer_types=["full_attention"], attention_k_eq_v=True,
        attn_implementation="eager",
    )  # fmt: skip
    theirs, x = Gemma4TextAttention(config, 0).eval(), torch.randn(2, T, 48)
    assert theirs.v_proj is None
    heads = EqualKVHeads(48, H, 3, 16, False, False, qk_norm=True, norm_eps=config.rms_norm_eps)
    ours = randomize(
        Attention(
            heads, eager, {"causal": causal}, rotary=Rope(1e6, 0.25, frequencies="head"), scale_exponent=0
        )
    ).eval()
    q, k = heads.qkv.weight.split(heads.qkv.widths)
    tensors = {"q_proj.weight": q, "k_proj.weight": k, "o_proj.weight": heads.out.weight}
    theirs.load_state_dict(
        tensors | {"q_norm.weight": heads.q_norm.weight, "k_norm.weight": heads.k_norm.weight}
    )
    cos_and_sin = Gemma4TextRotaryEmbedding(config)(x, torch.arange(T)[None], "full_attention")
    hidden = torch.full((T, T), -torch.inf).triu(1)[None, None]

    def run_theirs():
        return theirs(x, cos_and_sin, hidden, {})[0]

    normalized = run_theirs()
    theirs.v_norm = nn.Identity()
    torch.testing.assert_close(ours(x), run_theirs(), rtol=1e-5, atol=1e-5)
    assert (ours(x) - normalized).abs().max() > 0.01
