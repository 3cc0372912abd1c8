"""Generation where layers differ, and under masks that look ahead: cached, compiled or not, the same text."""

import functools
from itertools import cycle

import pytest
import torch
from test_generation import CACHES, NEW, PROMPTS, VOCABULARY, recorded

from attnlab.attention.cache import DynamicCache, SlidingWindowCache, StaticCache, new_caches, rolling
from attnlab.attention.contracts import Unsupported, declares
from attnlab.attention.heads.borrowed import BorrowedHeads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.full import full
from attnlab.attention.masks.prefix import prefix
from attnlab.attention.masks.window import window
from attnlab.attention.mixers.delta import GatedDeltaNet
from attnlab.attention.mixers.linear import LinearAttention
from attnlab.attention.rotary import Rope
from attnlab.model import generation
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Mlp, Transformer


@declares(looks_ahead=True)
def every_fourth(b, h, q_pos, kv_pos):
    """Every fourth token is seen by all, the slots that are not written yet among them."""
    return (kv_pos <= q_pos) | (kv_pos % 4 == 0)


@declares(looks_ahead=True)
def last_head(b, h, q_pos, kv_pos):
    return kv_pos <= q_pos + (h == 5)


def model(*masks):
    layers = cycle({"own": full if mask is None else mask} for mask in masks)

    def mixer(layer):
        return Attention(GroupedHeads(24, 6, 2, None, False, False), eager, next(layers), rotary=Rope())

    return of(mixer)


def of(mixer):
    built = Transformer(
        mixer, vocab_size=VOCABULARY, dim=24, n_layers=2, ffn_width=20, ffn=Mlp, norm=torch.nn.LayerNorm,
        bias=False, tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0,
    )  # fmt: skip
    return built.double().eval()


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(generation, "SPAN", 8)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize(
    "masks", [(window(3), window(6)), (window(6), window(3, keep=1)), (causal, window(2))]
)
def test_a_rolling_cache_is_made_after_the_mask_of_its_layer(masks):
    built, prompts = model(*masks), [list(range(9))]
    tokens, logits = recorded(Decoder(built, rolling), prompts)
    wanted, reference = recorded(Decoder(built, None), prompts)
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)
    caches = new_caches(rolling, [block.mixer for block in built.blocks])
    assert [getattr(cache, "size", None) for cache in caches] == [
        mask.within[0] if mask is not causal else None for mask in masks
    ]


def test_nothing_rolls_without_a_window():
    with pytest.raises(Unsupported, match="no layer's mask has a window"):
        Decoder(model(causal), rolling).generate(PROMPTS, NEW)


COMPILED = (CACHES["static"], True)
WAYS = {"growing": (DynamicCache, False), "static": (CACHES["static"], False), "compiled": COMPILED}


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
def test_a_mask_that_looks_ahead_writes_the_same_text_however_it_is_decoded(
    way, masks, prompts, new, uncompiled
):
    built, (cache, compiled) = model(*masks), WAYS[way]
    tokens, logits = recorded(Decoder(built, cache, compile=compiled), prompts, new)
    wanted, reference = recorded(Decoder(built, None), prompts, new)
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("mask", "prompts"),
    [(None, PROMPTS), (prefix(4), PROMPTS), (every_fourth, [[3, 1, 4, 1, 5]]), (last_head, PROMPTS[:1])],
    ids=["full", "a prompt shorter than the prefix", "every fourth token", "one head of six"],
)
def test_a_text_that_needs_tokens_before_they_are_there_is_refused_at_once(way, mask, prompts, uncompiled):
    cache, compiled = WAYS[way]
    decoder = Decoder(model(mask), cache, compile=compiled)
    with pytest.raises(Unsupported, match="should have seen these later ones"):
        next(decoder.stream(prompts, NEW))


def test_a_window_smaller_than_the_masks_stays_what_was_asked_for():
    caches = new_caches(functools.partial(SlidingWindowCache, 3), [None, None])
    assert [cache.size for cache in caches] == [3, 3]


def hybrid(layer):
    if layer:
        return Attention(GroupedHeads(24, 6, 2, None, False, False), eager, {"own": causal}, rotary=Rope())
    return GatedDeltaNet(24, 6)


def crossed(layer):
    if layer:
        return Attention(BorrowedHeads(24, 6, 2, None, False, False), eager, {"own": causal}, rotary=Rope())
    heads = GroupedHeads(24, 6, 2, None, False, False)
    return Attention(heads, eager, {"own": causal}, rotary=Rope(), lends_keys=True)


def residual(layer):
    heads = GroupedHeads(24, 6, 2, None, False, False, value_residual=True)
    return Attention(heads, eager, {"own": causal}, rotary=Rope())


MIXERS = {
    "delta": lambda layer: GatedDeltaNet(24, 6),
    "linear": lambda layer: LinearAttention(24, 4, decay=True),
    "hybrid": hybrid,
    "borrowed keys": crossed,
    "value residual": residual,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["unequal", "one"])
@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_what_layers_carry_or_share_writes_the_same_text_in_any_way(mixer, prompts, way, uncompiled):
    built, (cache, compiled) = of(mixer), WAYS[way]
    tokens, logits = recorded(Decoder(built, cache, compile=compiled), prompts)
    wanted, reference = recorded(Decoder(built, None), prompts)
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


@pytest.mark.rare
def test_a_dozen_compiled_decoders_live_in_one_process(monkeypatch):
    """Each of another size: torch keeps eight graphs of one piece of code."""
    graphs = functools.partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: graphs(function))
    monkeypatch.setattr(generation, "SPAN", 8)
    for length in range(8, 20):
        built, cache = model(causal), functools.partial(StaticCache, length)
        tokens = Decoder(built, cache, compile=True).generate([[3, 1, 4]], 3)
        assert torch.equal(tokens, Decoder(built, None).generate([[3, 1, 4]], 3))
