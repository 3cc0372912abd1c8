"""Where the norms of a block stand, term by term; a block that is plain is the model that it was."""

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
from attnlab.testing.laws.variant import randomised

M, X = 6, torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


class Halved(nn.Linear):
    """A mixer that takes the context which a block hands on."""

    def forward(self, x, positions=None):
        return super().forward(x) / 2


def block(**options):
    made = Block(Halved(M, M), Mlp(M, 7, False), nn.LayerNorm, M, 0.0, **options)
    return randomised(made.double()).eval()


def model(block=None, ffn=Mlp, **options):
    built = Transformer(
        lambda layer: Attention(GroupedHeads(M, 2, 1, None, False, False), eager, {"causal": causal}),
        vocab_size=13, dim=M, n_layers=2, ffn_width=7, ffn=ffn, norm=nn.LayerNorm, bias=False, tie=False,
        dropout=0.0, init_std=0.5, qk_gain=None, seed=0, block=block, **options,
    )  # fmt: skip
    return built.double().eval()


def expected(b, x):
    """By hand, of what a block holds."""
    if b.parallel:
        second = b.mixer_norm(x) if b.shared_norm else b.ffn_norm(x)
        return x + b.multiplier * (b.mixer(b.mixer_norm(x)) + b.ffn(second))
    first, second = b.mixer_norm or nn.Identity(), b.ffn_norm or nn.Identity()
    mixed, fed = b.mixer_after or nn.Identity(), b.ffn_after or nn.Identity()
    x = x + b.multiplier * mixed(b.mixer(first(x)))
    return x + b.multiplier * fed(b.ffn(second(x)))


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
def test_a_block_is_its_formula(options, norms):
    made = block(**options)
    assert [name for name, part in made.named_children() if isinstance(part, nn.LayerNorm)] == norms
    torch.testing.assert_close(made(X, positions=None), expected(made, X), rtol=0, atol=1e-13)


def test_in_a_parallel_block_each_part_reads_its_own_mixture():
    made = randomised(
        Block(Halved(M, M), Mlp(M, 7, False), nn.LayerNorm, M, 0.0, DepthAttention, parallel=True)
    )
    made, written = made.double(), [X, X.flip(0)]
    mixed = made.mixer(made.mixer_norm(made.mixer_reads(written)))
    fed = made.ffn(made.ffn_norm(made.ffn_reads(written)))
    for one, other in zip(made(written), [*written, mixed, fed], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_a_norm_is_shared_only_where_there_would_be_two():
    for options in ({}, {"norms": "sandwich"}, {"norms": "post", "parallel": True}):
        with pytest.raises(ValueError, match="shared_norm needs parallel: true"):
            block(shared_norm=True, **options)


def test_a_plain_block_changes_no_bit():
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    want = model()(tokens)
    assert torch.equal(model(Block, embedding_scale=1.0, logit_scale=1.0)(tokens), want)
    assert not torch.equal(model(block=lambda *parts: Block(*parts, norms="post"))(tokens), want)


def test_embeddings_and_logits_are_scaled_and_capped():
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    built = model(embedding_scale=3.0, logit_scale=0.7, logit_cap=0.2)
    other = model()
    other.embedding.weight.data *= 3
    torch.testing.assert_close(built(tokens), 0.2 * torch.tanh(0.7 * other(tokens) / 0.2))
    with pytest.raises(ValueError, match=r"model.logit_cap must be more than 0, got 0"):
        model(logit_cap=0.0)


def test_a_gated_ffn_takes_the_activation_that_was_asked_for():
    for name, function in (("gelu", nn.GELU()), ("gelu_tanh", nn.GELU("tanh")), ("silu", nn.SiLU())):
        ffn = SwiGlu(M, 7, False, activation=name).double()
        gate, up = ffn.up(X).chunk(2, dim=-1)
        torch.testing.assert_close(ffn(X), ffn.down(function(gate) * up))


@pytest.mark.parametrize("options", [{"norms": "sandwich"}, {"parallel": True, "shared_norm": True}])
def test_what_is_generated_is_the_largest_logit(options):
    built = randomised(model(lambda *parts: Block(*parts, **options), logit_cap=2.0, embedding_scale=2.0))
    want = tokens = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    with torch.no_grad():
        for _ in range(6):
            want = torch.cat((want, built(want)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(Decoder(built, DynamicCache).generate(tokens, 6), want)
