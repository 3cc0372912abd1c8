"""Statements of the source documents without numbers: growing lists need no mask, attention adds context."""

import math

import pytest
import torch

from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.masks.window import window
from attnlab.model.transformer import LearnedPositions, Mlp, Transformer


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def attend_token_by_token(inputs, weights, n_heads):
    """Attention as in the microgpt lesson: one token at a time, with growing lists and no mask."""
    keys, values, outputs = [], [], []
    for x in inputs:
        q, k, v = ([dot(row, x) for row in weights[name]] for name in "qkv")
        keys.append(k)
        values.append(v)
        width, merged = len(q) // n_heads, []
        for head in range(n_heads):
            features = slice(head * width, (head + 1) * width)
            scores = [dot(q[features], key[features]) / width**0.5 for key in keys]
            powers = [math.exp(score - max(scores)) for score in scores]
            weights_of_keys = [power / sum(powers) for power in powers]
            merged += [
                dot(weights_of_keys, feature)
                for feature in zip(*(value[features] for value in values), strict=True)
            ]
        outputs.append([dot(row, merged) for row in weights["out"]])
    return outputs


@torch.no_grad()
@pytest.mark.parametrize("name", ["emma", "olivia", "maximilian"])
def test_microgpt_lesson_growing_lists_equal_the_batched_causal_pass(name):
    generator = torch.Generator().manual_seed(2)
    heads = GroupedHeads(12, 4, 4, None, bias=False, out_bias=False).double()
    for weight in heads.parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    letters = torch.randn(26, 12, generator=generator, dtype=torch.float64)
    x = letters[[ord(letter) - ord("a") for letter in name]]
    parts = dict(zip("qkv", (part.tolist() for part in heads.qkv.weight.chunk(3)), strict=True))
    want = attend_token_by_token(x.tolist(), parts | {"out": heads.out.weight.tolist()}, 4)
    batched = Attention(heads, eager, {"causal": causal})(x[None])[0]
    torch.testing.assert_close(batched, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


class ZeroMixer(torch.nn.Module):
    """Mixer that returns zeros."""

    def forward(self, x, **context):
        return torch.zeros_like(x)


def make_attention(layer=0):
    return Attention(GroupedHeads(8, 2, 2, None, bias=False, out_bias=False), eager, {"causal": causal})


@torch.no_grad()
@pytest.mark.parametrize(
    ("mixer", "mask", "changes"),
    [
        pytest.param(make_attention, None, True, id="attention"),
        pytest.param(make_attention, window(1), False, id="attention to itself"),
        pytest.param(lambda layer: ZeroMixer(), None, False, id="no attention"),
    ],
)
def test_tutorial_word_changes_with_context_only_through_attention(mixer, mask, changes):
    sizes = {"vocab_size": 11, "dim": 8, "n_layers": 2, "ffn_width": 13, "bias": False, "tie": True}
    rest = {"dropout": 0.0, "init_std": 0.5, "qk_gain": None, "seed": 0}
    positions = LearnedPositions(5, 8)
    model = Transformer(mixer, **sizes, **rest, ffn=Mlp, norm=torch.nn.LayerNorm, positions=positions)
    bank = 7
    river, money = (torch.tensor([[*before, bank]]) for before in ((1, 2, 3, 4), (5, 6, 8, 9)))
    river, money = (
        model.compute_hidden(river, mask=mask)[0, -1],
        model.compute_hidden(money, mask=mask)[0, -1],
    )
    assert torch.equal(river, money) is not changes
    assert ((river - money).abs().max() > 0.1) == changes
