"""Blocks equal their formula for each norm placement; default options change no bit of a model."""

import pytest
import torch
from torch import nn

from attnlab.attention.cache import DynamicCache
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.model.block import Block
from attnlab.model.generation import Decoder
from attnlab.model.residual import DepthAttention
from attnlab.model.transformer import Mlp, SwiGlu, Transformer
from attnlab.testing.invariants.variant import randomize

M, X = 6, torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


class HalvingMixer(nn.Linear):
    """Mixer that accepts the context from its block."""

    def forward(self, x, positions=None):
        return super().forward(x) / 2


def make_block(**options):
    block = Block(HalvingMixer(M, M), Mlp(M, 7, False), nn.LayerNorm, M, 0.0, **options)
    return randomize(block.double()).eval()


def make_model(block=None, ffn=Mlp, **options):
    transformer = Transformer(
        lambda layer: Attention(GroupedHeads(M, 2, 1, None, False, False), eager, {"causal": causal}),
        vocab_size=13, dim=M, n_layers=2, ffn_width=7, ffn=ffn, norm=nn.LayerNorm, bias=False, tie=False,
        dropout=0.0, init_std=0.5, qk_gain=None, seed=0, block=block, **options,
    )  # fmt: skip
    return transformer.double().eval()


def compute_expected_output(block, x):
    """Compute a block's output from its parts."""
    if block.parallel:
        ffn_norm = block.mixer_norm(x) if block.shared_norm else block.ffn_norm(x)
        return x + block.multiplier * (block.mixer(block.mixer_norm(x)) + block.ffn(ffn_norm))
    mixer_norm, ffn_norm = block.mixer_norm or nn.Identity(), block.ffn_norm or nn.Identity()
    mixer_after, ffn_after = block.mixer_after or nn.Identity(), block.ffn_after or nn.Identity()
    x = x + block.multiplier * mixer_after(block.mixer(mixer_norm(x)))
    return x + block.multiplier * ffn_after(block.ffn(ffn_norm(x)))


@pytest.mark.parametrize(
    ("options", "norms"),
    [
        ({}, ["mixer_norm", "ffn_norm"]),
        ({"norms": "post"}, ["mixer_after", "ffn_after"]),
        ({"norms": "sandwich"}, ["mixer_norm", "ffn_norm", "mixer_after", "ffn_after"]),
        ({"parallel": True}, ["mixer_norm", "ffn_norm"]),
        ({"parallel": True, "shared_norm": True}, ["mixer_norm"]),
        ({"norms": "sandwich", "multiplier": 0.3}, ["mixer_norm", "ffn_norm", "mixer_after", "ffn_after"]),
    ],
)
def test_block_equals_its_formula(options, norms):
    block = make_block(**options)
    assert [name for name, part in block.named_children() if isinstance(part, nn.LayerNorm)] == norms
    torch.testing.assert_close(
        block(X, positions=None), compute_expected_output(block, X), rtol=0, atol=1e-13
    )


def test_parts_of_a_parallel_block_read_their_own_depth_mixture():
    block = randomize(
        Block(HalvingMixer(M, M), Mlp(M, 7, False), nn.LayerNorm, M, 0.0, DepthAttention, parallel=True)
    )
    block, outputs = block.double(), [X, X.flip(0)]
    mixer_output = block.mixer(block.mixer_norm(block.mixer_reads(outputs)))
    ffn_output = block.ffn(block.ffn_norm(block.ffn_reads(outputs)))
    for actual, wanted in zip(block(outputs), [*outputs, mixer_output, ffn_output], strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-13)


def test_shared_norm_without_two_input_norms_is_rejected():
    for options in ({}, {"norms": "sandwich"}, {"norms": "post", "parallel": True}):
        with pytest.raises(ValueError, match="shared_norm: true needs parallel: true"):
            make_block(shared_norm=True, **options)


def test_default_block_options_change_no_bit():
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    expected = make_model()(tokens)
    assert torch.equal(make_model(Block, embedding_scale=1.0, logit_scale=1.0)(tokens), expected)
    assert not torch.equal(make_model(block=lambda *parts: Block(*parts, norms="post"))(tokens), expected)


def test_embedding_and_logit_scales_and_logit_cap():
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    scaled = make_model(embedding_scale=3.0, logit_scale=0.7, logit_cap=0.2)
    reference = make_model()
    reference.embedding.weight.data *= 3
    torch.testing.assert_close(scaled(tokens), 0.2 * torch.tanh(0.7 * reference(tokens) / 0.2))
    with pytest.raises(ValueError, match=r"model.logit_cap must be more than 0, got 0"):
        make_model(logit_cap=0.0)


def test_gated_ffn_uses_the_configured_activation():
    for name, function in (("gelu", nn.GELU()), ("gelu_tanh", nn.GELU("tanh")), ("silu", nn.SiLU())):
        ffn = SwiGlu(M, 7, False, activation=name).double()
        gate, up = ffn.up(X).chunk(2, dim=-1)
        torch.testing.assert_close(ffn(X), ffn.down(function(gate) * up))


@pytest.mark.parametrize("options", [{"norms": "sandwich"}, {"parallel": True, "shared_norm": True}])
def test_greedy_cached_decoding_takes_the_largest_logit(options):
    model = randomize(make_model(lambda *parts: Block(*parts, **options), logit_cap=2.0, embedding_scale=2.0))
    expected = tokens = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    with torch.no_grad():
        for _ in range(6):
            expected = torch.cat((expected, model(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(Decoder(model, DynamicCache).generate(tokens, 6), expected)
