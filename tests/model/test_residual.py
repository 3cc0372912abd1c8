"""What layers read of those before them, in plain loops in float64; cached and compiled, the same text."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from test_generation import PROMPTS, recorded
from test_generation_layers import WAYS

from attnlab.attention.cache import DynamicCache
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.model import generation
from attnlab.model.generation import Decoder
from attnlab.model.residual import DepthAttention
from attnlab.model.transformer import Mlp, Transformer, ValueEmbedding
from attnlab.testing.laws.variant import randomised

T, M, D = 5, 12, 3


def grouped(layer):
    return Attention(GroupedHeads(M, 4, 2, None, False, False), eager, {"causal": causal})


def model(residual=DepthAttention, n_layers=3, make_mixer=grouped, values=None):
    built = Transformer(
        make_mixer,
        vocab_size=13, dim=M, n_layers=n_layers, ffn_width=7, ffn=Mlp, norm=torch.nn.LayerNorm, bias=False,
        tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0, residual=residual,
        values=values,
    )  # fmt: skip
    return built.double().eval()


def mixture(reader, written):
    """[T, M] of arrays [T, M]: by hand."""
    query, gain = reader.query.detach().numpy(), reader.norm.weight.detach().numpy()
    out = np.zeros((T, M))
    for t in range(T):
        terms = []
        for row in (each[t] for each in written):
            size = math.sqrt(row @ row / M + 1e-6)
            terms.append(math.exp(query @ (gain * row / size)))
        out[t] = sum(term * each[t] for term, each in zip(terms, written, strict=True)) / sum(terms)
    return out


def test_each_part_reads_a_mixture_of_all_that_was_written_before_it():
    built = randomised(model())
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    written = [built.embedding(tokens)[0].detach().numpy()]
    for block in built.blocks:
        for reads, norm, part in (
            (block.mixer_reads, block.mixer_norm, block.mixer),
            (block.ffn_reads, block.ffn_norm, block.ffn),
        ):
            x = torch.from_numpy(mixture(reads, written))[None]
            written.append(part(norm(x))[0].detach().numpy())
    last = torch.from_numpy(mixture(built.reads, written))[None]
    torch.testing.assert_close(built(tokens), built.head(built.norm(last)), rtol=0, atol=1e-12)


def test_it_starts_as_the_mean_of_all():
    reader, written = DepthAttention(M), [torch.randn(1, T, M) for _ in range(4)]
    torch.testing.assert_close(reader(written), sum(written) / 4)


def test_what_both_have_starts_alike():
    plain, other = model(None).state_dict(), model().state_dict()
    assert set(plain) < set(other)
    assert all(torch.equal(plain[name], other[name]) for name in plain)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["unequal", "one"])
def test_it_writes_the_same_text_however_it_is_decoded(prompts, way, monkeypatch):
    monkeypatch.setattr(generation, "SPAN", 8)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    built, (cache, compiled) = randomised(model()), WAYS[way]
    tokens, logits = recorded(Decoder(built, cache, compile=compiled), prompts)
    wanted, reference = recorded(Decoder(built, None), prompts)
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


def test_a_tables_values_are_mixed_into_those_of_every_layer_and_decoding_agrees():
    def mixer(layer):
        heads = GroupedHeads(M, 4, 2, None, False, False, value_residual=True)
        return Attention(heads, eager, {"causal": causal})

    table = partial(ValueEmbedding, n_heads=4, n_kv_heads=2, head_dim=None)
    built = randomised(model(residual=None, make_mixer=mixer, values=table))
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    rows = built.values.table.weight[tokens[0]].view(T, 2, D)  # by KV head
    x = built.embedding(tokens)
    for block in built.blocks:
        heads, normed = block.mixer.heads, block.mixer_norm(x)
        own, shared = heads.shares
        parts = heads.qkv(normed)[0].split((M, M // 2, M // 2), dim=-1)
        q, k, v = (part.view(T, -1, D) for part in parts)
        out = torch.zeros(T, 4, D, dtype=x.dtype)
        for h, t in product(range(4), range(T)):
            past, g = range(t + 1), h // 2
            weights = torch.stack([q[t, h] @ k[s, g] / D**0.5 for s in past]).softmax(0)
            out[t, h] = sum(weights[s] * (own * v[s, g] + shared * rows[s, g]) for s in past)
        x = x + heads.out(out.flatten(1))[None]
        x = x + block.ffn(block.ffn_norm(x))
    torch.testing.assert_close(built(tokens), built.head(built.norm(x)), rtol=0, atol=1e-12)
    caches = [DynamicCache() for _ in built.blocks]
    steps = torch.cat([built(tokens[:, t : t + 1], caches=caches) for t in range(T)], dim=1)
    torch.testing.assert_close(steps, built(tokens), rtol=0, atol=1e-12)
