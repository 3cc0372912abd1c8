"""Compressed caches: equality with the plain cache without compression; sizes and evictions by hand."""

import numpy as np
import pytest
import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.compressed_caches.evicting import (
    HeavyHitterCache,
    ObservationWindowCache,
    TokenOmissionCache,
)
from attnlab.attention.compressed_caches.quantized import QuantizedCache, pack_tensor, unpack_tensor
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data_masks import non_padding
from attnlab.attention.rotary import Rope
from attnlab.testing.invariants.variant import randomize

T, M, H, G, D = 13, 12, 4, 2, 6
LOSSLESS = {
    "16 bits": lambda: QuantizedCache(16),
    "16 bits, by token": lambda: QuantizedCache(16, keys="token"),
    "all recent": lambda: QuantizedCache(4, recent=T),
    "heavy hitters": lambda: HeavyHitterCache(T),
    "observed": lambda: ObservationWindowCache(T),
    "token omission": lambda: TokenOmissionCache(T),
}
LOSSY = {
    "int8": lambda: QuantizedCache(8, group=4),
    "int4": lambda: QuantizedCache(4, keys="token"),
    "int2": lambda: QuantizedCache(2, group=3, recent=2),
    "heavy hitters": lambda: HeavyHitterCache(4),
    "observed": lambda: ObservationWindowCache(4, window=2, kernel=3),
    "token omission": lambda: TokenOmissionCache(4),
}


def make_layer(heads=None):
    heads = heads or GroupedHeads(M, H, G, D, False, False)
    return randomize(Attention(heads, eager, {"causal": causal}, rotary=Rope())).double().eval()


