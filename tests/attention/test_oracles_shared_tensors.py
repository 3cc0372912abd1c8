"""Tensors shared between layers, in plain loops over the layers of a model, in float64."""

import numpy as np
import pytest
import torch

from attnlab.attention.contracts import Unsupported
from attnlab.attention.epilogue import ExclusiveEpilogue
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.shared_kv import SharedKVHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.stateful.forget_gate import ForgetGate
from attnlab.measure.attention_maps import compute_attention_maps
from attnlab.measure.head_scoring import compute_head_logits
from attnlab.model.transformer import Mlp, Transformer
from attnlab.testing.invariants.variant import randomize

T, M, H, D, VOCABULARY = 6, 12, 4, 3, 7


def make_model(mixers):
    model = Transformer(
        mixers.__getitem__, vocab_size=VOCABULARY, dim=M, n_layers=len(mixers), ffn_width=5, ffn=Mlp,
        norm=torch.nn.LayerNorm, bias=False, tie=False, dropout=0.0, init_std=0.5, qk_gain=None, seed=0,
    )  # fmt: skip
    return randomize(model).double().eval()


def make_writer(**options):
    return Attention(
        GroupedHeads(M, H, 2, None, False, False), eager, {"causal": causal}, writes_shared_kv=True, **options
    )


def make_reader(**options):
    return Attention(SharedKVHeads(M, H, 2, None, False, False), eager, {"causal": causal}, **options)


def make_value_residual():
    return Attention(
        GroupedHeads(M, H, 2, None, False, False, value_residual=True), eager, {"causal": causal}
    )


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 2]])


def to_array(tensor):
    return tensor.detach().numpy()


def attend(q, k, v):
    """[T, H * D] of q [T, H * D] over k, v [T, G * D]."""
    out = np.zeros((T, H * D))
    for t in range(T):
        for h in range(H):
            g = h // 2
            terms = [np.exp(q[t, h * D :][:D] @ k[s, g * D :][:D] / D**0.5) for s in range(t + 1)]
            values = sum(term * v[s, g * D :][:D] for s, term in enumerate(terms))
            out[t, h * D :][:D] = values / sum(terms)
    return out


def run_model(model, mix):
    """Run the model by hand, with `mix(layer, mixer, normed x)` in place of its mixers."""
    x = to_array(model.embedding(TOKENS))[0]
    for layer, block in enumerate(model.blocks):
        normed = to_array(block.mixer_norm(torch.from_numpy(x)))
        x = x + mix(layer, block.mixer, normed) @ to_array(block.mixer.heads.out.weight).T
        x = x + to_array(block.ffn(block.ffn_norm(torch.from_numpy(x))))
    return to_array(model.head(model.norm(torch.from_numpy(x))))


@pytest.mark.parametrize(
    "pattern", [(make_writer, make_reader), (make_writer, make_reader, make_writer, make_reader, make_reader)]
)
def test_shared_kv_is_that_of_the_last_writing_layer(pattern):
    model, shared_kv = make_model([make() for make in pattern]), {}

    def mix(layer, mixer, x):
        if pattern[layer] is make_writer:
            q, shared_kv["k"], shared_kv["v"] = np.split(
                x @ to_array(mixer.heads.qkv.weight).T, [H * D, H * D + 2 * D], 1
            )
        else:
            q = x @ to_array(mixer.heads.q.weight).T
        return attend(q, shared_kv["k"], shared_kv["v"])

    np.testing.assert_allclose(to_array(model(TOKENS))[0], run_model(model, mix), rtol=0, atol=1e-12)
    assert model.state_size() == pattern.count(make_writer) * 2 * 2 * D * 8


def test_value_residual_mixes_own_and_first_layer_values():
    model, first = make_model([make_value_residual() for _ in range(3)]), []

    def mix(layer, mixer, x):
        q, k, v = np.split(x @ to_array(mixer.heads.qkv.weight).T, [H * D, H * D + 2 * D], 1)
        first.append(v)
        own, shared = to_array(mixer.heads.shares)
        return attend(q, k, own * v + shared * first[0])

    np.testing.assert_allclose(to_array(model(TOKENS))[0], run_model(model, mix), rtol=0, atol=1e-12)


def test_reader_without_an_earlier_writer_is_rejected_at_construction():
    with pytest.raises(ValueError, match="layer 0 reads keys, which no earlier layer writes"):
        make_model([make_reader(), make_writer()])


def test_reader_layer_alone_is_rejected():
    with pytest.raises(Unsupported, match="needs an earlier layer with writes_shared_kv"):
        make_reader()(torch.zeros(1, 3, M))


def test_unshareable_parts_are_rejected():
    with pytest.raises(
        Unsupported, match="keys shared between layers lack what ForgetGate stores of each token"
    ):
        make_writer(forgetting=ForgetGate(M, H))
    with pytest.raises(Unsupported, match="needs heads with their own values"):
        make_reader(epilogue=ExclusiveEpilogue())


@pytest.mark.parametrize(
    "pattern", [(make_writer, make_reader), (make_value_residual, make_value_residual, make_value_residual)]
)
def test_attention_maps_cover_the_whole_model(pattern):
    model = make_model([make() for make in pattern])
    maps = compute_attention_maps(model, TOKENS)
    assert maps.weights.shape == (len(pattern), H, T, T)
    assert maps.kernel_difference == 0
    assert (
        len(list(compute_head_logits(make_model([make_value_residual(), make_value_residual()]), TOKENS)))
        == 2
    )
