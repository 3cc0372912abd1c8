"""Depth attention and value embeddings equal plain float64 loops, and all ways of decoding agree."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from test_generation import PROMPTS, generate_with_logits
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
from attnlab.testing.invariants.variant import randomize

T, M, D = 5, 12, 3


def make_grouped_mixer(layer):
    return Attention(GroupedHeads(M, 4, 2, None, False, False), eager, {"causal": causal})


def make_model(residual=DepthAttention, n_layers=3, make_mixer=make_grouped_mixer, values=None):
    transformer = Transformer(
        make_mixer,
        vocab_size=13, dim=M, n_layers=n_layers, ffn_width=7, ffn=Mlp, norm=torch.nn.LayerNorm, bias=False,
        tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0, residual=residual,
        values=values,
    )  # fmt: skip
    return transformer.double().eval()


def compute_mixture(reader, outputs):
    """Compute depth attention over arrays [T, M] in plain loops."""
    query, gain = reader.query.detach().numpy(), reader.norm.weight.detach().numpy()
    mixture = np.zeros((T, M))
    for t in range(T):
        terms = []
        for row in (output[t] for output in outputs):
            size = math.sqrt(row @ row / M + 1e-6)
            terms.append(math.exp(query @ (gain * row / size)))
        mixture[t] = sum(term * output[t] for term, output in zip(terms, outputs, strict=True)) / sum(terms)
    return mixture


def test_parts_read_a_mixture_of_all_earlier_outputs():
    model = randomize(make_model())
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    outputs = [model.embedding(tokens)[0].detach().numpy()]
    for block in model.blocks:
        for reader, norm, part in (
            (block.mixer_reads, block.mixer_norm, block.mixer),
            (block.ffn_reads, block.ffn_norm, block.ffn),
        ):
            x = torch.from_numpy(compute_mixture(reader, outputs))[None]
            outputs.append(part(norm(x))[0].detach().numpy())
    last = torch.from_numpy(compute_mixture(model.reads, outputs))[None]
    torch.testing.assert_close(model(tokens), model.head(model.norm(last)), rtol=0, atol=1e-12)


def test_initial_mixture_is_the_mean():
    reader, outputs = DepthAttention(M), [torch.randn(1, T, M) for _ in range(4)]
    torch.testing.assert_close(reader(outputs), sum(outputs) / 4)


def test_tensors_common_to_both_designs_start_equal():
    plain, other = make_model(None).state_dict(), make_model().state_dict()
    assert set(plain) < set(other)
    assert all(torch.equal(plain[name], other[name]) for name in plain)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["unequal", "one"])
def test_depth_attention_gives_equal_text_in_all_ways_of_decoding(prompts, way, monkeypatch):
    monkeypatch.setattr(generation, "SPAN", 8)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    model, (cache, compiled) = randomize(make_model()), WAYS[way]
    tokens, logits = generate_with_logits(Decoder(model, cache, compile=compiled), prompts)
    expected, reference = generate_with_logits(Decoder(model, None), prompts)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, reference, rtol=0, atol=1e-11)


def test_value_embedding_equals_plain_loops_and_decodes_equally():
    def make_mixer(layer):
        heads = GroupedHeads(M, 4, 2, None, False, False, value_residual=True)
        return Attention(heads, eager, {"causal": causal})

    table = partial(ValueEmbedding, n_heads=4, n_kv_heads=2, head_dim=None)
    model = randomize(make_model(residual=None, make_mixer=make_mixer, values=table))
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    rows = model.values.table.weight[tokens[0]].view(T, 2, D)  # by KV head
    x = model.embedding(tokens)
    for block in model.blocks:
        heads, normed = block.mixer.heads, block.mixer_norm(x)
        own_share, table_share = heads.shares
        parts = heads.qkv(normed)[0].split((M, M // 2, M // 2), dim=-1)
        q, k, v = (part.view(T, -1, D) for part in parts)
        out = torch.zeros(T, 4, D, dtype=x.dtype)
        for h, t in product(range(4), range(T)):
            past, g = range(t + 1), h // 2
            weights = torch.stack([q[t, h] @ k[s, g] / D**0.5 for s in past]).softmax(0)
            out[t, h] = sum(weights[s] * (own_share * v[s, g] + table_share * rows[s, g]) for s in past)
        x = x + heads.out(out.flatten(1))[None]
        x = x + block.ffn(block.ffn_norm(x))
    torch.testing.assert_close(model(tokens), model.head(model.norm(x)), rtol=0, atol=1e-12)
    caches = [DynamicCache() for _ in model.blocks]
    steps = torch.cat([model(tokens[:, t : t + 1], caches=caches) for t in range(T)], dim=1)
    torch.testing.assert_close(steps, model(tokens), rtol=0, atol=1e-12)
