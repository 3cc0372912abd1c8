"""Kernels by themselves: the reference is the most accurate one, and torch.compile may leave sizes open."""

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
from attnlab.attention.kernels.sdpa import _attend_by_products, sdpa
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.rotary import Rope
from attnlab.model.generation import Decoder, generate
from attnlab.model.transformer import Mlp, Transformer

# --- accuracy of the reference ---

B, H, T, D = 2, 4, 48, 64
NEED = ("lse", "weights")
SETTINGS = pytest.mark.parametrize(
    ("dtype", "spread", "mask", "groups"),
    [*itertools.product((torch.bfloat16, torch.float16), (0.1, 1, 10, 100), (None, causal), (H, 2))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)


def draw_qkv(dtype, spread, groups):
    """Draw q, k and v; `spread` is the standard deviation of the first two."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, heads, T, D, generator=generator) for heads in (H, groups, groups))
    return (spread * q).to(dtype), (spread * k).to(dtype), v.to(dtype)


def make_inputs(q, k, v, mask, **changes):
    positions = torch.arange(T)[None]
    q_idx, kv_idx = positions[:, None, :, None], positions[:, None, None, :]
    return AttentionInputs(q, k, v, q_idx, kv_idx, D**-0.5, mask, aligned=True)._replace(**changes)


def compute_reference(q, k, v, mask):
    """Output, lse and weights of the same numbers, in float64."""
    q, k, v = (part.double() for part in (q, k, v))
    k, v = (part.repeat_interleave(H // part.shape[1], 1) for part in (k, v))
    score = torch.einsum("bhtd,bhsd->bhts", q, k) * D**-0.5
    if mask is not None:
        score = score.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf)
    weights = score.softmax(-1)
    return torch.einsum("bhts,bhsd->bhtd", weights, v), score.logsumexp(-1), weights


def relative_error(result, expected):
    """Relative error in the norm, infinite for NaN."""
    return ((result.double() - expected).norm() / expected.norm()).nan_to_num(torch.inf)


@SETTINGS
def test_eager_is_at_least_as_accurate_as_fused_kernels(dtype, spread, mask, groups):
    """Eager is at most 1% less accurate than the best fused kernel.

    Both outputs are rounded to this dtype, which costs the least possible error; 1% is allowed because a sum
    in float32 may fall on the other side of a rounding now and then. Scores are about as large as the square
    of `spread`: their float32 rounding affects all kernels, some more, some less.
    """
    q, k, v = draw_qkv(dtype, spread, groups)
    out, lse, weights = compute_reference(q, k, v, mask)
    eager_output, sdpa_output = eager(make_inputs(q, k, v, mask, need=NEED)), sdpa(make_inputs(q, k, v, mask))
    flex_output = Flex()(make_inputs(q, k, v, mask, need=("lse",)))
    identity = torch.eye(T, dtype=dtype).expand(B, groups, T, T)  # as values, these return a kernel's weights
    sdpa_weights, eps = sdpa(make_inputs(q, k, identity, mask)).out, torch.finfo(torch.float32).eps
    tolerance = eps / 8 * spread**2
    assert [part.dtype for part in eager_output] == [dtype, torch.float32, torch.float32]
    assert (
        relative_error(eager_output.out, out)
        <= 1.01 * min(relative_error(sdpa_output.out, out), relative_error(flex_output.out, out)) + tolerance
    )
    assert (
        relative_error(eager_output.weights, weights)
        <= 1.01 * relative_error(sdpa_weights, weights) + tolerance
    )
    assert relative_error(eager_output.lse, lse) <= max(relative_error(flex_output.lse, lse), 2 * eps)


@SETTINGS
def test_autocast_does_not_change_eager(dtype, spread, mask, groups):
    q, k, v = draw_qkv(dtype, spread, groups)
    for parts in ((q, k, v), (q.float(), k.float(), v), (q.float(), k.float(), v.float())):
        plain = eager(make_inputs(*parts, mask, need=NEED))
        with torch.autocast("cpu", torch.bfloat16):
            mixed = eager(make_inputs(*parts, mask, need=NEED))
        for result, expected in zip(mixed, plain, strict=True):
            assert result.dtype == expected.dtype
            assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [H, 2])
def test_eager_equals_plain_formula_bitwise_in_full_precision(dtype, groups):
    q, k, v = draw_qkv(dtype, 3, groups)
    keys, values = k.unsqueeze(2), v.unsqueeze(2)
    score = (q * D**-0.5).view(B, groups, H // groups, T, D) @ keys.transpose(-1, -2)
    hidden = torch.ones(T, T).triu(1) > 0
    weights = score.view(B, H, T, T).masked_fill(hidden, -torch.inf).softmax(-1)
    out = (weights.view(B, groups, H // groups, T, T) @ values).view(B, H, T, D)
    eager_output = eager(make_inputs(q, k, v, causal, need=NEED))
    assert torch.equal(eager_output.out, out)
    assert torch.equal(eager_output.weights, weights)


def test_eager_gradients_are_finite_in_half_precision():
    q, k, v = (part.requires_grad_() for part in draw_qkv(torch.float16, 100, 2))
    eager(make_inputs(q, k, v, causal, scale=1.0)).out.sum().backward()
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
SIZES = (
    (16, 4, 2, 5),
    (24, 6, 3, 7),
)  # dim, heads, rows, tokens: all different, so that all sizes are left open


@pytest.fixture
def compile_whole_graph(monkeypatch):
    """Make torch.compile trace into one graph, from a fresh start and without a C++ compiler."""
    compile_fullgraph = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, **_: compile_fullgraph(function))
    torch._dynamo.reset()
    yield compile_fullgraph
    torch._dynamo.reset()


def make_model(heads, dim, n):
    def mixer(layer):
        return Attention(HEADS[heads](dim, n), sdpa, {"causal": causal}, rotary=Rope())

    return Transformer(
        mixer, vocab_size=19, dim=dim, n_layers=1, ffn_width=20, ffn=Mlp, norm=torch.nn.LayerNorm, bias=False,
        tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0,
    )  # fmt: skip


def draw_tokens(rows, tokens):
    return torch.randint(0, 19, (rows, tokens), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mask", [None, causal])
def test_sdpa_compiles_to_one_graph_for_all_sizes(mask, compile_whole_graph):
    def call(q, k, v):
        T, S = q.shape[2], k.shape[2]
        q_idx, kv_idx = torch.arange(S - T, S)[None, None, :, None], torch.arange(S)[None, None, None]
        return sdpa(AttentionInputs(q, k, v, q_idx, kv_idx, 0.3, mask, aligned=True)).out

    compiled = compile_whole_graph(call, dynamic=True)
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
def test_compiled_models_of_different_sizes_generate_in_sequence(order, compile_whole_graph):
    for heads, (dim, n, rows, tokens) in zip([*HEADS][::order], itertools.cycle(SIZES), strict=False):
        model, prompts = make_model(heads, dim, n).eval(), draw_tokens(rows, tokens)
        generated = Decoder(model, functools.partial(StaticCache, 12), compile=True).generate(prompts, 3)
        assert torch.equal(generated, generate(model, prompts, 3, DynamicCache))


@pytest.mark.rare
@pytest.mark.parametrize("heads", ["gqa", "tied", "latent"])
def test_compiled_model_trains_on_any_length(heads, compile_whole_graph):
    for dim, n, rows, tokens in SIZES:
        model = make_model(heads, dim, n)
        compiled = compile_whole_graph(model)
        for length in (tokens, tokens + 4):
            logits, expected = compiled(draw_tokens(rows, length)), model(draw_tokens(rows, length))
            torch.testing.assert_close(logits, expected)
            logits.sum().backward()


@pytest.mark.parametrize("bias_kind", ["none", "boolean", "additive"])
def test_products_for_one_query_agree_with_torch(bias_kind):
    """A GPU takes these products for one token over grouped heads; they run on a CPU only here."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=generator, dtype=torch.float64) for n in (4, 7, 7))
    bias = {
        "none": None,
        "boolean": torch.arange(7).expand(2, 3, 4, 7) < 5,
        "additive": torch.randn(2, 3, 4, 7, generator=generator, dtype=torch.float64),
    }[bias_kind]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.3)
    torch.testing.assert_close(_attend_by_products(q, k, v, 0.3, bias), expected, atol=1e-6, rtol=0)


def test_sdpa_passes_one_mask_for_all_rows_and_heads(monkeypatch):
    """torch converts a Boolean mask to numbers, for each row and head of an expanded mask."""
    shapes = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def record_mask(*args, attn_mask=None, **kwargs):
        if attn_mask is not None:
            shapes.append(tuple(attn_mask.shape))
        return fused(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record_mask)
    model = make_model("gqa", 16, 4)
    tokens = draw_tokens(2, 12)
    expected = model(tokens)
    caches = [DynamicCache() for _ in model.blocks]
    logits = torch.cat([model(tokens[:, part], caches=caches) for part in (slice(5), slice(5, 12))], 1)
    torch.testing.assert_close(logits, expected)
    assert {shape[:2] for shape in shapes} == {(1, 1)}
