"""Caches with a bug: what they keep, in which order, and what they count."""

import torch

from .making import Make, anew, attention, found
from .parts import Growing, Ring, near


class TooSmallRing(Ring):
    """The next query's own key is not the only one that it needs beside three."""

    held = 3


class HastyRing(Ring):
    """It drops before it answers, so the first tokens of a long chunk see nothing of the past."""

    def append(self, state, positions):
        super().append(state, positions)
        return self.state, self.positions


class ShiftingRing(Ring):
    """It hands out its buffer, and moves the newest to the front of it."""

    def append(self, state, positions):
        self.seen += positions.shape[1]
        state, positions = Growing.append(self, state, positions)
        if positions.shape[1] > self.held:
            for part in state:
                part[:, :, : self.held] = part[:, :, -self.held :].clone()
            self.state = tuple(part[:, :, : self.held] for part in state)
            self.positions = positions[:, -self.held :]
        return state, positions


class DropsTheOldest(Growing):
    """No more than `most`, whatever the mask."""

    most = 32

    def append(self, state, positions):
        super().append(state, positions)
        if len(self) > self.most:
            self.keep(slice(len(self) - self.most, None))
        return self.state, self.positions


class Wraps(Growing):
    """A buffer of sixteen that begins to write at its front again, and says nothing of it."""

    def append(self, state, positions):
        super().append(state, positions)
        newest = torch.arange(len(self))[-16:]
        self.keep(newest[(newest % 16).argsort()])
        return self.state, self.positions


class OneBehind(Growing):
    def __len__(self):
        return max(0, super().__len__() - 1)


class CountsCalls(Growing):
    """Right for as long as tokens come one by one."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def append(self, state, positions):
        self.calls += 1
        return super().append(state, positions)

    def __len__(self):
        return self.calls


class Backwards(Growing):
    """The newest keys come first, their positions last."""

    def append(self, state, positions):
        old = self.state
        state, positions = super().append(state, positions)
        if old is not None:
            n = old[0].shape[2]
            self.state = tuple(torch.cat((part[:, :, n:], part[:, :, :n]), 2) for part in state)
        return self.state, positions


class CountsItself(Growing):
    """It answers with positions of its own making."""

    def append(self, state, positions):
        state, _ = super().append(state, positions)
        return state, torch.arange(state[0].shape[2])[None]


class FirstRow(Growing):
    """The positions of the first row are those of all."""

    def append(self, state, positions):
        return super().append(state, positions[:1])


class SecondChunk(Growing):
    """A chunk of several tokens is taken for a new prompt."""

    def append(self, state, positions):
        if positions.shape[1] > 4:
            self.__init__()
        return super().append(state, positions)


class Shared(Growing):
    """What it holds is an attribute of the class: one layer never notices."""

    memory: dict = {}  # noqa: RUF012
    state = property(lambda self: self.memory["state"], lambda self, held: self.memory.update(state=held))
    positions = property(
        lambda self: self.memory["positions"], lambda self, held: self.memory.update(positions=held)
    )


class Half(Growing):
    """It keeps what it holds in half precision, and makes it whole again."""

    def append(self, state, positions):
        exact = state[0].dtype
        kept = tuple(part.half() for part in state)
        state, positions = super().append(kept, positions)
        return tuple(part.to(exact) for part in state), positions

    def live_bytes(self):
        return 4 * super().live_bytes()


class NumbersForBytes(Growing):
    def live_bytes(self):
        return sum(part.numel() for part in self.state or ())


class FirstPartOnly(Growing):
    def live_bytes(self):
        return self.state[0].numel() * self.state[0].element_size() if self.state else 0


class Roomy(Growing):
    """Room for fourteen; what comes after is silently left out."""

    room = 14

    def append(self, state, positions):
        state, positions = super().append(state, positions)
        if len(self) > self.room:
            self.keep(slice(0, self.room))
        return self.state, self.positions


class HoldsLess(Growing):
    """It says that it keeps four, and keeps all."""

    holds = 4


def cached(cache, axes=None, **parts) -> Make:
    return attention(axes, cache=anew(cache), **parts)


def windowed(cache) -> Make:
    return cached(cache, masks={"near": found(near)})


PLANTED: dict[str, Make] = {
    "a ring two smaller than its window needs": windowed(TooSmallRing),
    "a ring that drops before it answers": windowed(HastyRing),
    "a ring that shifts what it has handed out": windowed(ShiftingRing),
    "a cache that forgets beyond 32 tokens": cached(DropsTheOldest),
    "a cache that forgets beyond 32 tokens, of latents": cached(DropsTheOldest, {"heads": "mla"}),
    "a buffer of sixteen that wraps": cached(Wraps),
    "a cache that counts one token too few": cached(OneBehind, {"position": "learned"}),
    "a cache that counts calls": cached(CountsCalls),
    "a cache that puts the newest keys first": cached(Backwards),
    "a cache with positions of its own making": cached(CountsItself),
    "a cache with the positions of the first row": cached(FirstRow),
    "a cache that takes a long chunk for a prompt": cached(SecondChunk),
    "caches that share what they hold": cached(Shared),
    "a cache in half precision": cached(Half, {"heads": "gqa"}),
    "a cache that counts numbers, not bytes": cached(NumbersForBytes),
    "a cache that counts its first part only": cached(FirstPartOnly),
    "a cache that leaves out what it has no room for": cached(Roomy),
    "a cache that declares to hold less than it does": cached(HoldsLess),
}
