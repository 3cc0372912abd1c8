"""Scores that depend on queries and keys, in plain loops over tokens and heads in float64."""

import math

import numpy as np
import pytest
import torch

from attnlab.attention.cache import DynamicCache, SlidingWindowCache, sliding_window_cache
from attnlab.attention.compressed_caches.evicting import TokenOmissionCache
from attnlab.attention.contracts import Unsupported
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.householder_positions import HouseholderPositions
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.flex import Flex
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data_masks import make_document_mask, make_padding_mask
from attnlab.attention.masks.window import window
from attnlab.attention.score_maps import ContextualPositions, KeyQueryConvolution
from attnlab.attention.stateful.forget_gate import ForgetGate
from attnlab.testing.invariants.variant import randomize

B, T, M, H, D = 2, 9, 20, 4, 5
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 5, [0] * 7 + [1] * 2])
LENGTHS = torch.tensor([6, 9])


def make_layer(score_map, n_kv_heads=H, masks=None, **options):
    heads = GroupedHeads(M, H, n_kv_heads, None, False, False)
    layer = Attention(
        heads,
        eager,
        masks or {"causal": causal},
        score_maps={"own": score_map} if score_map else None,
        **options,
    )
    return randomize(layer).double().eval()


def make_input():
    return torch.randn(B, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def to_array(tensor):
    return tensor.detach().numpy()


def project_qkv(layer, x):
    """q, k and v of one row, each [T][H], a KV head repeated over its group."""
    weight, G = to_array(layer.heads.qkv.weight), layer.heads.n_kv_heads
    projected = [weight @ token for token in to_array(x)]
    q = [np.split(row[: H * D], H) for row in projected]
    k = [np.split(row[H * D : (H + G) * D], G) for row in projected]
    v = [np.split(row[(H + G) * D :], G) for row in projected]
    return q, *([[part[t][h // (H // G)] for h in range(H)] for t in range(T)] for part in (k, v))


def attend(layer, is_visible, compute_score, x=None):
    """Outputs [B, T, M] of softmax weights over visible keys; zero heads for a query that sees none.

    `compute_score(q, k, visible, h, t, s)` reads vectors [T][H] of a row and `visible(t, s)`.
    """
    rows = []
    for n in range(B):
        q, k, v = project_qkv(layer, (make_input() if x is None else x)[n])
        tokens = []
        for t in range(T):
            heads = []
            for h in range(H):

                def visible(t, s, n=n):
                    return is_visible(n, t, s)

                keys = [s for s in range(T) if visible(t, s)]
                terms = [math.exp(compute_score(q, k, visible, h, t, s)) for s in keys]
                parts = [term / sum(terms) * v[s][h] for term, s in zip(terms, keys, strict=True)]
                heads.append(sum(parts, np.zeros(D)))
            tokens.append(to_array(layer.heads.out.weight) @ np.concatenate(heads))
        rows.append(tokens)
    return np.array(rows)


MASKS = {
    "causal": ({}, None, lambda n, t, s: s <= t),
    "window": ({"window": window(3)}, None, lambda n, t, s: t - 3 < s <= t),
    "documents": (
        {}, make_document_mask(DOCUMENTS), lambda n, t, s: s <= t and DOCUMENTS[n, s] == DOCUMENTS[n, t],
    ),
    "padding": ({}, make_padding_mask(LENGTHS), lambda n, t, s: s <= t and s < LENGTHS[n]),
}  # fmt: skip


def assert_output_equals(layer, name, compute_score):
    _, data_mask, is_visible = MASKS[name]
    expected = attend(layer, is_visible, compute_score)
    np.testing.assert_allclose(to_array(layer(make_input(), mask=data_mask)), expected, rtol=0, atol=1e-12)


def scale_product(q, k):
    return float(q @ k) / math.sqrt(D)


@pytest.mark.parametrize("groups", [1, 2, H])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("n_positions", [2, 3, 40])
def test_contextual_positions_count_gated_keys(name, groups, n_positions):
    layer = make_layer(ContextualPositions(n_positions, D), groups, {"causal": causal, **MASKS[name][0]})
    e = to_array(layer.score_map.embeddings)

    def compute_score(q, k, visible, h, t, s):
        position = 0.0
        for between in range(s, t + 1):
            if visible(t, between):
                position += 1 / (1 + math.exp(-scale_product(q[t][h], k[between][h])))
        position = min(position, n_positions - 1)
        low = math.floor(position)
        high, part = math.ceil(position), position - low
        embedding = part * e[high] + (1 - part) * e[low]
        return scale_product(q[t][h], k[s][h]) + scale_product(q[t][h], embedding)

    assert_output_equals(layer, name, compute_score)


def test_contextual_positions_start_as_plain_attention():
    layer = make_layer(ContextualPositions(4, D))
    torch.nn.init.zeros_(layer.score_map.embeddings)
    plain = make_layer(None)
    assert torch.equal(layer(make_input()), plain(make_input()))
    assert not ContextualPositions(4, D).embeddings.any()


@pytest.mark.parametrize("kernel", [sdpa, Flex()])
def test_fused_kernels_reject_a_score_map(kernel):
    layer = make_layer(ContextualPositions(4, D))
    with pytest.raises(Unsupported, match="no score map: use kernel=eager"), torch.no_grad():
        layer.attend(make_input(), kernel=kernel)


def test_forget_gate_beside_a_score_map_is_rejected():
    with pytest.raises(Unsupported, match="a score map does not support a forget gate"):
        make_layer(ContextualPositions(4, D), forgetting=ForgetGate(M, H))


@pytest.mark.parametrize(("n_positions", "width"), [(1, D), (4, 0)])
def test_contextual_positions_of_invalid_size_are_rejected(n_positions, width):
    with pytest.raises(ValueError, match="need n_positions >= 2 and width >= 1"):
        ContextualPositions(n_positions, width)


@pytest.mark.parametrize("groups", [1, H])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 5), (3, 1), (3, 5), (12, 19)])
def test_scores_are_convolved_over_queries_and_keys(name, groups, n_queries, n_keys):
    layer = make_layer(
        KeyQueryConvolution(H, n_queries, n_keys), groups, {"causal": causal, **MASKS[name][0]}
    )
    w = to_array(layer.score_map.weight)

    def compute_score(q, k, visible, h, t, s):
        total = 0.0
        for earlier in range(max(0, t - n_queries + 1), t + 1):
            for key in range(max(0, s - n_keys // 2), min(T - 1, s + n_keys // 2) + 1):
                if visible(t, key) and key <= earlier:
                    weight = w[h, t - earlier, key - s + n_keys // 2]
                    total += weight * scale_product(q[earlier][h], k[key][h])
        return total

    assert_output_equals(layer, name, compute_score)


@pytest.mark.parametrize("name", ["causal", "window", "documents"])
def test_earlier_queries_are_carried_through_a_cache(name):
    masks, data_mask, _ = MASKS[name]
    layer, x, cache = (
        make_layer(KeyQueryConvolution(H, 4, 3), 2, {"causal": causal, **masks}),
        make_input(),
        DynamicCache(),
    )
    chunks = [
        layer(x[:, chunk], mask=data_mask, cache=cache) for chunk in (slice(0, 2), slice(2, 3), slice(3, T))
    ]
    torch.testing.assert_close(torch.cat(chunks, 1), layer(x, mask=data_mask), rtol=0, atol=1e-12)
    assert cache.carried["queries"].shape == (B, 3, H * D)


def test_convolution_starts_as_the_identity():
    layer = make_layer(KeyQueryConvolution(H, 3, 5))
    layer.score_map.weight.data.copy_(KeyQueryConvolution(H, 3, 5).weight)
    torch.testing.assert_close(layer(make_input()), make_layer(None)(make_input()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(0, 3), (2, 4), (2, -1)])
def test_convolutions_of_invalid_size_are_rejected(n_queries, n_keys):
    with pytest.raises(ValueError, match="needs n_queries >= 1 and an odd n_keys >= 1"):
        KeyQueryConvolution(H, n_queries, n_keys)


def test_two_score_maps_are_rejected():
    maps = {"cope": ContextualPositions(4, D), "multi_token": KeyQueryConvolution(H, 2, 3)}
    with pytest.raises(Unsupported, match="a layer has one score map, got cope and multi_token"):
        Attention(GroupedHeads(M, H, H, None, False, False), eager, score_maps=maps)


def compute_reflections(path, x, earlier):
    """[token][group] of H = I - b w w^T; the convolution reads the tokens in `earlier[t]` before token t."""
    down, up, convolution = (to_array(part.weight) for part in (path.down, path.up, path.convolution))
    strength, bias = to_array(path.strength.weight), to_array(path.strength.bias)
    directions = [up @ (down @ token) for token in to_array(x)]
    reflections = []
    for t, token in enumerate(to_array(x)):
        direction = directions[t] + convolution[0] * directions[t]
        for distance in range(1, len(convolution)):
            if t - distance in earlier[t]:
                direction = direction + convolution[distance] * directions[t - distance]
        b = 2 / (1 + np.exp(-(strength @ token + bias)))
        groups = [part / math.sqrt(part @ part) for part in np.split(direction, len(b))]
        reflections.append([np.eye(D) - factor * np.outer(w, w) for factor, w in zip(b, groups, strict=True)])
    return reflections


@pytest.mark.parametrize(("groups", "n_kv_heads"), [(1, 1), (2, 2), (H, 2), (2, H)])
@pytest.mark.parametrize("name", MASKS)
def test_reflections_of_the_tokens_in_between_change_a_key(name, groups, n_kv_heads):
    path = HouseholderPositions(M, groups, D, rank=3)
    layer = make_layer(path, n_kv_heads, {"causal": causal, **MASKS[name][0]})
    _, data_mask, is_visible = MASKS[name]
    for n in range(B):
        x = make_input()[n]
        if name == "window":  # a design mask does not limit the tokens that reflect
            earlier = [range(t) for t in range(T)]
        else:
            earlier = [[s for s in range(t) if is_visible(n, t, s)] for t in range(T)]
        reflections = compute_reflections(path, x, earlier)

        def compute_score(q, k, visible, h, t, s, reflections=reflections):
            key = k[s][h]
            for between in range(s + 1, t + 1):
                key = reflections[between][h // (H // groups)] @ key
            return scale_product(q[t][h], key)

        expected = attend(layer, is_visible, compute_score)[n]
        actual = to_array(layer(make_input(), mask=data_mask))[n]
        real = [t for t in range(T) if is_visible(n, t, t)]
        np.testing.assert_allclose(actual[real], expected[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["causal", "window", "documents"])
def test_reflections_are_cached(name):
    masks, data_mask, _ = MASKS[name]
    layer = make_layer(HouseholderPositions(M, 2, D), 2, {"causal": causal, **masks})
    x, cache = make_input(), DynamicCache()
    chunks = [
        layer(x[:, chunk], mask=data_mask, cache=cache) for chunk in (slice(0, 2), slice(2, 3), slice(3, T))
    ]
    torch.testing.assert_close(torch.cat(chunks, 1), layer(x, mask=data_mask), rtol=0, atol=1e-12)
    assert cache.state[-1].shape == (B, 2, T, D + 1)
    assert cache.carried["directions"].shape == (B, 2, 2 * D)


def test_cache_that_drops_tokens_after_a_retained_one_is_rejected():
    layer = make_layer(HouseholderPositions(M, 2, D))
    layer(make_input()[:, :2], cache=SlidingWindowCache(3))
    for cache in (SlidingWindowCache(3, keep=1), TokenOmissionCache(4)):
        with pytest.raises(Unsupported, match="needs all tokens between a key and a query, and this cache"):
            layer(make_input()[:, :2], cache=cache)
    with pytest.raises(Unsupported, match="which this position needs: use decode=dynamic"):
        sliding_window_cache(make_layer(HouseholderPositions(M, 2, D), H, {"window": window(3, keep=1)}))


@pytest.mark.parametrize(
    "make_map", [ContextualPositions, lambda n, width: HouseholderPositions(M, n, width)]
)
def test_score_map_that_reads_a_part_of_a_head_is_rejected(make_map):
    with pytest.raises(ValueError, match="reads 4 features of queries that have 5: set width"):
        make_layer(make_map(2, D - 1))


def test_tokens_of_zero_strength_leave_plain_attention():
    layer = make_layer(HouseholderPositions(M, H, D))
    torch.nn.init.constant_(layer.score_map.strength.bias, -1e9)
    torch.testing.assert_close(layer(make_input()), make_layer(None)(make_input()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sizes", [(0, D, 3), (2, 0, 3), (2, D, 0)])
def test_reflections_of_invalid_size_are_rejected(sizes):
    with pytest.raises(ValueError, match="PaTH needs n_groups, width and rank of at least 1"):
        HouseholderPositions(M, *sizes)


@pytest.mark.parametrize(
    "score_map",
    [ContextualPositions(4, D), KeyQueryConvolution(H, 3, 5), HouseholderPositions(M, 2, D)],
)
def test_cache_continues_after_an_empty_chunk(score_map):
    layer, x, cache = make_layer(score_map), make_input(), DynamicCache()
    chunks = [layer(x[:, begin:end], cache=cache) for begin, end in ((0, 0), (0, 4), (4, 4), (4, T))]
    torch.testing.assert_close(torch.cat(chunks, 1), layer(x), rtol=0, atol=1e-12)
    assert layer(x[:0]).shape == (0, T, M)
