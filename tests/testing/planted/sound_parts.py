"""Odd and right, part by part: masks, rotations, scores, epilogues and caches that keep their contracts in a
way that the shipped ones do not.
"""

from dataclasses import dataclass

import torch
from torch import nn

from attnlab.attention.contracts import declares

from .caches import cached, windowed
from .epilogues import Gate, Sink, ended
from .making import Make, found, made
from .masks import masked
from .parts import Growing, Neighbours, Ring
from .positions import turning
from .scores import scored


def local_and_global_heads(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) & ((h % 2 == 1) | (q_pos - kv_pos < 4))


def strictly_past(b, h, q_pos, kv_pos):
    """The first query sees nothing."""
    return kv_pos < q_pos


def dilated(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) & ((q_pos - kv_pos) % 3 == 0)


def block_local(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) & (kv_pos // 4 == q_pos // 4)


def every_eighth_and_near(b, h, q_pos, kv_pos):
    return (kv_pos <= q_pos) & ((q_pos - kv_pos < 3) | (kv_pos % 8 == 0))


@declares(looks_ahead=True)
def open_blocks(b, h, q_pos, kv_pos):
    """Blocks of four that see all of themselves, and say so."""
    return kv_pos // 4 <= q_pos // 4


@dataclass(frozen=True)
class Wide:
    size: int = 5000

    def __call__(self, b, h, q_pos, kv_pos):
        return (kv_pos <= q_pos) & (q_pos - kv_pos < self.size)


class ByHash:
    """Of any size; equal ones are one key."""

    def __init__(self, size):
        self.size = size

    def __hash__(self):
        return hash(self.size)

    def __eq__(self, other):
        return type(other) is ByHash and other.size == self.size

    def __call__(self, b, h, q_pos, kv_pos):
        return (q_pos - kv_pos < self.size) & (q_pos >= kv_pos)


@dataclass(frozen=True)
class Bands(Neighbours):
    """A frequency for each pair, in a list from the config."""

    steps: list | tuple = ()

    def __call__(self, positions):
        where = positions[:, None, :, None]

        def turn(x):
            angle = where * torch.tensor(self.steps, dtype=x.dtype)
            return torch.stack(self.pair(x[..., 0::2], x[..., 1::2], angle, where), -1).flatten(-2)

        return turn


class PlainBands(Bands):
    """The same, of which each is one of its own."""

    __hash__, __eq__ = object.__hash__, object.__eq__


class Single(Neighbours):
    """Angles in float32, as most code has them."""

    def pair(self, a, b, angle, where):
        cos, sin = angle.float().cos().to(a.dtype), angle.float().sin().to(a.dtype)
        return a * cos - b * sin, b * cos + a * sin


class Temperatures(nn.Module):
    """A learned temperature for every head."""

    def __init__(self, n_heads):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(n_heads))

    def forward(self, score, b, h, q_pos, kv_pos):
        return score * self.log[h].exp()


def by_the_key_alone(score, b, h, q_pos, kv_pos):
    """A penalty linear in the distance, up to what all keys of a query share."""
    return score + kv_pos / (8.0 + h)


def in_float32(score, b, h, q_pos, kv_pos):
    return (score.float() * 1.5).to(score.dtype)


def waves(score, b, h, q_pos, kv_pos):
    return score * (1.5 + torch.cos((q_pos - kv_pos) / (1.0 + h)))


class PerHead(nn.Module):
    """A learned number for every head."""

    per_feature = False

    def __init__(self, n_heads):
        super().__init__()
        self.size = nn.Parameter(torch.ones(n_heads))

    def forward(self, out, lse, x):
        return out * self.size[:, None, None]


class Offset(nn.Module):
    """A learned vector for every head is added, to the output of a blind query too."""

    def __init__(self, n_heads, head_dim):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(n_heads, head_dim))

    def forward(self, out, lse, x):
        return out + self.shift[:, None]


class InChunks(Growing):
    """Room for eight more at a time; what is handed out are views of it."""

    def __init__(self):
        super().__init__()
        self.used = 0

    def append(self, state, positions):
        begin, self.used = self.used, self.used + positions.shape[1]
        if self.state is None or self.used > self.positions.shape[1]:
            room = -(-self.used // 8) * 8
            bigger = tuple(part.new_zeros(*part.shape[:2], room, part.shape[3]) for part in state)
            where = positions.new_zeros(len(positions), room)
            if begin:
                for new, old in zip(bigger, self.state, strict=True):
                    new[:, :, :begin] = old[:, :, :begin]
                where[:, :begin] = self.positions[:, :begin]
            self.state, self.positions = bigger, where
        for room, part in zip(self.state, state, strict=True):
            room[:, :, begin : self.used] = part
        self.positions[:, begin : self.used] = positions
        return tuple(room[:, :, : self.used] for room in self.state), self.positions[:, : self.used]

    def __len__(self):
        return self.used

    def live_bytes(self):
        return sum(part[:, :, : self.used].numel() * part.element_size() for part in self.state or ())


class Listed:
    """A list of what came, joined when it is read."""

    def __init__(self):
        self.came = []

    def append(self, state, positions):
        self.came.append((*state, positions))
        *parts, where = zip(*self.came, strict=True)
        return tuple(torch.cat(part, 2) for part in parts), torch.cat(where, 1)

    def __len__(self):
        return sum(came[-1].shape[1] for came in self.came)

    def live_bytes(self):
        return sum(part.numel() * part.element_size() for came in self.came for part in came[:-1])


STEPS = [1.0, 0.3, 0.1, 0.01]

SOUND: dict[str, Make] = {
    "local and global heads": masked(found(local_and_global_heads)),
    "the strict past": masked(found(strictly_past)),
    "a dilated mask": masked(found(dilated)),
    "blocks of four that do not look ahead": masked(found(block_local)),
    "every eighth key and the near ones": masked(found(every_eighth_and_near)),
    "open blocks that say so": masked(found(open_blocks)),
    "a window of 5000 as a frozen dataclass": masked(made(Wide)),
    "a window of a class with a hash": masked(made(ByHash, size=6)),
    "a window and a stride": masked(made(ByHash, size=9), axes={"heads": "gqa", "kernel": "sdpa"}),
    "neighbours turned in pairs": turning(Neighbours),
    "a rotary dataclass with a list": turning(Bands, steps=STEPS),
    "a rotary class with a list": turning(PlainBands, steps=STEPS),
    "angles in float32": turning(Single),
    "a learned temperature for every head": scored(made(Temperatures, n_heads=6)),
    "a penalty by the key's position alone": scored(found(by_the_key_alone)),
    "scores through float32": scored(found(in_float32)),
    "waves of the distance": scored(found(waves), heads="mqa"),
    "a sink of one's own": ended(Sink, n_heads=6),
    "a gate of one's own": ended(Gate, "mla", dim=48, n_heads=6),
    "a number for every head": ended(PerHead, "mla", n_heads=6),
    "a vector added after attention": ended(Offset, n_heads=6, head_dim=8),
    "a ring under its window": windowed(Ring),
    "a cache with room in chunks": cached(InChunks, {"heads": "gqa"}),
    "a cache that is a list": cached(Listed),
}
