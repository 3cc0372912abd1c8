"""Rotations, scalings and embedded positions with a bug."""

import torch
from torch import nn

from attnlab.attention.rotary import Rope
from attnlab.attention.scaling import DynamicNtk

from .making import Make, attention, made
from .parts import Neighbours


def slots(positions):
    """Where the tokens stand in the chunk, whatever their positions."""
    return Rope(base=100.0)(torch.arange(positions.shape[1])[None])


def from_the_last(positions):
    return Rope(base=100.0)(positions - positions[:, -1:])


def one_behind_in_a_step(positions):
    return Rope(base=100.0)(positions - 1 if positions.shape[1] == 1 else positions)


def in_half(positions):
    return Rope(base=100.0)(positions.half() / 3)


def in_bfloat16(positions):
    return Rope(base=100.0)(positions.bfloat16())


def squared(positions):
    return Rope(base=100.0)(positions**2)


def table_of_64(positions):
    return Rope(base=100.0)(positions.clamp(max=63))


def table_of_256(positions):
    return Rope(base=100.0)(positions % 256)


def new_every_512(positions):
    """A longer context is squeezed once it is reached."""
    return Rope(base=100.0)(torch.where(positions < 512, positions, positions / 2))


class OtherInEvaluation(nn.Module):
    """Interpolated positions in evaluation, in training as they are."""

    def forward(self, positions):
        return Rope(base=100.0)(positions if self.training else positions / 2)


class ByCount:
    """Tables are kept by how many positions there are."""

    def __init__(self):
        self.turns = {}

    def __call__(self, positions):
        return self.turns.setdefault(tuple(positions.shape), Rope(base=100.0)(positions))


class Silent:
    """It stretches with the length and does not say so."""

    def __init__(self, trained):
        self.ntk = DynamicNtk(trained)

    def __call__(self, frequencies, base, positions):
        return self.ntk(frequencies, base, positions)


class Lengthening(Neighbours):
    """What turns grows with the position, queries and keys alike."""

    def pair(self, a, b, angle, where):
        return tuple(part * 1.01**where for part in super().pair(a, b, angle, where))


class Mirrored(Neighbours):
    """A sign that is wrong: no rotation any more."""

    def pair(self, a, b, angle, where):
        return a * angle.cos() - b * angle.sin(), b * angle.cos() - a * angle.sin()


class TableOfSlots(nn.Module):
    """A learned vector for every slot of the chunk."""

    def __init__(self, length, dim):
        super().__init__()
        self.table = nn.Embedding(length, dim)

    def forward(self, positions, length):
        return self.table(torch.arange(positions.shape[1])[None])


class ShareOfTheText(nn.Module):
    """Where in the text a token stands, from 0 to 1."""

    def __init__(self, dim):
        super().__init__()
        self.direction = nn.Parameter(torch.ones(dim))

    def forward(self, positions, length):
        return positions[..., None] / length * self.direction


class AddedBackwards(TableOfSlots):
    """The last token of what there is stands at 0."""

    def forward(self, positions, length):
        return self.table((length - 1 - positions).clamp(0, len(self.table.weight) - 1))


def turning(rotary, **options) -> Make:
    return attention(rotary=made(rotary, **options))


def function(rotary) -> Make:
    return turning(rotary, _partial_=True)


def scaled(scaling, **options) -> Make:
    return attention(rotary=made(Rope, scaling=made(scaling, **options)))


def embedded(positions, **options) -> Make:
    return attention({"position": "none"}, positions=made(positions, **options))


PLANTED: dict[str, Make] = {
    "rotation by slot": function(slots),
    "rotation counted from the last token": function(from_the_last),
    "rotation one behind in a step": function(one_behind_in_a_step),
    "thirds of positions in half precision": function(in_half),
    "positions in bfloat16": function(in_bfloat16),
    "positions squared": function(squared),
    "a table of 64 positions, the last one repeated": function(table_of_64),
    "a table of 256 positions that begins again": function(table_of_256),
    "positions squeezed from 512 on": function(new_every_512),
    "another rotation in evaluation": turning(OtherInEvaluation),
    "tables kept by the number of positions": turning(ByCount),
    "a scaling by length that does not say so": scaled(Silent, trained=5),
    "a scaling by length that does not say so, beyond 64": scaled(Silent, trained=64),
    "rotation that lengthens what it turns": turning(Lengthening),
    "a mirror for a rotation": turning(Mirrored),
    "learned positions by slot": embedded(TableOfSlots, length=200, dim=48),
    "positions as a share of the text": embedded(ShareOfTheText, dim=48),
    "positions counted from the end": embedded(AddedBackwards, length=40, dim=48),
}
