"""Costs of attention printed by the gollm chapter on self-attention, counted by this code.

Comments note its errors. docs/bibliography.md lists the chapter by its title.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import AttentionOutput
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.model.transformer import LearnedPositions, Mlp, Transformer

KIB, MIB = 2**10, 2**20


def make_mha(dim=768, n_heads=12, n_kv_heads=12, head_dim=None, dtype=torch.float32):
    """Heads on the meta device, without memory behind them."""
    with torch.device("meta"):
        return GroupedHeads(dim, n_heads, n_kv_heads, head_dim, bias=False, out_bias=False).to(dtype)


@pytest.mark.parametrize(
    ("n_kv_heads", "dtype", "layers", "want"),
    [
        (12, torch.float32, 1, 12 * MIB),
        (12, torch.float16, 1, 6 * MIB),  # printed ~3 MB
        (12, torch.float32, 12, 144 * MIB),  # printed 36 MB for 12 layers
        (12, torch.float16, 12, 72 * MIB),  # printed 36 MB for 12 layers
        (4, torch.float32, 1, 4_194_304),  # printed as the whole cache: it is one layer
        (4, torch.float32, 12, 48 * MIB),
        (4, torch.float16, 12, 24 * MIB),
    ],
)
def test_gollm_chapter_cache_bytes_of_2048_tokens(n_kv_heads, dtype, layers, want):
    assert layers * 2048 * make_mha(n_kv_heads=n_kv_heads, dtype=dtype).state_size() == want


def test_gollm_chapter_correct_counts():
    assert 2048 * make_mha().state_size() // 4 == 3_145_728  # floats per layer
    grouped = make_mha(n_kv_heads=4)
    assert grouped.qkv.parts == {"q": 768, "k": 256, "v": 256}
    assert round(100 * (1 - grouped.state_size() / make_mha().state_size())) == 67


@pytest.mark.parametrize("n_heads", [1, 2, 3, 12, 768])
def test_gollm_chapter_more_heads_are_not_more_parameters(n_heads):
    assert sum(p.numel() for p in make_mha(n_heads=n_heads, n_kv_heads=n_heads).parameters()) == 4 * 768**2


def count_work(tokens, cached):
    """Count (projected keys and values, query-key products) of generation in a running layer."""
    n_projected, products = [], []

    def counting_kernel(inputs):
        products.append(inputs.q.shape[2] * inputs.k.shape[2])
        return AttentionOutput(inputs.q)

    with torch.device("meta"):
        layer = Attention(
            GroupedHeads(2, 1, 1, None, bias=False, out_bias=False), counting_kernel, {"causal": causal}
        )
    layer.heads.qkv.register_forward_hook(
        lambda module, inputs, outputs: n_projected.append(outputs.shape[1])
    )
    cache = DynamicCache() if cached else None
    for n in range(1, tokens + 1):
        layer(torch.empty(1, 1 if cached else n, 2, device="meta"), cache=cache)
    return sum(n_projected), sum(products)


def compute_work(tokens, cached):
    """`count_work` in closed form."""
    triangle = tokens * (tokens + 1) // 2
    return (tokens, triangle) if cached else (triangle, triangle * (2 * tokens + 1) // 3)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 50])
def test_gollm_chapter_counted_work_equals_closed_form(tokens, cached):
    assert count_work(tokens, cached) == compute_work(tokens, cached)


def test_gollm_chapter_projections_with_and_without_cache():
    assert (compute_work(3, cached=False)[0], compute_work(3, cached=True)[0]) == (6, 3)
    (naive, all_products), (once, new_products) = (
        compute_work(1000, cached=False),
        compute_work(1000, cached=True),
    )
    assert (naive, once) == (500_500, 1_000)  # "500x" counts these alone
    assert (all_products, new_products) == (333_833_500, 500_500)  # 667x, and still O(n) a token with a cache


@torch.no_grad()
def test_gollm_chapter_speed_up_of_a_whole_model_is_not_500():
    """FLOPs of GPT-2 small, with logits of the last token only, on the eager reference."""

    def mixer(layer):
        return Attention(GroupedHeads(768, 12, 12, None, bias=True, out_bias=True), eager, {"causal": causal})

    with torch.device("meta"):
        model = Transformer(
            mixer,
            vocab_size=50257,
            dim=768,
            n_layers=12,
            ffn_width=3072,
            ffn=Mlp,
            norm=torch.nn.LayerNorm,
            bias=True,
            tie=True,
            dropout=0.0,
            init_std=0.02,
            qk_gain=None,
            seed=0,
            positions=LearnedPositions(1024, 768),
        )

        def count_flops(new, past):
            caches = [DynamicCache() for _ in model.blocks]
            if past:
                model.compute_hidden(torch.zeros(1, past, dtype=torch.long), caches=caches)
            with FlopCounterMode(display=False) as counter:
                model.head(model.compute_hidden(torch.zeros(1, new, dtype=torch.long), caches=caches)[:, -1:])
            return counter.get_total_flops()

        head = 2 * 50257 * 768
        one, two, step = count_flops(1, 0) - head, count_flops(2, 0) - head, count_flops(1, 1) - head
    square = (two - 2 * one) // 2  # flops(n) = linear * n + square * n^2
    linear = one - square
    assert step == linear + 2 * square  # a cached step reads all keys once
    for tokens, want in ((100, 35), (1000, 367), (4000, 1673)):
        steps = range(1, tokens + 1)
        naive = sum(linear * n + square * n * n + head for n in steps)
        cached = sum(linear + square * n + head for n in steps)
        assert round(naive / cached) == want


# --- real models ---


@pytest.mark.parametrize(
    ("layers", "dim", "n_heads", "n_kv_heads", "head_dim", "kib"),
    [
        pytest.param(12, 768, 12, 12, 64, 36, id="gpt2-small"),
        pytest.param(32, 4096, 32, 32, 128, 512, id="llama-2-7b"),
        pytest.param(32, 4096, 32, 8, 128, 128, id="llama-3-8b, mistral-7b"),
        pytest.param(80, 8192, 64, 8, 128, 320, id="70b"),
        pytest.param(24, 2880, 64, 8, 64, 48, id="gpt-oss-20b, if no layer were windowed"),
        pytest.param(60, 5120, 128, 128, 128, 3840, id="mha of deepseek-v2's shape"),
    ],
)
@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 1), (torch.float16, 1), (torch.float32, 2)])
def test_known_models_cache_per_token(layers, dim, n_heads, n_kv_heads, head_dim, kib, dtype, size):
    assert layers * make_mha(dim, n_heads, n_kv_heads, head_dim, dtype).state_size() == kib * size * KIB


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 1), (torch.float16, 1), (torch.float32, 2)])
def test_latent_heads_cache_per_token(dtype, size):
    with torch.device("meta"):
        heads = LatentHeads(5120, 128, rank=512, head_dim=128, rope_dim=64, bias=False, out_bias=False).to(
            dtype
        )
    assert 60 * heads.state_size() == 67.5 * size * KIB  # DeepSeek-V2
    assert round(3840 / 67.5) == 57
    assert heads.state_size() == 2.25 * make_mha(5120, 128, 1, 128, dtype).state_size()


def test_llama_3_8b_caches_one_gib_at_8192_tokens():
    assert 8192 * 32 * make_mha(4096, 32, 8, 128, torch.bfloat16).state_size() == 1024 * MIB
