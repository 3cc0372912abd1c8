"""Kernels by themselves: the reference is the most exact one, and torch.compile may leave sizes open."""

import functools
import itertools

import pytest
import torch

from attnlab.attention.cache import DynamicCache, StaticCache
from attnlab.attention.contracts import AttentionInputs
from attnlab.attention.heads.differential import DifferentialHeads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.flex import Flex
from attnlab.attention.kernels.sdpa import sdpa
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.rotary import Rope
from attnlab.model.generation import Decoder, generate
from attnlab.model.transformer import Mlp, Transformer

# --- how exact the reference is ---

B, H, T, D = 2, 4, 48, 64
NEED = ("lse", "weights")
SETTINGS = pytest.mark.parametrize(
    ("dtype", "spread", "mask", "groups"),
    [*itertools.product((torch.bfloat16, torch.float16), (0.1, 1, 10, 100), (None, causal), (H, 2))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)


def drawn(dtype, spread, groups):
    """q, k and v; `spread` is the standard deviation of the first two."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, heads, T, D, generator=generator) for heads in (H, groups, groups))
    return (spread * q).to(dtype), (spread * k).to(dtype), v.to(dtype)


def inputs(q, k, v, mask, **changes):
    where = torch.arange(T)[None]
    q_pos, kv_pos = where[:, None, :, None], where[:, None, None, :]
    return AttentionInputs(q, k, v, q_pos, kv_pos, D**-0.5, mask, aligned=True)._replace(**changes)


def by_hand(q, k, v, mask):
    """Output, lse and weights of the same numbers, in float64."""
    q, k, v = (part.double() for part in (q, k, v))
    k, v = (part.repeat_interleave(H // part.shape[1], 1) for part in (k, v))
    score = torch.einsum("bhtd,bhsd->bhts", q, k) * D**-0.5
    if mask is not None:
        score = score.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf)
    weights = score.softmax(-1)
    return torch.einsum("bhts,bhsd->bhtd", weights, v), score.logsumexp(-1), weights


def error(found, wanted):
    """In the norm, relative: infinite where something is no number."""
    return ((found.double() - wanted).norm() / wanted.norm()).nan_to_num(torch.inf)


@SETTINGS
def test_the_reference_is_at_least_as_exact_as_the_fused_kernels(dtype, spread, mask, groups):
    """Both answers are rounded to this dtype, and what that costs is the least error there is; within 1 %,
    since where that is all, a sum in float32 may fall on the other side of a rounding now and then. Scores
    are about as large as the square of `spread`: what float32 loses of them all lose, now more, now less.
    """
    q, k, v = drawn(dtype, spread, groups)
    out, lse, weights = by_hand(q, k, v, mask)
    found, fused = eager(inputs(q, k, v, mask, need=NEED)), sdpa(inputs(q, k, v, mask))
    flexed = Flex()(inputs(q, k, v, mask, need=("lse",)))
    rows = torch.eye(T, dtype=dtype).expand(B, groups, T, T)  # as values, they show a kernel's weights
    shown, eps = sdpa(inputs(q, k, rows, mask)).out, torch.finfo(torch.float32).eps
    lost = eps / 8 * spread**2
    assert [part.dtype for part in found] == [dtype, torch.float32, torch.float32]
    assert error(found.out, out) <= 1.01 * min(error(fused.out, out), error(flexed.out, out)) + lost
    assert error(found.weights, weights) <= 1.01 * error(shown, weights) + lost
    assert error(found.lse, lse) <= max(error(flexed.lse, lse), 2 * eps)


@SETTINGS
def test_autocast_changes_nothing_in_the_reference(dtype, spread, mask, groups):
    q, k, v = drawn(dtype, spread, groups)
    for parts in ((q, k, v), (q.float(), k.float(), v), (q.float(), k.float(), v.float())):
        plain = eager(inputs(*parts, mask, need=NEED))
        with torch.autocast("cpu", torch.bfloat16):
            mixed = eager(inputs(*parts, mask, need=NEED))
        for found, wanted in zip(mixed, plain, strict=True):
            assert found.dtype == wanted.dtype
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [H, 2])
def test_the_reference_is_the_plain_formula_bit_for_bit_where_nothing_is_rounded(dtype, groups):
    q, k, v = drawn(dtype, 3, groups)
    keys, values = k.unsqueeze(2), v.unsqueeze(2)
    score = (q * D**-0.5).view(B, groups, H // groups, T, D) @ keys.transpose(-1, -2)
    hidden = torch.ones(T, T).triu(1) > 0
    weights = score.view(B, H, T, T).masked_fill(hidden, -torch.inf).softmax(-1)
    out = (weights.view(B, groups, H // groups, T, T) @ values).view(B, H, T, D)
    found = eager(inputs(q, k, v, causal, need=NEED))
    assert torch.equal(found.out, out)
    assert torch.equal(found.weights, weights)


def test_what_the_reference_is_trained_through_is_finite_in_half_precision():
    q, k, v = (part.requires_grad_() for part in drawn(torch.float16, 100, 2))
    eager(inputs(q, k, v, causal, scale=1.0)).out.sum().backward()
    assert all(part.grad.dtype == torch.float16 and part.grad.isfinite().all() for part in (q, k, v))


# --- sizes that torch.compile leaves open ---

HEADS = {
    "mha": lambda dim, n: GroupedHeads(dim, n, n, None, False, False),
    "gqa": lambda dim, n: GroupedHeads(dim, n, n // 2, None, False, False),
    "mqa": lambda dim, n: GroupedHeads(dim, n, 1, None, False, False),
    "single": lambda dim, n: GroupedHeads(dim, 1, 1, None, False, False),
    "tied": lambda dim, n: GroupedHeads(dim, n, n, None, False, False, tied=True),
    "latent": lambda dim, n: LatentHeads(dim, n, 5, 4, 2, False, False),
    "differential": lambda dim, n: DifferentialHeads(dim, n, n, None, False, False),
}
SIZES = ((16, 4, 2, 5), (24, 6, 3, 7))  # width, heads, rows, tokens: none the same, so that all are left open


@pytest.fixture
def traced(monkeypatch):
    """torch.compile's own tracing into one graph, from a fresh start and without a C++ compiler."""
    whole = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, **_: whole(function))
    torch._dynamo.reset()
    yield whole
    torch._dynamo.reset()


