"""Heads with a bug: what they project, turn, cache and count."""

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.heads.projections import merged

from .making import Make, attention, made
from .parts import OwnHeads

SHARED = nn.Linear(30, 30, bias=False)


class KeysStay(OwnHeads):
    def project(self, x, rotate):
        q, k, v = self.split(x)
        return rotate(q), (k, v)


class ValuesTurn(OwnHeads):
    def project(self, x, rotate):
        q, k, v = self.split(x)
        return rotate(q), (rotate(k), rotate(v))


class KeysTurnTwice(OwnHeads):
    def project(self, x, rotate):
        q, k, v = self.split(x)
        return rotate(q), (rotate(rotate(k)), v)


class ValuesForKeys(OwnHeads):
    """The state's parts are read in the other order: what turned becomes the values."""

    def expand(self, state):
        return state[1], state[0]


class Tiled(OwnHeads):
    def expand(self, state):
        return tuple(part.repeat(1, self.n_heads // self.n_kv_heads, 1, 1) for part in state)


class TiledValues(OwnHeads):
    """Keys are repeated within a group, values across the groups."""

    def expand(self, state):
        times = self.n_heads // self.n_kv_heads
        return state[0].repeat_interleave(times, 1), state[1].repeat(1, times, 1, 1)


class CentredValues(OwnHeads):
    """The mean of all keys that are there, later ones too."""

    def expand(self, state):
        k, v = state
        return k, v - v.mean(2, keepdim=True)


class SlotsAdded(OwnHeads):
    """A place is added to the keys when they are read: that of the slot."""

    def expand(self, state):
        k, v = state
        where = torch.arange(k.shape[2], device=k.device, dtype=k.dtype)
        return k + (where / 10).sin()[:, None], v


class NextKeys(OwnHeads):
    """Keys of the token that comes next."""

    def project(self, x, rotate):
        q, (_, v) = super().project(x, rotate)
        return q, (super().project(x.roll(-1, 1), rotate)[1][0], v)


class PreviousValues(OwnHeads):
    """Values of the token before, which a step of one token does not have."""

    def project(self, x, rotate):
        q, (k, v) = super().project(x, rotate)
        return q, (k, F.pad(v, (0, 0, 1, 0))[:, :, :-1])


class WhisperOfTheMean(OwnHeads):
    def project(self, x, rotate):
        return super().project(x + 1e-4 * x.mean(1, keepdim=True), rotate)


class NormedOverTime(OwnHeads):
    def project(self, x, rotate):
        q, (k, v) = super().project(x, rotate)
        return q, (F.normalize(k, dim=2), v)


class CentredOverRows(OwnHeads):
    def project(self, x, rotate):
        return super().project(x - x.mean(0, keepdim=True), rotate)


class BatchNormed(OwnHeads):
    """In training, what a token becomes depends on all tokens of the batch."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.norm = nn.BatchNorm1d(dim)

    def project(self, x, rotate):
        return super().project(self.norm(x.transpose(1, 2)).transpose(1, 2), rotate)


class HalvedInEvaluation(OwnHeads):
    def project(self, x, rotate):
        q, (k, v) = super().project(x, rotate)
        return q, (k if self.training else k / 2, v)


class PeeksInTraining(OwnHeads):
    def project(self, x, rotate):
        q, (k, v) = super().project(x, rotate)
        return q, (k, v + v.roll(-1, 2) / 10 if self.training else v)


class InPlace(OwnHeads):
    def project(self, x, rotate):
        return super().project(x.mul_(1.5), rotate)


class ThroughHalf(OwnHeads):
    """Keys lose their last digits before they turn."""

    def project(self, x, rotate):
        return super().project(x, lambda part: rotate(part.bfloat16().to(part.dtype)))


class Unsplit(OwnHeads):
    """A view by heads that forgets to transpose."""

    def split(self, x):
        parts = self.qkv(x).split(self.widths, -1)
        return (part.reshape(len(x), -1, x.shape[1], self.head_dim) for part in parts)


class Unmerged(OwnHeads):
    """A merge that forgets to transpose."""

    def merge(self, y):
        return self.out(y.reshape(len(y), y.shape[2], -1))


class AlwaysDrops(OwnHeads):
    def merge(self, y):
        return self.out(F.dropout(merged(y), 0.1))


class DetachedKeys(OwnHeads):
    def project(self, x, rotate):
        q, (k, v) = super().project(x, rotate)
        return q, (k.detach(), v)


class OneForAll(OwnHeads):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.out = SHARED


class Unused(OwnHeads):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.bonus = nn.Linear(dim, n_heads)


class WrongWidth(OwnHeads):
    """The scale counts the model's width."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.score_dim = dim


class Lopsided(LatentHeads):
    """Absorbed queries are a thousandth too long."""

    def project(self, x, rotate):
        q, state = super().project(x, rotate)
        return q * 1.001 if self.absorbed else q, state


def headed(heads, n_heads=5, n_kv_heads=5, position="rope") -> Make:
    sizes = {"dim": 6 * n_heads, "n_heads": n_heads, "n_kv_heads": n_kv_heads}
    return attention({"position": position}, heads=made(heads, **sizes))


LATENT = {"dim": 36, "n_heads": 3, "rank": 10, "head_dim": 8, "rope_dim": 4, "bias": False, "out_bias": False}

PLANTED: dict[str, Make] = {
    "keys that do not turn": headed(KeysStay),
    "values that turn": headed(ValuesTurn),
    "keys that turn twice": headed(KeysTurnTwice),
    "keys and values in the other order": headed(ValuesForKeys, 4, 2),
    "own groups tiled, not repeated": headed(Tiled, 6, 3),
    "groups repeated for keys and tiled for values": headed(TiledValues, 4, 2),
    "values centred over all keys": headed(CentredValues),
    "slots added to the keys": headed(SlotsAdded, position="none"),
    "keys of the next token": headed(NextKeys, 4, 1),
    "values of the token before, lost in a step": headed(PreviousValues),
    "a ten-thousandth of the mean over the text": headed(WhisperOfTheMean),
    "keys normalised over the time": headed(NormedOverTime),
    "inputs centred over the batch": headed(CentredOverRows),
    "batch norm before the projection": headed(BatchNormed),
    "keys that are halved in evaluation only": headed(HalvedInEvaluation),
    "values that peek at the next token in training only": headed(PeeksInTraining),
    "an input that is changed in place": headed(InPlace),
    "queries and keys through bfloat16": headed(ThroughHalf),
    "heads split without a transpose": headed(Unsplit),
    "heads merged without a transpose": headed(Unmerged),
    "dropout that is always on, in the heads": headed(AlwaysDrops),
    "keys without a gradient": headed(DetachedKeys),
    "layers that share an output through a global": headed(OneForAll),
    "a parameter that is never used": headed(Unused),
    "a scale by the model's width": headed(WrongWidth),
    "absorbed queries that are too long": attention(heads=made(Lopsided, **LATENT)),
}
