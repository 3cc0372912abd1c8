"""Scores with a bug: not pointwise, not of positions, not what they say they are."""

import torch
from torch import nn

from attnlab.attention.scores.alibi import Alibi
from attnlab.attention.scores.bias import Bias

from .making import Make, attention, found, made


class SaysOther(Bias):
    """Its bias is linear; what it adds is bounded."""

    def bias(self, b, h, q_pos, kv_pos):
        return -(q_pos - kv_pos).abs().double() / 5

    def forward(self, score, b, h, q_pos, kv_pos):
        return score + self.bias(b, h, q_pos, kv_pos).clamp(min=-1)


class AlsoCaps(Alibi):
    """A bias by type that caps the sum too."""

    def forward(self, score, *at):
        return 3 * torch.tanh(super().forward(score, *at) / 3)


class Rewards(Alibi):
    """The sign: what is far away is preferred, without bound."""

    def bias(self, b, h, q_pos, kv_pos):
        return -super().bias(b, h, q_pos, kv_pos)


class SlopesByRow(Alibi):
    def bias(self, b, h, q_pos, kv_pos):
        return super().bias(b, b, q_pos, kv_pos)


def by_slots(score, b, h, q_pos, kv_pos):
    S = score.shape[-1]
    return score - (torch.arange(S - score.shape[-2], S)[:, None] - torch.arange(S)).abs() / 4


def by_the_number_of_keys(score, b, h, q_pos, kv_pos):
    """Sharper with more keys: as many as there are, not as the query sees."""
    return score * torch.tensor(kv_pos.shape[-1] + 1.0).log().to(score.dtype)


def by_the_newest(score, b, h, q_pos, kv_pos):
    return score - (kv_pos.max() - kv_pos) / 10


def over_keys(score, b, h, q_pos, kv_pos):
    return score / (1 + score.abs().amax(-1, keepdim=True))


def softmaxed(score, b, h, q_pos, kv_pos):
    return 8 * score.softmax(-1)


def centred(score, b, h, q_pos, kv_pos):
    """Nothing to the weights, all to the lse that a sink is weighed against."""
    return score - score.mean(-1, keepdim=True)


def rows_mixed(score, b, h, q_pos, kv_pos):
    return score + score.mean(0, keepdim=True) / 10


def heads_mixed(score, b, h, q_pos, kv_pos):
    return score + score.mean(-3, keepdim=True) / 10


def next_score(score, b, h, q_pos, kv_pos):
    """A convolution over keys: every score has a part of the next one's."""
    return score + score.roll(-1, -1) / 4


def drops_scores(score, b, h, q_pos, kv_pos):
    return score * (torch.rand(score.shape) > 0.02)


class Root(nn.Module):
    """|distance| to a learned power, through a logarithm: at distance 0 its gradient is no number."""

    def __init__(self):
        super().__init__()
        self.power = nn.Parameter(torch.tensor(0.5))

    def forward(self, score, b, h, q_pos, kv_pos):
        distance = (q_pos - kv_pos).abs().to(score.dtype)
        return score - (self.power * distance.log()).exp()


class ShortTable(nn.Module):
    """A learned number for each of 32 distances, and none beyond."""

    size = 32

    def __init__(self, n_heads):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(n_heads, self.size))

    def forward(self, score, b, h, q_pos, kv_pos):
        return score + self.table[h, (q_pos - kv_pos).clamp(min=0)].to(score.dtype)


class OfTheNewest(ShortTable):
    """The newest query's distances serve all."""

    def forward(self, score, b, h, q_pos, kv_pos):
        distance = (q_pos - kv_pos)[..., -1:, :].clamp(0, self.size - 1)
        return score + self.table[h, distance].to(score.dtype)


class Listed(nn.Module):
    """Learned numbers in a plain list: no optimizer finds them."""

    def __init__(self, n_heads):
        super().__init__()
        self.slopes = [nn.Parameter(torch.tensor(0.1 * n)) for n in range(1, n_heads + 1)]

    def forward(self, score, b, h, q_pos, kv_pos):
        slopes = torch.stack(self.slopes).to(score.dtype)
        return score - slopes[h] * (q_pos - kv_pos).abs()


class FirstDistances(nn.Module):
    """The distances of the first call are kept for those of its shape."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, score, b, h, q_pos, kv_pos):
        distance = self.kept.setdefault(tuple(score.shape[-2:]), (q_pos - kv_pos).abs())
        return score - distance / 4


class OtherInTraining(nn.Module):
    def forward(self, score, b, h, q_pos, kv_pos):
        return score / 4 if self.training else score


class Momentum(nn.Module):
    """A tenth of the largest score of the last call."""

    def __init__(self):
        super().__init__()
        self.last = 0.0

    def forward(self, score, b, h, q_pos, kv_pos):
        before, self.last = self.last, score.detach().abs().amax()
        return score / (1 + before / 10)


def scored(node, **axes) -> Make:
    return attention({"position": "none", **axes}, scores={"own": node})


PLANTED: dict[str, Make] = {
    "a bias that adds other than it says": scored(made(SaysOther)),
    "a bias that adds other than it says, fused": scored(made(SaysOther), kernel="sdpa"),
    "a bias that caps, fused": scored(made(AlsoCaps, n_heads=6), kernel="sdpa"),
    "a penalty with the wrong sign": scored(made(Rewards, n_heads=6)),
    "slopes by row": scored(made(SlopesByRow, n_heads=6)),
    "distances between slots": scored(found(by_slots)),
    "scores by the number of keys": scored(found(by_the_number_of_keys)),
    "distances from the newest key": scored(found(by_the_newest), mask="window"),
    "scores by the largest of a row": scored(found(over_keys)),
    "a softmax before the softmax": scored(found(softmaxed)),
    "scores centred over keys, beside a sink": scored(found(centred), epilogue="sinks"),
    "scores mixed over the batch": scored(found(rows_mixed)),
    "scores mixed over the heads": scored(found(heads_mixed), heads="gqa"),
    "scores with a part of the next key's": scored(found(next_score)),
    "scores dropped at random": scored(found(drops_scores)),
    "a power without a gradient at distance 0": scored(made(Root)),
    "a table of 32 distances and no more": scored(made(ShortTable, n_heads=6)),
    "the newest query's distances for all": scored(made(OfTheNewest, n_heads=6)),
    "learned slopes in a plain list": scored(made(Listed, n_heads=6)),
    "distances kept by shape": scored(made(FirstDistances)),
    "scores that are softer in training": scored(made(OtherInTraining)),
    "scores that remember the last call": scored(made(Momentum)),
}