def model(heads, dim, n):
    def mixer(layer):
        return Attention(HEADS[heads](dim, n), sdpa, {"causal": causal}, rotary=Rope())

    return Transformer(
        mixer, vocab_size=19, dim=dim, n_layers=1, ffn_width=20, ffn=Mlp, norm=torch.nn.LayerNorm, bias=False,
        tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0,
    )  # fmt: skip


def texts(rows, tokens):
    return torch.randint(0, 19, (rows, tokens), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mask", [None, causal])
def test_sdpa_is_one_graph_whatever_the_sizes(mask, traced):
    def call(q, k, v):
        T, S = q.shape[2], k.shape[2]
        q_pos, kv_pos = torch.arange(S - T, S)[None, None, :, None], torch.arange(S)[None, None, None]
        return sdpa(AttentionInputs(q, k, v, q_pos, kv_pos, 0.3, mask, aligned=True)).out

    compiled = traced(call, dynamic=True)
    for rows, heads, groups, new, length in (
        (2, 4, 4, 5, 5),
        (3, 6, 6, 7, 7),
        (3, 6, 2, 7, 7),
        (2, 4, 2, 3, 9),
        (3, 6, 6, 1, 9),
        (2, 4, 2, 1, 8),
    ):
        q, k, v = (torch.randn(rows, n, t, 8) for n, t in ((heads, new), (groups, length), (groups, length)))
        torch.testing.assert_close(compiled(q, k, v), call(q, k, v))


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
def test_compiled_models_of_other_sizes_generate_one_after_another(order, traced):
    for heads, (dim, n, rows, tokens) in zip([*HEADS][::order], itertools.cycle(SIZES), strict=False):
        built, prompts = model(heads, dim, n).eval(), texts(rows, tokens)
        found = Decoder(built, functools.partial(StaticCache, 12), compile=True).generate(prompts, 3)
        assert torch.equal(found, generate(built, prompts, 3, DynamicCache))


@pytest.mark.rare
@pytest.mark.parametrize("heads", ["gqa", "tied", "latent"])
def test_a_compiled_model_trains_on_any_length(heads, traced):
    for dim, n, rows, tokens in SIZES:
        built = model(heads, dim, n)
        compiled = traced(built)
        for length in (tokens, tokens + 4):
            found, wanted = compiled(texts(rows, length)), built(texts(rows, length))
            torch.testing.assert_close(found, wanted)
            found.sum().backward()
