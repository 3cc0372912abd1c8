"""Mixture of experts per token; latent heads with q_rank or value_dim: absorption, decoding and cost."""

import pytest
import torch
from torch import nn

from attnlab.attention.cache import DynamicCache
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.rotary import Rope
from attnlab.attention.scores.alibi import Alibi, CoarseAlibi
from attnlab.measure.generation_costs import count_generation_cost, predict_generation_cost
from attnlab.model.experts import Experts
from attnlab.model.transformer import SwiGlu, Transformer
from attnlab.testing.invariants.variant import randomize

M, F, E = 6, 5, 4
X = torch.randn(2, 3, M, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("bias", [True, False])
def test_output_is_the_weighted_sum_of_the_top_experts(bias):
    mixture = randomize(Experts(M, F, bias, E, 2, sharpness=1.3, limit=0.6)).double()
    up, down = mixture.up.weight.view(E, 2, F, M), mixture.down.weight.view(E, M, F)
    for x, actual in zip(X.flatten(0, 1), mixture(X).flatten(0, 1), strict=True):
        top = mixture.router(x).topk(2)
        weights = top.values.softmax(0)
        expected = torch.zeros(M, dtype=torch.float64)
        for weight, n in zip(weights, top.indices, strict=True):
            gate, scale = up[n] @ x
            if bias:
                gate, scale = torch.stack((gate, scale)) + mixture.up.bias.view(E, 2, F)[n]
            gate = gate.clamp(max=0.6)
            hidden = (scale.clamp(-0.6, 0.6) + 1) * gate * (1.3 * gate).sigmoid()
            expected = expected + weight * (
                down[n] @ hidden + (mixture.down.bias.view(E, M)[n] if bias else 0)
            )
        torch.testing.assert_close(actual, expected)
    with pytest.raises(ValueError, match="n_chosen=5 and n_experts=4"):
        Experts(M, F, bias, E, 5)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("shared_width", [None, 7])
def test_swiglu_experts_equal_swiglu_ffns_with_probabilities_of_all_experts(renormalize, shared_width):
    mixture = randomize(
        Experts(M, F, False, E, 2, sharpness=1.0, limit=None, offset=0.0, renormalize=renormalize,
                shared_width=shared_width)
    ).double()  # fmt: skip
    expected = torch.zeros_like(X)
    probabilities, chosen = mixture.router(X).softmax(-1).topk(2)
    if renormalize:
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    for n in range(E):
        expert = SwiGlu(M, F, bias=False).double()
        expert.up.weight.data = mixture.up.weight.view(E, 2 * F, M)[n]
        expert.down.weight.data = mixture.down.weight.view(E, M, F)[n]
        expected = expected + (probabilities * (chosen == n)).sum(-1, keepdim=True) * expert(X)
    if shared_width:
        expected = expected + mixture.shared_gate(X).sigmoid() * mixture.shared(X)
    torch.testing.assert_close(mixture(X), expected)


def make_model(**heads):
    def make_mixer(layer):
        return Attention(
            LatentHeads(12, 3, 7, 6, 4, False, False, **heads), eager, {"causal": causal}, rotary=Rope()
        )

    transformer = Transformer(
        make_mixer, vocab_size=13, dim=12, n_layers=2, ffn_width=F, norm=nn.RMSNorm, bias=True, tie=False,
        ffn=lambda dim, width, bias: Experts(dim, width, bias, E, 2), dropout=0.0, init_std=0.5, qk_gain=None,
        seed=0,
    )  # fmt: skip
    return randomize(transformer).double().eval()


@torch.no_grad()
@pytest.mark.parametrize(
    "heads", [{"q_rank": 5}, {"value_dim": 8}, {"q_rank": 9, "value_dim": 3, "norm_eps": 0.1}]
)
def test_latent_variants_agree_when_absorbed_and_cached_and_match_their_cost(heads):
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
    plain, absorbed = make_model(**heads), make_model(**heads, absorbed=True)
    torch.testing.assert_close(plain(tokens), absorbed(tokens), rtol=0, atol=1e-12)
    caches = [DynamicCache() for _ in plain.blocks]
    steps = [plain(tokens[:, n : n + 1], caches=caches) for n in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), plain(tokens), rtol=0, atol=1e-12)
    assert count_generation_cost(plain, tokens, 3, DynamicCache) == predict_generation_cost(
        plain, 1, 6, 3, cached=True
    )


def test_coarse_alibi_equals_alibi_within_bfloat16_precision():
    q_idx, kv_idx = torch.arange(9)[None, None, :, None], torch.arange(9)[None, None, None, :]
    b, h = torch.zeros(1, 1, 1, 1, dtype=torch.long), torch.arange(8)[None, :, None, None]
    scores = torch.zeros(1, 8, 9, 9).masked_fill(kv_idx > q_idx, -torch.inf)
    fine = Alibi(8)(scores / 0.5, b, h, q_idx, kv_idx) * 0.5
    coarse = CoarseAlibi(8, 0.5)(scores, b, h, q_idx, kv_idx)
    torch.testing.assert_close(coarse.softmax(-1), fine.softmax(-1))
    far = torch.tensor([256, 257])[None, None, None]
    assert (
        CoarseAlibi(8, 1.0).compute_bias(b, h, q_idx, far).unique().numel() == 8
    )  # bfloat16 cannot represent 257
