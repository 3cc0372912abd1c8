"""Unusual but valid parts: masks, RoPE, scores, epilogues and caches that keep their contracts."""

from dataclasses import dataclass

import torch
from torch import nn

from attnlab.attention.contracts import declare_capabilities

from .builders import VariantFactory, make_function_node, make_object_node
from .caches import with_cache, with_windowed_cache
from .epilogues import Gate, Sink, with_epilogue
from .masks import with_mask
from .parts import InterleavedRope, RingCache, UnboundedCache
from .positions import with_rotary
from .scores import with_score


def local_and_global_heads(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) & ((h % 2 == 1) | (q_idx - kv_idx < 4))


def strictly_past(b, h, q_idx, kv_idx):
    """Past keys without the query's own; the first query sees nothing."""
    return kv_idx < q_idx


def dilated_mask(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) & ((q_idx - kv_idx) % 3 == 0)


def block_local(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) & (kv_idx // 4 == q_idx // 4)


def every_eighth_and_near(b, h, q_idx, kv_idx):
    return (kv_idx <= q_idx) & ((q_idx - kv_idx < 3) | (kv_idx % 8 == 0))


@declare_capabilities(sees_future=True)
def open_blocks(b, h, q_idx, kv_idx):
    """Bidirectional blocks of four, with `sees_future` declared."""
    return kv_idx // 4 <= q_idx // 4


@dataclass(frozen=True)
class WideWindow:
    size: int = 5000

    def __call__(self, b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) & (q_idx - kv_idx < self.size)


class ByHash:
    """A window with a custom hash; equal sizes are equal keys."""

    def __init__(self, size):
        self.size = size

    def __hash__(self):
        return hash(self.size)

    def __eq__(self, other):
        return type(other) is ByHash and other.size == self.size

    def __call__(self, b, h, q_idx, kv_idx):
        return (q_idx - kv_idx < self.size) & (q_idx >= kv_idx)


@dataclass(frozen=True)
class Bands(InterleavedRope):
    """RoPE with a frequency per pair, in a list from the config."""

    steps: list | tuple = ()

    def __call__(self, positions):
        positions_B1T1 = positions[:, None, :, None]

        def rotate(x):
            angle = positions_B1T1 * torch.tensor(self.steps, dtype=self.choose_angle_dtype(x))
            turned = self.pair(x[..., 0::2], x[..., 1::2], angle, positions_B1T1)
            return torch.stack(turned, -1).flatten(-2).to(x.dtype)

        return rotate


class PlainBands(Bands):
    """The same, compared by object identity."""

    __hash__, __eq__ = object.__hash__, object.__eq__


class Float32Angles(InterleavedRope):
    """RoPE with float32 angles, as in most code."""

    def pair(self, a, b, angle, where):
        cos, sin = angle.float().cos().to(a.dtype), angle.float().sin().to(a.dtype)
        return a * cos - b * sin, b * cos + a * sin


class LogarithmicRope(Float32Angles):
    """Angles by the logarithm of the position, declared as no function of the distance."""

    is_relative = False

    def pair(self, a, b, angle, where):
        return super().pair(a, b, (1 + angle.clamp(min=0)).log(), where)


class Temperatures(nn.Module):
    """A learned temperature for every head."""

    def __init__(self, n_heads):
        super().__init__()
        self.log = nn.Parameter(torch.zeros(n_heads))

    def forward(self, score, b, h, q_idx, kv_idx):
        return score * self.log[h].exp()


def by_the_key_alone(score, b, h, q_idx, kv_idx):
    """Add a penalty linear in the distance, up to a constant per query."""
    return score + kv_idx / (8.0 + h)


def in_float32(score, b, h, q_idx, kv_idx):
    return (score.float() * 1.5).to(score.dtype)


def waves(score, b, h, q_idx, kv_idx):
    return score * (1.5 + torch.cos((q_idx - kv_idx) / (1.0 + h)))


class PerHead(nn.Module):
    """A learned factor for every head."""

    per_feature = False

    def __init__(self, n_heads):
        super().__init__()
        self.size = nn.Parameter(torch.ones(n_heads))

    def forward(self, out, lse, x):
        return out * self.size[:, None, None]


class Offset(nn.Module):
    """Adds a learned vector per head, also to the output of a fully masked query."""

    def __init__(self, n_heads, head_dim):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(n_heads, head_dim))

    def forward(self, out, lse, x):
        return out + self.shift[:, None]


