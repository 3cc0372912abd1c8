"""Mutant RoPE functions, RoPE scalings and position embeddings."""

import torch
from torch import nn

from attnlab.attention.rotary import Rope
from attnlab.attention.rotary_scaling import DynamicNtk

from .builders import VariantFactory, make_attention_factory, make_object_node
from .parts import InterleavedRope


def slots(positions):
    """Rotate by the slot in the chunk instead of the position."""
    return Rope(base=100.0)(torch.arange(positions.shape[1])[None])


def from_the_last(positions):
    return Rope(base=100.0)(positions - positions[:, -1:])


def one_behind_in_a_step(positions):
    return Rope(base=100.0)(positions - 1 if positions.shape[1] == 1 else positions)


def in_half(positions):
    return Rope(base=100.0)(positions.half() / 3)


def in_bfloat16(positions):
    return Rope(base=100.0)(positions.bfloat16())


def squared_positions(positions):
    return Rope(base=100.0)(positions**2)


def table_of_64(positions):
    return Rope(base=100.0)(positions.clamp(max=63))


def table_of_256(positions):
    return Rope(base=100.0)(positions % 256)


def new_every_512(positions):
    """Interpolate positions once the context reaches 512 tokens."""
    return Rope(base=100.0)(torch.where(positions < 512, positions, positions / 2))


class ByCount:
    """Caches rotations by the number of positions."""

    def __init__(self):
        self.turns = {}

    def __call__(self, positions):
        return self.turns.setdefault(tuple(positions.shape), Rope(base=100.0)(positions))


class UndeclaredScaling:
    """Scales with the length without a declaration."""

    def __init__(self, trained):
        self.ntk = DynamicNtk(trained)

    def __call__(self, frequencies, base, positions):
        return self.ntk(frequencies, base, positions)


class GrowingNorm(InterleavedRope):
    """Scales queries and keys up with the position."""

    def pair(self, a, b, angle, where):
        return tuple(part * 1.01**where for part in super().pair(a, b, angle, where))


class MirroredRope(InterleavedRope):
    """Has a wrong sign, so it is no rotation."""

    def pair(self, a, b, angle, where):
        return a * angle.cos() - b * angle.sin(), b * angle.cos() - a * angle.sin()


class TableOfSlots(nn.Module):
    """A learned vector for every slot of the chunk."""

    def __init__(self, length, dim):
        super().__init__()
        self.table = nn.Embedding(length, dim)

    def forward(self, positions, length):
        return self.table(torch.arange(positions.shape[1])[None])


def with_rotary(rotary, **options) -> VariantFactory:
    return make_attention_factory(rotary=make_object_node(rotary, **options))


def with_rotary_function(rotary) -> VariantFactory:
    return with_rotary(rotary, _partial_=True)


def with_rope_scaling(scaling, **options) -> VariantFactory:
    return make_attention_factory(rotary=make_object_node(Rope, scaling=make_object_node(scaling, **options)))


def with_position_embedding(positions, **options) -> VariantFactory:
    return make_attention_factory({"position": "none"}, positions=make_object_node(positions, **options))


MUTANTS: dict[str, VariantFactory] = {
    "rotation by slot": with_rotary_function(slots),
    "rotation counted from the last token": with_rotary_function(from_the_last),
    "rotation one behind in a step": with_rotary_function(one_behind_in_a_step),
    "thirds of positions in half precision": with_rotary_function(in_half),
    "positions in bfloat16": with_rotary_function(in_bfloat16),
    "positions squared": with_rotary_function(squared_positions),
    "a table of 64 positions, the last one repeated": with_rotary_function(table_of_64),
    "a table of 256 positions that begins again": with_rotary_function(table_of_256),
    "positions squeezed from 512 on": with_rotary_function(new_every_512),
    "tables kept by the number of positions": with_rotary(ByCount),
    "a scaling by length that does not say so": with_rope_scaling(UndeclaredScaling, trained=5),
    "a scaling by length that does not say so, beyond 64": with_rope_scaling(UndeclaredScaling, trained=64),
    "rotation that lengthens what it turns": with_rotary(GrowingNorm),
    "a mirror for a rotation": with_rotary(MirroredRope),
    "learned positions by slot": with_position_embedding(TableOfSlots, length=200, dim=48),
}
