"""Transformer around any mixer: common tensors of two arms start equal, and no future leaks."""

import math

import pytest
import torch

from attnlab.model.build import build_model
from attnlab.model.transformer import LearnedPositions, SinusoidalPositions

torch.set_num_threads(1)


def test_common_tensors_and_fused_slices_of_two_arms_start_equal(compose):
    mha, gqa = build_model(compose("heads=mha"), 31), build_model(compose("heads=gqa"), 31)
    a, b = dict(mha.named_parameters()), dict(gqa.named_parameters())
    assert a.keys() == b.keys()
    for name in a:
        if a[name].shape == b[name].shape:
            assert torch.equal(a[name], b[name]), name
    fused = "blocks.0.mixer.heads.qkv.weight"
    assert torch.equal(a[fused][:16], b[fused][:16])
    assert a[fused].shape != b[fused].shape


def test_vocabulary_size_does_not_change_the_initial_values_of_layers(compose):
    small, large = build_model(compose(), 31), build_model(compose(), 37)
    assert torch.equal(small.blocks[1].ffn.up.weight, large.blocks[1].ffn.up.weight)


@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_qk_gain_is_the_spread_of_q_and_k_for_unit_input(compose, gain):
    model = build_model(compose("model.dim=256", "model.n_heads=2", f"model.qk_gain={gain}"), 31)
    qkv = model.blocks[0].mixer.heads.qkv
    x = torch.randn(997, 256, generator=torch.Generator().manual_seed(0))
    q, k, v = qkv(x).split(256, dim=-1)
    assert q.std().item() == pytest.approx(gain, rel=0.02)
    assert k.std().item() == pytest.approx(gain, rel=0.02)
    assert v.std().item() == pytest.approx(0.02 * 16, rel=0.02)


def test_residual_projections_start_smaller_with_depth(compose):
    model = build_model(compose("model.dim=128", "model.n_layers=8"), 31)
    for module in (model.blocks[3].mixer.heads.out, model.blocks[3].ffn.down):
        assert module.weight.std().item() == pytest.approx(0.02 / math.sqrt(16), rel=0.05)


@pytest.mark.parametrize("position", ["rope", "learned", "sinusoidal", "none", "alibi"])
def test_no_logit_depends_on_a_later_token(compose, position):
    model = build_model(compose(f"position={position}"), 31).double()
    x = model.embedding(torch.arange(11)[None]).detach().requires_grad_()
    model.embedding = _FixedEmbedding(x)
    logits = model(torch.zeros(1, 11, dtype=torch.long))
    for t in range(11):
        (gradient,) = torch.autograd.grad(logits[0, t].sum(), x, retain_graph=True)
        assert gradient[0, : t + 1].abs().sum(-1).min() > 0
        assert (gradient[0, t + 1 :] == 0).all()


class _FixedEmbedding(torch.nn.Module):
    def __init__(self, x):
        super().__init__()
        self.x = x

    def forward(self, tokens):
        return self.x


def test_learned_positions_end_where_their_table_ends():
    table = LearnedPositions(7, 3)
    with pytest.raises(ValueError, match="the sequence has 8 tokens, but the model has 7 learned positions"):
        table(torch.arange(8)[None], 8)


def test_sinusoidal_positions_equal_vaswani_2017():
    x = SinusoidalPositions(4)(torch.tensor([[3]]), 4)
    torch.testing.assert_close(SinusoidalPositions(4, size=0.5)(torch.tensor([[3]]), 4), x / 2)
    expected = [math.sin(3), math.cos(3), math.sin(3 / 100), math.cos(3 / 100)]
    assert x[0, 0].tolist() == pytest.approx(expected)


def test_recurrent_weights_depend_only_on_seed_and_name(compose):
    torch.manual_seed(0)
    one = build_model(compose("model=gru", "position=none"), 31)
    torch.manual_seed(1)
    two = build_model(compose("model=gru", "position=none"), 31)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    first, second = (block.mixer.cell.weight_hh_l0 for block in one.blocks)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_recurrent_mixers_are_causal_and_cache_free(compose, cell):
    model = build_model(compose(f"model={cell}", "position=none"), 31).double()
    tokens = torch.arange(13)[None]
    changed = tokens.clone()
    changed[0, 7] = 29
    a, b = model(tokens), model(changed)
    assert torch.equal(a[0, :7], b[0, :7])
    assert not torch.allclose(a[0, 7:], b[0, 7:])
    assert model.state_size() == 0