class InChunks(UnboundedCache):
    """Allocates room for eight more tokens at a time and returns views of it."""

    def __init__(self):
        super().__init__()
        self.used = 0

    def append(self, state, positions):
        begin, self.used = self.used, self.used + positions.shape[1]
        if self.state is None or self.used > self.positions.shape[1]:
            room = -(-self.used // 8) * 8
            buffer = tuple(part.new_zeros(*part.shape[:2], room, part.shape[3]) for part in state)
            buffer_positions = positions.new_zeros(len(positions), room)
            if begin:
                for new, old in zip(buffer, self.state, strict=True):
                    new[:, :, :begin] = old[:, :, :begin]
                buffer_positions[:, :begin] = self.positions[:, :begin]
            self.state, self.positions = buffer, buffer_positions
        for room, part in zip(self.state, state, strict=True):
            room[:, :, begin : self.used] = part
        self.positions[:, begin : self.used] = positions
        return tuple(room[:, :, : self.used] for room in self.state), self.positions[:, : self.used]

    def __len__(self):
        return self.used

    def live_bytes(self):
        return sum(part[:, :, : self.used].numel() * part.element_size() for part in self.state or ())


class Listed:
    """A list of chunks, concatenated when it is read."""

    def __init__(self):
        self.chunks = []

    def append(self, state, positions):
        self.chunks.append((*state, positions))
        *parts, positions = zip(*self.chunks, strict=True)
        return tuple(torch.cat(part, 2) for part in parts), torch.cat(positions, 1)

    def __len__(self):
        return sum(chunk[-1].shape[1] for chunk in self.chunks)

    def live_bytes(self):
        return sum(part.numel() * part.element_size() for chunk in self.chunks for part in chunk[:-1])


STEPS = [1.0, 0.3, 0.1, 0.01]

VALID_VARIANTS: dict[str, VariantFactory] = {
    "local and global heads": with_mask(make_function_node(local_and_global_heads)),
    "the strict past": with_mask(make_function_node(strictly_past)),
    "a dilated mask": with_mask(make_function_node(dilated_mask)),
    "blocks of four that do not look ahead": with_mask(make_function_node(block_local)),
    "every eighth key and the near ones": with_mask(make_function_node(every_eighth_and_near)),
    "open blocks that say so": with_mask(make_function_node(open_blocks)),
    "a window of 5000 as a frozen dataclass": with_mask(make_object_node(WideWindow)),
    "a window of a class with a hash": with_mask(make_object_node(ByHash, size=6)),
    "a window and a stride": with_mask(
        make_object_node(ByHash, size=9), axes={"heads": "gqa", "kernel": "sdpa"}
    ),
    "neighbors turned in pairs": with_rotary(InterleavedRope),
    "a rotary dataclass with a list": with_rotary(Bands, steps=STEPS),
    "a rotary class with a list": with_rotary(PlainBands, steps=STEPS),
    "angles in float32": with_rotary(Float32Angles),
    "angles by the logarithm of the position": with_rotary(LogarithmicRope),
    "a learned temperature for every head": with_score(make_object_node(Temperatures, n_heads=6)),
    "a penalty by the key's position alone": with_score(make_function_node(by_the_key_alone)),
    "scores through float32": with_score(make_function_node(in_float32)),
    "waves of the distance": with_score(make_function_node(waves), heads="mqa"),
    "a sink of one's own": with_epilogue(Sink, n_heads=6),
    "a gate of one's own": with_epilogue(Gate, "mla", dim=48, n_heads=6),
    "a number for every head": with_epilogue(PerHead, "mla", n_heads=6),
    "a vector added after attention": with_epilogue(Offset, n_heads=6, head_dim=8),
    "a ring under its window": with_windowed_cache(RingCache),
    "a cache with room in chunks": with_cache(InChunks, {"heads": "gqa"}),
    "a cache that is a list": with_cache(Listed),
}
