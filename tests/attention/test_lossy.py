"""Caches that lose something: at full precision and full budget they are the plain cache; what they hold,
and what they let go of, by hand.
"""

import numpy as np
import pytest
import torch

from attnlab.attention.cache import DynamicCache
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.lossy.evicting import HeavyHitters, Observed, TokenOmission
from attnlab.attention.lossy.quantised import QuantisedCache, pack, unpack
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.data import real
from attnlab.attention.rotary import Rope
from attnlab.testing.laws.variant import randomised

T, M, H, G, D = 13, 12, 4, 2, 6
WHOLE = {
    "16 bits": lambda: QuantisedCache(16),
    "16 bits, by token": lambda: QuantisedCache(16, keys="token"),
    "all recent": lambda: QuantisedCache(4, recent=T),
    "heavy hitters": lambda: HeavyHitters(T),
    "observed": lambda: Observed(T),
    "token omission": lambda: TokenOmission(T),
}
LOSSY = {
    "int8": lambda: QuantisedCache(8, group=4),
    "int4": lambda: QuantisedCache(4, keys="token"),
    "int2": lambda: QuantisedCache(2, group=3, recent=2),
    "heavy hitters": lambda: HeavyHitters(4),
    "observed": lambda: Observed(4, window=2, kernel=3),
    "token omission": lambda: TokenOmission(4),
}


def layer(heads=None):
    heads = heads or GroupedHeads(M, H, G, D, False, False)
    return randomised(Attention(heads, eager, {"causal": causal}, rotary=Rope())).double().eval()


def given(rows=2):
    return torch.randn(rows, T, M, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def fed(module, x, cache, parts, **context):
    out, begin = [], 0
    for part in parts:
        out.append(module(x[:, begin : begin + part], cache=cache, **context))
        begin += part
    return torch.cat(out, 1)


@pytest.mark.parametrize("heads", [None, lambda: LatentHeads(M, H, 5, 3, 4, False, False)])
@pytest.mark.parametrize("parts", [(T,), (5, 1, 3, 4), (1,) * T])
@pytest.mark.parametrize("cache", WHOLE)
def test_with_nothing_to_lose_it_is_the_plain_cache(cache, parts, heads):
    module, own = layer(heads and heads()), WHOLE[cache]()
    got = fed(module, given(), own, parts)
    torch.testing.assert_close(got, fed(module, given(), DynamicCache(), parts), rtol=0, atol=1e-12)
    assert len(own) == T


@pytest.mark.parametrize("cache", LOSSY)
def test_what_is_lost_changes_later_tokens_and_saves_bytes(cache):
    module, own, plain = layer(), LOSSY[cache](), DynamicCache()
    got, whole = fed(module, given(), own, (1,) * T), fed(module, given(), plain, (1,) * T)
    torch.testing.assert_close(got[:, :2], whole[:, :2], rtol=0, atol=1e-1)
    assert (got[:, -1] - whole[:, -1]).abs().max() > 1e-6
    assert own.live_bytes() < plain.live_bytes()
    assert len(own) == T


@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_number_is_off_by_half_a_step_of_its_group_at_most(bits, dim):
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    packed = pack(x, bits, dim)
    got = unpack(packed, bits)
    step = (x.amax(dim, keepdim=True) - x.amin(dim, keepdim=True)) / (2**bits - 1)
    rounded = 2e-3 * (2**bits - 1) * step + 2e-3 * x.abs().amax(
        dim, keepdim=True
    )  # scales and zeros in 16 bits
    assert ((got - x).abs() <= step / 2 + rounded).all()
    assert packed.codes.shape[-1] == -(-7 * bits // 8)


def test_codes_are_those_of_rounding_to_the_nearest_of_sixteen_steps():
    x = torch.tensor([[0.0, 1.0, 2.4, 15.0, 7.6]], dtype=torch.float64)
    packed = pack(x, 4, -1)
    codes = [[byte & 15, byte >> 4] for byte in packed.codes[0].tolist()]
    assert np.concatenate(codes).tolist() == [0, 1, 2, 15, 8, 0]
    assert unpack(packed, 4)[0].tolist() == [0, 1, 2, 15, 8]


@pytest.mark.parametrize(("keys", "expected"), [("token", 3 + 3 + 4 + 4), ("channel", 3 + 3 + 6 + 4)])
def test_bytes_are_codes_scales_and_zeros(keys, expected):
    """Per token and KV head of six features: three bytes of codes for a key and for a value, four bytes of
    scale and zero for each token's group; keys by channel have one for each of six channels and four
    tokens.
    """
    cache = QuantisedCache(4, keys=keys, group=4)
    layer()(given(1)[:, :12], cache=cache)
    assert cache.live_bytes() == 12 * G * expected


def by_hand(weights, size, choose):
    """Which tokens are held after each query, [T]; `weights(t, held)` are of the query over held tokens."""
    held, kept = [], []
    for t in range(T):
        held = [*held, t]
        worth = choose(t, held, weights(t, held))
        while len(held) > size:
            out = min(range(len(held)), key=lambda n: (worth[n], n))
            held.pop(out)
            worth.pop(out)
        kept.append(list(held))
    return kept


@pytest.mark.parametrize("name", ["heavy hitters", "token omission"])
def test_what_is_let_go_of_is_what_the_paper_says(name):
    module, size, sums = layer(), 4, {}
    heads, x = module.heads, given(1)
    with torch.no_grad():
        q, (k, _) = heads.project(x, Rope()(torch.arange(T)[None]))

    def weights(t, held):
        rows = []
        for h in range(H):
            terms = [float((q[0, h, t] @ k[0, h // (H // G), s] * D**-0.5).exp()) for s in held]
            rows.append([term / sum(terms) for term in terms])
        return [sum(row[n] for row in rows) / H for n in range(len(held))]

    def heavy(t, held, given):
        for s, weight in zip(held, given, strict=True):
            sums[s] = sums.get(s, 0.0) + weight
        return [1e9 + s if s > t - 2 else sums[s] for s in held]

    cache = HeavyHitters(size, recent=2) if name == "heavy hitters" else TokenOmission(size)
    expected = by_hand(
        weights, size, heavy if name == "heavy hitters" else lambda t, held, given: list(given)
    )
    for t in range(T):
        module(x[:, t : t + 1], cache=cache)
        assert cache.positions[0].tolist() == expected[t], t


def test_padding_is_let_go_of_first():
    module, cache = layer(), TokenOmission(3)
    positions = torch.tensor([[-2, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    module(given()[:, :5], positions=positions, mask=real, cache=cache)
    assert cache.positions[0].tolist() == [0, 1, 2]
    assert (cache.positions[1] >= 0).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: QuantisedCache(3), "2, 4, 8 or 16 bits"),
        (lambda: QuantisedCache(4, keys="row"), "per token or channel"),
        (lambda: QuantisedCache(4, group=0), "group >= 1"),
        (lambda: HeavyHitters(0), "size >= 1"),
        (lambda: HeavyHitters(4, 5), "recent <= size"),
        (lambda: Observed(4, kernel=2), "odd kernel"),
    ],
)
def test_sizes_that_are_none_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
