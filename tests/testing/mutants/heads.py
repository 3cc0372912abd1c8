"""Mutant heads: wrong projections, rotations, caches and counts."""

import torch
from torch import nn

from attnlab.attention.heads.latent import LatentHeads

from .builders import VariantFactory, make_attention_factory, make_object_node
from .parts import CustomHeads


class KeysStay(CustomHeads):
    def project(self, x, rotate):
        q, k, v = self.split_projections(x)
        return rotate(q), (k, v)


class ValuesTurn(CustomHeads):
    def project(self, x, rotate):
        q, k, v = self.split_projections(x)
        return rotate(q), (rotate(k), rotate(v))


class KeysTurnTwice(CustomHeads):
    def project(self, x, rotate):
        q, k, v = self.split_projections(x)
        return rotate(q), (rotate(rotate(k)), v)


class ValuesForKeys(CustomHeads):
    """Swaps the parts of the state: rotated keys become values."""

    def expand(self, state):
        return state[1], state[0]


class Tiled(CustomHeads):
    def expand(self, state):
        return tuple(part.repeat(1, self.n_heads // self.n_kv_heads, 1, 1) for part in state)


class TiledValues(CustomHeads):
    """Repeats keys within a group but tiles values across groups."""

    def expand(self, state):
        n_repeats = self.n_heads // self.n_kv_heads
        return state[0].repeat_interleave(n_repeats, 1), state[1].repeat(1, n_repeats, 1, 1)


class SlotsAdded(CustomHeads):
    """Adds a sinusoid of the slot to the keys when they are read."""

    def expand(self, state):
        k, v = state
        slots = torch.arange(k.shape[2], device=k.device, dtype=k.dtype)
        return k + (slots / 10).sin()[:, None], v


class BatchNormed(CustomHeads):
    """Normalizes over the batch in training, so a token depends on all others."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.norm = nn.BatchNorm1d(dim)

    def project(self, x, rotate):
        return super().project(self.norm(x.transpose(1, 2)).transpose(1, 2), rotate)


class HalvedInEvaluation(CustomHeads):
    def project(self, x, rotate):
        q, (k, v) = super().project(x, rotate)
        return q, (k if self.training else k / 2, v)


class ThroughHalf(CustomHeads):
    """Rounds keys to bfloat16 before they are rotated."""

    def project(self, x, rotate):
        return super().project(x, lambda part: rotate(part.bfloat16().to(part.dtype)))


class UntransposedSplit(CustomHeads):
    """Splits heads without a transpose."""

    def split_projections(self, x):
        parts = self.qkv(x).split(self.widths, -1)
        return (part.reshape(len(x), -1, x.shape[1], self.head_dim) for part in parts)


class DetachedKeys(CustomHeads):
    def project(self, x, rotate):
        q, (k, v) = super().project(x, rotate)
        return q, (k.detach(), v)


class WrongWidth(CustomHeads):
    """Scales by the model's hidden size."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.score_dim = dim


class ScaledAbsorbedQueries(LatentHeads):
    """Scales absorbed queries up by a thousandth."""

    def project(self, x, rotate):
        q, state = super().project(x, rotate)
        return q * 1.001 if self.absorbed else q, state


def with_heads(heads, n_heads=5, n_kv_heads=5, position="rope") -> VariantFactory:
    sizes = {"dim": 6 * n_heads, "n_heads": n_heads, "n_kv_heads": n_kv_heads}
    return make_attention_factory({"position": position}, heads=make_object_node(heads, **sizes))


LATENT = {"dim": 36, "n_heads": 3, "rank": 10, "head_dim": 8, "rope_dim": 4, "bias": False, "out_bias": False}

MUTANTS: dict[str, VariantFactory] = {
    "keys that do not turn": with_heads(KeysStay),
    "values that turn": with_heads(ValuesTurn),
    "keys that turn twice": with_heads(KeysTurnTwice),
    "keys and values in the other order": with_heads(ValuesForKeys, 4, 2),
    "own groups tiled, not repeated": with_heads(Tiled, 6, 3),
    "groups repeated for keys and tiled for values": with_heads(TiledValues, 4, 2),
    "slots added to the keys": with_heads(SlotsAdded, position="none"),
    "batch norm before the projection": with_heads(BatchNormed),
    "keys that are halved in evaluation only": with_heads(HalvedInEvaluation),
    "queries and keys through bfloat16": with_heads(ThroughHalf),
    "heads split without a transpose": with_heads(UntransposedSplit),
    "keys without a gradient": with_heads(DetachedKeys),
    "a scale by the model's width": with_heads(WrongWidth),
    "absorbed queries that are too long": make_attention_factory(
        heads=make_object_node(ScaledAbsorbedQueries, **LATENT)
    ),
}
