"""Mutant scores: not pointwise, not by position, or not as declared."""

import torch
from torch import nn

from attnlab.attention.scores.alibi import Alibi
from attnlab.attention.scores.bias import Bias

from .builders import VariantFactory, make_attention_factory, make_function_node, make_object_node


class MisstatedBias(Bias):
    """Its `compute_bias` is linear, but it adds a bounded one."""

    def compute_bias(self, b, h, q_idx, kv_idx):
        return -(q_idx - kv_idx).abs().double() / 5

    def forward(self, score, b, h, q_idx, kv_idx):
        return score + self.compute_bias(b, h, q_idx, kv_idx).clamp(min=-1)


class CappedBias(Alibi):
    """A `Bias` that also caps the sum."""

    def forward(self, score, *at):
        return 3 * torch.tanh(super().forward(score, *at) / 3)


class WrongSignAlibi(Alibi):
    """ALiBi with the wrong sign: prefers distant keys, without bound."""

    def compute_bias(self, b, h, q_idx, kv_idx):
        return -super().compute_bias(b, h, q_idx, kv_idx)


class SlopesByRow(Alibi):
    def compute_bias(self, b, h, q_idx, kv_idx):
        return super().compute_bias(b, b, q_idx, kv_idx)


def by_slots(score, b, h, q_idx, kv_idx):
    S = score.shape[-1]
    return score - (torch.arange(S - score.shape[-2], S)[:, None] - torch.arange(S)).abs() / 4


def by_the_number_of_keys(score, b, h, q_idx, kv_idx):
    """Scale by the number of all keys instead of the visible ones."""
    return score * torch.tensor(kv_idx.shape[-1] + 1.0).log().to(score.dtype)


def by_the_newest(score, b, h, q_idx, kv_idx):
    return score - (kv_idx.max() - kv_idx) / 10


def double_softmax(score, b, h, q_idx, kv_idx):
    return 8 * score.softmax(-1)


def zero_mean_scores(score, b, h, q_idx, kv_idx):
    """Leave the weights unchanged but change the lse that a sink is compared with."""
    return score - score.mean(-1, keepdim=True)


class Root(nn.Module):
    """|distance| to a learned power, by a logarithm: the gradient at distance 0 is not a number."""

    def __init__(self):
        super().__init__()
        self.power = nn.Parameter(torch.tensor(0.5))

    def forward(self, score, b, h, q_idx, kv_idx):
        distance = (q_idx - kv_idx).abs().to(score.dtype)
        return score - (self.power * distance.log()).exp()


class ShortTable(nn.Module):
    """A learned number for each of 32 distances, and none beyond."""

    size = 32

    def __init__(self, n_heads):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(n_heads, self.size))

    def forward(self, score, b, h, q_idx, kv_idx):
        return score + self.table[h, (q_idx - kv_idx).clamp(min=0)].to(score.dtype)


class OfTheNewest(ShortTable):
    """Uses the newest query's distances for all queries."""

    def forward(self, score, b, h, q_idx, kv_idx):
        distance = (q_idx - kv_idx)[..., -1:, :].clamp(0, self.size - 1)
        return score + self.table[h, distance].to(score.dtype)


class Listed(nn.Module):
    """Learned numbers in a plain list, where no optimizer finds them."""

    def __init__(self, n_heads):
        super().__init__()
        self.slopes = [nn.Parameter(torch.tensor(0.1 * n)) for n in range(1, n_heads + 1)]

    def forward(self, score, b, h, q_idx, kv_idx):
        slopes = torch.stack(self.slopes).to(score.dtype)
        return score - slopes[h] * (q_idx - kv_idx).abs()


class ShapeKeyedDistances(nn.Module):
    """Caches the distances of the first call by shape."""

    def __init__(self):
        super().__init__()
        self.distances = {}

    def forward(self, score, b, h, q_idx, kv_idx):
        distance = self.distances.setdefault(tuple(score.shape[-2:]), (q_idx - kv_idx).abs())
        return score - distance / 4


def with_score(node, **axes) -> VariantFactory:
    return make_attention_factory({"position": "none", **axes}, scores={"own": node})


MUTANTS: dict[str, VariantFactory] = {
    "a bias that adds other than it says": with_score(make_object_node(MisstatedBias)),
    "a bias that adds other than it says, fused": with_score(make_object_node(MisstatedBias), kernel="sdpa"),
    "a bias that caps, fused": with_score(make_object_node(CappedBias, n_heads=6), kernel="sdpa"),
    "a penalty with the wrong sign": with_score(make_object_node(WrongSignAlibi, n_heads=6)),
    "slopes by row": with_score(make_object_node(SlopesByRow, n_heads=6)),
    "distances between slots": with_score(make_function_node(by_slots)),
    "scores by the number of keys": with_score(make_function_node(by_the_number_of_keys)),
    "distances from the newest key": with_score(make_function_node(by_the_newest), mask="window"),
    "a softmax before the softmax": with_score(make_function_node(double_softmax)),
    "scores centered over keys, beside a sink": with_score(
        make_function_node(zero_mean_scores), epilogue="sinks"
    ),
    "a power without a gradient at distance 0": with_score(make_object_node(Root)),
    "a table of 32 distances and no more": with_score(make_object_node(ShortTable, n_heads=6)),
    "the newest query's distances for all": with_score(make_object_node(OfTheNewest, n_heads=6)),
    "learned slopes in a plain list": with_score(make_object_node(Listed, n_heads=6)),
    "distances kept by shape": with_score(make_object_node(ShapeKeyedDistances)),
}
