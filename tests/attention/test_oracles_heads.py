"""Heads of papers, in plain loops over tokens and heads in float64, against the layer."""

import math

import numpy as np
import pytest
import torch

from attnlab.attention.heads.grouped_latent import GroupedLatentHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.heads.tensor_product import TensorProductHeads
from attnlab.attention.heads.tied import TiedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.rotary import Rope
from attnlab.testing.invariants.variant import randomize

T, M, H = 6, 13, 6
D, R, RANK = 6, 4, 5


def make_layer(heads):
    return randomize(Attention(heads, eager, {"causal": causal}, rotary=Rope())).double().eval()


def make_input():
    return torch.randn(1, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def to_array(tensor):
    return tensor.detach().numpy()


def rotate(vector, position):
    """Rotate features f and f + R/2 by position * 10000^(-2f/R)."""
    half, out = len(vector) // 2, vector.copy()
    for f in range(half):
        angle = position * 10000.0 ** (-2 * f / len(vector))
        a, b = vector[f], vector[f + half]
        out[f], out[f + half] = (
            a * math.cos(angle) - b * math.sin(angle),
            b * math.cos(angle) + a * math.sin(angle),
        )
    return out


def attend(q, k, v, width):
    """Output of one head, [T][D]."""
    out = []
    for t in range(T):
        terms = [math.exp(q[t] @ k[s] / math.sqrt(width)) for s in range(t + 1)]
        out.append(sum(term * v[s] for s, term in enumerate(terms)) / sum(terms))
    return out


def assert_output_equals(module, by_head):
    """Compare the module's output with `by_head` [H][T]."""
    weight = to_array(module.heads.out.weight)
    rows = np.stack([weight @ np.concatenate([head[t] for head in by_head]) for t in range(T)])
    np.testing.assert_allclose(to_array(module(make_input()))[0], rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_tied_heads_use_most_of_the_value_as_key(groups):
    module, x = make_layer(TiedHeads(M, H, groups, D, R, False, False)), to_array(make_input())[0]
    weight, by_head = to_array(module.heads.qkv.weight), []
    rows = [weight @ token for token in x]
    shared = [rotate(row[H * D + groups * D :], t) for t, row in enumerate(rows)]
    for h in range(H):
        values = [row[H * D + (h // (H // groups)) * D :][:D] for row in rows]
        keys = [np.concatenate((value[: D - R], turn)) for value, turn in zip(values, shared, strict=True)]
        queries = [row[h * D : (h + 1) * D] for row in rows]
        queries = [np.concatenate((q[: D - R], rotate(q[D - R :], t))) for t, q in enumerate(queries)]
        by_head.append(attend(queries, keys, values, D))
    assert_output_equals(module, by_head)


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_latent_is_read_only_by_its_own_heads(groups, absorbed):
    heads = GroupedLatentHeads(M, H, groups, RANK, D, R, False, False, absorbed=absorbed)
    module, x = make_layer(heads), to_array(make_input())[0]
    weight, gain = to_array(module.heads.down.weight), to_array(module.heads.norm.weight)
    up_k, up_v = np.split(to_array(module.heads.up.weight), 2)
    wide, by_head = H * (D + R), []
    rows = [weight @ token for token in x]
    shared = [rotate(row[wide + groups * RANK :], t) for t, row in enumerate(rows)]
    eps = 1e-6
    for h in range(H):
        latents = [row[wide + (h // (H // groups)) * RANK :][:RANK] for row in rows]
        latents = [gain * latent / math.sqrt((latent @ latent) / RANK + eps) for latent in latents]
        keys = [up_k[h * D : (h + 1) * D] @ latent for latent in latents]
        keys = [np.concatenate((key, turn)) for key, turn in zip(keys, shared, strict=True)]
        values = [up_v[h * D : (h + 1) * D] @ latent for latent in latents]
        queries = [row[h * (D + R) : (h + 1) * (D + R)] for row in rows]
        queries = [np.concatenate((q[:D], rotate(q[D:], t))) for t, q in enumerate(queries)]
        by_head.append(attend(queries, keys, values, D + R))
    assert_output_equals(module, by_head)


def test_one_latent_for_all_is_multi_head_latent_attention():
    one = make_layer(GroupedLatentHeads(M, H, 1, RANK, D, R, False, False))
    other = make_layer(LatentHeads(M, H, RANK, D, R, False, False))
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(make_input()), other(make_input()), rtol=0, atol=1e-13)
    assert one.state_size() == other.state_size()


@pytest.mark.parametrize(("rank", "q_rank"), [(3, 2), (1, 1)])
def test_tensor_product_heads_average_outer_products(rank, q_rank):
    module, x = make_layer(TensorProductHeads(M, H, rank, q_rank, D, False, False)), to_array(make_input())[0]
    rows = [to_array(module.heads.factors.weight) @ token for token in x]
    sizes = [q_rank * H, q_rank * D, rank * H, rank * D, rank * H, rank * D]
    starts = np.cumsum([0, *sizes])
    by_head = []

    def expand_factors(row, first, terms, h, t=None):
        total = np.zeros(D)
        for r in range(terms):
            share = row[starts[first] + r * H + h]
            features = row[starts[first + 1] + r * D :][:D]
            total += share * (features if t is None else rotate(features, t)) / terms
        return total

    for h in range(H):
        queries = [expand_factors(row, 0, q_rank, h, t) for t, row in enumerate(rows)]
        keys = [expand_factors(row, 2, rank, h, t) for t, row in enumerate(rows)]
        values = [expand_factors(row, 4, rank, h) for row in rows]
        by_head.append(attend(queries, keys, values, D))
    assert_output_equals(module, by_head)


def test_tensor_product_heads_cache_their_factors():
    assert TensorProductHeads(64, 4, 2, 6, None, False, False).state_size() == 2 * 2 * (4 + 16) * 4


@pytest.mark.parametrize("ranks", [(0, 6), (2, 0)])
def test_tensor_product_heads_reject_zero_ranks(ranks):
    with pytest.raises(ValueError, match="rank and q_rank >= 1"):
        TensorProductHeads(64, 4, *ranks, None, False, False)


def test_tied_heads_cache_half_of_grouped_heads_and_rotated_features():
    heads = TiedHeads(64, 8, 4, None, None, False, False)
    assert heads.state_size() == (4 * 8 + 4) * 4
