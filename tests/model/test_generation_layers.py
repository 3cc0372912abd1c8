"""Generation with differing layers and with non-causal masks: all ways of decoding give equal text."""

import functools
from itertools import cycle

import pytest
import torch
from test_generation import CACHES, NEW, PROMPTS, VOCABULARY, generate_with_logits

from attnlab.attention.cache import (
    DynamicCache,
    SlidingWindowCache,
    StaticCache,
    create_layer_caches,
    sliding_window_cache,
)
from attnlab.attention.contracts import Unsupported, declare_capabilities
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.shared_kv import SharedKVHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.full import full
from attnlab.attention.masks.prefix import prefix
from attnlab.attention.masks.window import window
from attnlab.attention.mixers.delta import GatedDeltaNet
from attnlab.attention.mixers.feature_delta import KimiDeltaAttention
from attnlab.attention.mixers.linear import LinearAttention
from attnlab.attention.rotary import Rope
from attnlab.model import generation
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Mlp, Transformer


@declare_capabilities(sees_future=True)
def every_fourth(b, h, q_idx, kv_idx):
    """Every query sees every fourth token, including unwritten slots."""
    return (kv_idx <= q_idx) | (kv_idx % 4 == 0)


@declare_capabilities(sees_future=True)
def last_head(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx + (h == 5)


def make_masked_model(*masks):
    layers = cycle({"own": full if mask is None else mask} for mask in masks)

    def make_mixer(layer):
        return Attention(GroupedHeads(24, 6, 2, None, False, False), eager, next(layers), rotary=Rope())

    return make_model(make_mixer)


def make_model(make_mixer):
    transformer = Transformer(
        make_mixer, vocab_size=VOCABULARY, dim=24, n_layers=2, ffn_width=20, ffn=Mlp, norm=torch.nn.LayerNorm,
        bias=False, tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0,
    )  # fmt: skip
    return transformer.double().eval()


@pytest.fixture
def stub_compile(monkeypatch):
    monkeypatch.setattr(generation, "SPAN", 8)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize(
    "masks", [(window(3), window(6)), (window(6), window(3, keep=1)), (causal, window(2))]
)
def test_sliding_window_caches_follow_the_mask_of_their_layer(masks):
    model, prompts = make_masked_model(*masks), [list(range(9))]
    tokens, logits = generate_with_logits(Decoder(model, sliding_window_cache), prompts)
    expected, reference = generate_with_logits(Decoder(model, None), prompts)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)
    caches = create_layer_caches(sliding_window_cache, [block.mixer for block in model.blocks])
    assert [getattr(cache, "size", None) for cache in caches] == [
        mask.visible_window[0] if mask is not causal else None for mask in masks
    ]


def test_sliding_window_cache_without_a_window_is_unsupported():
    with pytest.raises(Unsupported, match="needs a mask with a window"):
        Decoder(make_masked_model(causal), sliding_window_cache).generate(PROMPTS, NEW)


COMPILED = (CACHES["static"], True)
WAYS = {"dynamic": (DynamicCache, False), "static": (CACHES["static"], False), "compiled": COMPILED}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("masks", "prompts", "new"),
    [
        ((prefix(4),), [PROMPTS[0]], NEW),
        ((prefix(3), causal), PROMPTS[::2], NEW),
        ((every_fourth,), [[3, 1, 4, 1, 5]], 4),
    ],
    ids=["prefix", "padded prefix", "every fourth token"],
)
def test_non_causal_masks_give_equal_text_in_all_ways_of_decoding(way, masks, prompts, new, stub_compile):
    model, (cache, compiled) = make_masked_model(*masks), WAYS[way]
    tokens, logits = generate_with_logits(Decoder(model, cache, compile=compiled), prompts, new)
    expected, reference = generate_with_logits(Decoder(model, None), prompts, new)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("mask", "prompts"),
    [(None, PROMPTS), (prefix(4), PROMPTS), (every_fourth, [[3, 1, 4, 1, 5]]), (last_head, PROMPTS[:1])],
    ids=["full", "a prompt shorter than the prefix", "every fourth token", "one head of six"],
)
def test_masks_that_need_later_keys_are_unsupported_before_the_first_token(way, mask, prompts, stub_compile):
    cache, compiled = WAYS[way]
    decoder = Decoder(make_masked_model(mask), cache, compile=compiled)
    with pytest.raises(Unsupported, match="shows tokens of this chunk to an earlier token"):
        next(decoder.stream_tokens(prompts, NEW))


def test_explicit_window_size_of_a_cache_is_kept():
    caches = create_layer_caches(functools.partial(SlidingWindowCache, 3), [None, None])
    assert [cache.size for cache in caches] == [3, 3]


def make_hybrid_mixer(layer):
    if layer:
        return Attention(GroupedHeads(24, 6, 2, None, False, False), eager, {"own": causal}, rotary=Rope())
    return GatedDeltaNet(24, 6)


def make_shared_kv_mixer(layer):
    if layer:
        return Attention(SharedKVHeads(24, 6, 2, None, False, False), eager, {"own": causal}, rotary=Rope())
    heads = GroupedHeads(24, 6, 2, None, False, False)
    return Attention(heads, eager, {"own": causal}, rotary=Rope(), writes_shared_kv=True)


def make_value_residual_mixer(layer):
    heads = GroupedHeads(24, 6, 2, None, False, False, value_residual=True)
    return Attention(heads, eager, {"own": causal}, rotary=Rope())


MIXERS = {
    "delta": lambda layer: GatedDeltaNet(24, 6),
    "product": lambda layer: GatedDeltaNet(24, 6, steps_per_token=2),
    "kda": lambda layer: KimiDeltaAttention(24, 6),
    "linear": lambda layer: LinearAttention(24, 4, decay=True),
    "hybrid": make_hybrid_mixer,
    "borrowed keys": make_shared_kv_mixer,
    "value residual": make_value_residual_mixer,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["unequal", "one"])
@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_carried_and_shared_tensors_give_equal_text_in_all_ways_of_decoding(
    mixer, prompts, way, stub_compile
):
    model, (cache, compiled) = make_model(mixer), WAYS[way]
    tokens, logits = generate_with_logits(Decoder(model, cache, compile=compiled), prompts)
    expected, reference = generate_with_logits(Decoder(model, None), prompts)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.rare
def test_a_dozen_compiled_decoders_run_in_one_process(monkeypatch):
    """All sizes differ; torch keeps at most eight graphs per code object."""
    graphs = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: graphs(function))
    monkeypatch.setattr(generation, "SPAN", 8)
    for length in range(8, 20):
        model, cache = make_masked_model(causal), functools.partial(StaticCache, length)
        tokens = Decoder(model, cache, compile=True).generate([[3, 1, 4]], 3)
        assert torch.equal(tokens, Decoder(model, None).generate([[3, 1, 4]], 3))