def make_input(rows=2):
    return torch.randn(rows, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def run_in_chunks(module, x, cache, parts, **context):
    out, begin = [], 0
    for part in parts:
        out.append(module(x[:, begin : begin + part], cache=cache, **context))
        begin += part
    return torch.cat(out, 1)


@pytest.mark.parametrize("heads", [None, lambda: LatentHeads(M, H, 5, 3, 4, False, False)])
@pytest.mark.parametrize("parts", [(T,), (5, 1, 3, 4), (1,) * T])
@pytest.mark.parametrize("cache", LOSSLESS)
def test_lossless_settings_equal_the_dynamic_cache(cache, parts, heads):
    module, layer_cache = make_layer(heads and heads()), LOSSLESS[cache]()
    output = run_in_chunks(module, make_input(), layer_cache, parts)
    torch.testing.assert_close(
        output, run_in_chunks(module, make_input(), DynamicCache(), parts), rtol=0, atol=1e-12
    )
    assert len(layer_cache) == T


@pytest.mark.parametrize("cache", LOSSY)
def test_lossy_cache_changes_later_tokens_and_saves_bytes(cache):
    module, lossy_cache, dynamic_cache = make_layer(), LOSSY[cache](), DynamicCache()
    output, expected = (
        run_in_chunks(module, make_input(), lossy_cache, (1,) * T),
        run_in_chunks(module, make_input(), dynamic_cache, (1,) * T),
    )
    torch.testing.assert_close(output[:, :2], expected[:, :2], rtol=0, atol=1e-1)
    assert (output[:, -1] - expected[:, -1]).abs().max() > 1e-6
    assert lossy_cache.live_bytes() < dynamic_cache.live_bytes()
    assert len(lossy_cache) == T


@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantization_error_is_at_most_half_a_step(bits, dim):
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    packed = pack_tensor(x, bits, dim)
    unpacked = unpack_tensor(packed, bits)
    step = (x.amax(dim, keepdim=True) - x.amin(dim, keepdim=True)) / (2**bits - 1)
    # scales and zero points have 16 bits
    rounding = 2e-3 * (2**bits - 1) * step + 2e-3 * x.abs().amax(dim, keepdim=True)
    assert ((unpacked - x).abs() <= step / 2 + rounding).all()
    assert packed.codes.shape[-1] == -(-7 * bits // 8)


def test_codes_round_to_the_nearest_of_sixteen_steps():
    x = torch.tensor([[0.0, 1.0, 2.4, 15.0, 7.6]], dtype=torch.float64)
    packed = pack_tensor(x, 4, -1)
    codes = [[byte & 15, byte >> 4] for byte in packed.codes[0].tolist()]
    assert np.concatenate(codes).tolist() == [0, 1, 2, 15, 8, 0]
    assert unpack_tensor(packed, 4)[0].tolist() == [0, 1, 2, 15, 8]


@pytest.mark.parametrize(("keys", "expected"), [("token", 3 + 3 + 4 + 4), ("channel", 3 + 3 + 6 + 4)])
def test_live_bytes_count_codes_scales_and_zero_points(keys, expected):
    """`expected` bytes per token and KV head of six features.

    A key and a value have three bytes of codes each, and four bytes of scale and zero point for each token's
    group; keys by channel have one scale and zero point for each of six channels and four tokens.
    """
    cache = QuantizedCache(4, keys=keys, group=4)
    make_layer()(make_input(1)[:, :12], cache=cache)
    assert cache.live_bytes() == 12 * G * expected


def compute_retained_tokens(weights, size, choose):
    """Tokens held after each query, [T]; `weights(t, tokens)` are those of the query over held tokens."""
    tokens, retained = [], []
    for t in range(T):
        tokens = [*tokens, t]
        ranks = choose(t, tokens, weights(t, tokens))
        while len(tokens) > size:
            evicted = min(range(len(tokens)), key=lambda n: (ranks[n], n))
            tokens.pop(evicted)
            ranks.pop(evicted)
        retained.append(list(tokens))
    return retained


@pytest.mark.parametrize("name", ["heavy hitters", "token omission"])
def test_evicted_tokens_match_the_paper(name):
    module, size, sums = make_layer(), 4, {}
    heads, x = module.heads, make_input(1)
    with torch.no_grad():
        q, (k, _) = heads.project(x, Rope()(torch.arange(T)[None]))

    def weights(t, tokens):
        rows = []
        for h in range(H):
            terms = [float((q[0, h, t] @ k[0, h // (H // G), s] * D**-0.5).exp()) for s in tokens]
            rows.append([term / sum(terms) for term in terms])
        return [sum(row[n] for row in rows) / H for n in range(len(tokens))]

    def accumulate(t, tokens, token_weights):
        for s, weight in zip(tokens, token_weights, strict=True):
            sums[s] = sums.get(s, 0.0) + weight
        return [1e9 + s if s > t - 2 else sums[s] for s in tokens]

    cache = HeavyHitterCache(size, recent=2) if name == "heavy hitters" else TokenOmissionCache(size)
    expected = compute_retained_tokens(
        weights,
        size,
        accumulate if name == "heavy hitters" else lambda t, tokens, token_weights: list(token_weights),
    )
    for t in range(T):
        module(x[:, t : t + 1], cache=cache)
        assert cache.positions[0].tolist() == expected[t], t


def test_padding_is_evicted_first():
    module, cache = make_layer(), TokenOmissionCache(3)
    positions = torch.tensor([[-2, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    module(make_input()[:, :5], positions=positions, mask=non_padding, cache=cache)
    assert cache.positions[0].tolist() == [0, 1, 2]
    assert (cache.positions[1] >= 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QuantizedCache(3), "2, 4, 8 or 16 bits"),
        (lambda: QuantizedCache(4, keys="row"), "keys=token or keys=channel"),
        (lambda: QuantizedCache(4, group=0), "group >= 1"),
        (lambda: HeavyHitterCache(0), "size >= 1"),
        (lambda: HeavyHitterCache(4, 5), "recent <= size"),
        (lambda: ObservationWindowCache(4, kernel=2), "odd kernel"),
    ],
)
def test_invalid_sizes_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()
