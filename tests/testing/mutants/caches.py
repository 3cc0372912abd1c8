"""Mutant caches: wrong contents, wrong order, wrong counts."""

import torch

from .builders import VariantFactory, make_attention_factory, make_function_node, make_partial_node
from .parts import RingCache, UnboundedCache, window_of_five


class SmallRingCache(RingCache):
    """Holds three tokens, fewer than the window needs."""

    size = 3


class EarlyDropRingCache(RingCache):
    """Drops tokens before it returns them, so the first tokens of a long chunk lose their past."""

    def append(self, state, positions):
        super().append(state, positions)
        return self.state, self.positions


class ShiftingRingCache(RingCache):
    """Returns its buffer, then overwrites the front of it with the newest tokens."""

    def append(self, state, positions):
        self.n_appended += positions.shape[1]
        state, positions = UnboundedCache.append(self, state, positions)
        if positions.shape[1] > self.size:
            for part in state:
                part[:, :, : self.size] = part[:, :, -self.size :].clone()
            self.state = tuple(part[:, :, : self.size] for part in state)
            self.positions = positions[:, -self.size :]
        return state, positions


class DropsTheOldest(UnboundedCache):
    """Holds `most` tokens, whatever the mask."""

    most = 32

    def append(self, state, positions):
        super().append(state, positions)
        if len(self) > self.most:
            self.keep(slice(len(self) - self.most, None))
        return self.state, self.positions


class Wraps(UnboundedCache):
    """A buffer of sixteen that wraps around without a declared limit."""

    def append(self, state, positions):
        super().append(state, positions)
        newest = torch.arange(len(self))[-16:]
        self.keep(newest[(newest % 16).argsort()])
        return self.state, self.positions


class OneBehind(UnboundedCache):
    def __len__(self):
        return max(0, super().__len__() - 1)


class CountsCalls(UnboundedCache):
    """Counts calls, correct only if tokens come one by one."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def append(self, state, positions):
        self.calls += 1
        return super().append(state, positions)

    def __len__(self):
        return self.calls


class Backwards(UnboundedCache):
    """Puts the newest keys first and their positions last."""

    def append(self, state, positions):
        old = self.state
        state, positions = super().append(state, positions)
        if old is not None:
            n = old[0].shape[2]
            self.state = tuple(torch.cat((part[:, :, n:], part[:, :, :n]), 2) for part in state)
        return self.state, positions


class CountsItself(UnboundedCache):
    """Returns slot numbers instead of the positions it received."""

    def append(self, state, positions):
        state, _ = super().append(state, positions)
        return state, torch.arange(state[0].shape[2])[None]


class FirstRow(UnboundedCache):
    """Uses the positions of the first row for all rows."""

    def append(self, state, positions):
        return super().append(state, positions[:1])


class SecondChunk(UnboundedCache):
    """Takes a chunk of several tokens for a new prompt."""

    def append(self, state, positions):
        if positions.shape[1] > 4:
            self.__init__()
        return super().append(state, positions)


class ClassStateCache(UnboundedCache):
    """Stores its state in a class attribute; with one layer this goes unnoticed."""

    memory: dict = {}  # noqa: RUF012
    state = property(lambda self: self.memory["state"], lambda self, value: self.memory.update(state=value))
    positions = property(
        lambda self: self.memory["positions"], lambda self, value: self.memory.update(positions=value)
    )


class Half(UnboundedCache):
    """Stores half precision and converts back."""

    def append(self, state, positions):
        dtype = state[0].dtype
        half_state = tuple(part.half() for part in state)
        state, positions = super().append(half_state, positions)
        return tuple(part.to(dtype) for part in state), positions

    def live_bytes(self):
        return 4 * super().live_bytes()


class NumbersForBytes(UnboundedCache):
    def live_bytes(self):
        return sum(part.numel() for part in self.state or ())


class FirstPartOnly(UnboundedCache):
    def live_bytes(self):
        return self.state[0].numel() * self.state[0].element_size() if self.state else 0


class SilentlyFullCache(UnboundedCache):
    """Holds fourteen tokens and silently drops later ones."""

    capacity = 14

    def append(self, state, positions):
        state, positions = super().append(state, positions)
        if len(self) > self.capacity:
            self.keep(slice(0, self.capacity))
        return self.state, self.positions


class UnderdeclaredCache(UnboundedCache):
    """Declares that it holds four tokens, and holds all."""

    max_cached_tokens = 4


def with_cache(cache, axes=None, **parts) -> VariantFactory:
    return make_attention_factory(axes, cache=make_partial_node(cache), **parts)


def with_windowed_cache(cache) -> VariantFactory:
    return with_cache(cache, masks={"near": make_function_node(window_of_five)})


MUTANTS: dict[str, VariantFactory] = {
    "a ring two smaller than its window needs": with_windowed_cache(SmallRingCache),
    "a ring that drops before it answers": with_windowed_cache(EarlyDropRingCache),
    "a ring that shifts what it has handed out": with_windowed_cache(ShiftingRingCache),
    "a cache that forgets beyond 32 tokens": with_cache(DropsTheOldest),
    "a cache that forgets beyond 32 tokens, of latents": with_cache(DropsTheOldest, {"heads": "mla"}),
    "a buffer of sixteen that wraps": with_cache(Wraps),
    "a cache that counts one token too few": with_cache(OneBehind, {"position": "learned"}),
    "a cache that counts calls": with_cache(CountsCalls),
    "a cache that puts the newest keys first": with_cache(Backwards),
    "a cache with positions of its own making": with_cache(CountsItself),
    "a cache with the positions of the first row": with_cache(FirstRow),
    "a cache that takes a long chunk for a prompt": with_cache(SecondChunk),
    "caches that share what they hold": with_cache(ClassStateCache),
    "a cache in half precision": with_cache(Half, {"heads": "gqa"}),
    "a cache that counts numbers, not bytes": with_cache(NumbersForBytes),
    "a cache that counts its first part only": with_cache(FirstPartOnly),
    "a cache that leaves out what it has no room for": with_cache(SilentlyFullCache),
    "a cache that declares to hold less than it does": with_cache(UnderdeclaredCache),
}
