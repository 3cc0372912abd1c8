"""What layers tell each other, in plain loops over the layers of a model, in float64."""

import numpy as np
import pytest
import torch

from attnlab.attention.contracts import Unsupported
from attnlab.attention.epilogue import Exclusive
from attnlab.attention.heads.borrowed import BorrowedHeads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.past.forgetting import Forgetting
from attnlab.measure.heads import written
from attnlab.measure.maps import attention_maps
from attnlab.model.transformer import Mlp, Transformer
from attnlab.testing.laws.variant import randomised

T, M, H, D, VOCABULARY = 6, 12, 4, 3, 7


def model(mixers):
    built = Transformer(
        mixers.__getitem__, vocab_size=VOCABULARY, dim=M, n_layers=len(mixers), ffn_width=5, ffn=Mlp,
        norm=torch.nn.LayerNorm, bias=False, tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0,
    )  # fmt: skip
    return randomised(built).double().eval()


def lending(**options):
    return Attention(
        GroupedHeads(M, H, 2, None, False, False), eager, {"causal": causal}, lends_keys=True, **options
    )


def borrowing(**options):
    return Attention(BorrowedHeads(M, H, 2, None, False, False), eager, {"causal": causal}, **options)


def residual():
    return Attention(
        GroupedHeads(M, H, 2, None, False, False, value_residual=True), eager, {"causal": causal}
    )


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 2]])


def array(tensor):
    return tensor.detach().numpy()


def attended(q, k, v):
    """[T, H * D] of q [T, H * D] over k, v [T, G * D]."""
    out = np.zeros((T, H * D))
    for t in range(T):
        for h in range(H):
            g = h // 2
            terms = [np.exp(q[t, h * D :][:D] @ k[s, g * D :][:D] / D**0.5) for s in range(t + 1)]
            values = sum(term * v[s, g * D :][:D] for s, term in enumerate(terms))
            out[t, h * D :][:D] = values / sum(terms)
    return out


def run(built, mix):
    """The model by hand: `mix(layer, mixer, normed x)` in the place of its mixers."""
    x = array(built.embedding(TOKENS))[0]
    for layer, block in enumerate(built.blocks):
        normed = array(block.mixer_norm(torch.from_numpy(x)))
        x = x + mix(layer, block.mixer, normed) @ array(block.mixer.heads.out.weight).T
        x = x + array(block.ffn(block.ffn_norm(torch.from_numpy(x))))
    return array(built.head(built.norm(torch.from_numpy(x))))


@pytest.mark.parametrize(
    "pattern", [(lending, borrowing), (lending, borrowing, lending, borrowing, borrowing)]
)
def test_borrowed_keys_and_values_are_those_of_the_last_layer_that_lent(pattern):
    built, lent = model([make() for make in pattern]), {}

    def mix(layer, mixer, x):
        if pattern[layer] is lending:
            q, lent["k"], lent["v"] = np.split(x @ array(mixer.heads.qkv.weight).T, [H * D, H * D + 2 * D], 1)
        else:
            q = x @ array(mixer.heads.q.weight).T
        return attended(q, lent["k"], lent["v"])

    np.testing.assert_allclose(array(built(TOKENS))[0], run(built, mix), rtol=0, atol=1e-12)
    assert built.state_size() == pattern.count(lending) * 2 * 2 * D * 8


def test_values_are_a_mixture_of_their_own_and_the_first_layers():
    built, first = model([residual() for _ in range(3)]), []

    def mix(layer, mixer, x):
        q, k, v = np.split(x @ array(mixer.heads.qkv.weight).T, [H * D, H * D + 2 * D], 1)
        first.append(v)
        own, shared = array(mixer.heads.shares)
        return attended(q, k, own * v + shared * first[0])

    np.testing.assert_allclose(array(built(TOKENS))[0], run(built, mix), rtol=0, atol=1e-12)


def test_who_reads_what_nobody_publishes_is_refused_when_it_is_built():
    with pytest.raises(ValueError, match="layer 0 reads keys, which no earlier layer publishes"):
        model([borrowing(), lending()])


def test_a_layer_that_borrows_is_refused_alone():
    with pytest.raises(Unsupported, match="needs an earlier one with lends_keys"):
        borrowing()(torch.zeros(1, 3, M))


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(Unsupported, match="cannot be forgotten"):
        lending(forgetting=Forgetting(M, H))
    with pytest.raises(Unsupported, match="no values of their own"):
        borrowing(epilogue=Exclusive())


@pytest.mark.parametrize("pattern", [(lending, borrowing), (residual, residual, residual)])
def test_maps_are_those_of_the_whole_model(pattern):
    built = model([make() for make in pattern])
    maps = attention_maps(built, TOKENS)
    assert maps.weights.shape == (len(pattern), H, T, T)
    assert maps.difference == 0
    assert len(list(written(model([residual(), residual()]), TOKENS))) == 2
