"""Static caches for steps that are compiled: nothing changes its shape or its place.

Surprising: a CUDA graph replays on the memory that it was recorded with, and torch records none of a step
that writes into memory which may move. So the tensors are marked as staying where they are, and are filled
again for the next generation, never made anew. The one module that uses `torch._dynamo`, which has the mark
(`mark_static_address`) without a public name.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.cache import StaticCache
from attnlab.attention.contracts import State
from attnlab.attention.masks.data import UNREACHED


@final
class Slots:
    """A static cache as a compiled step sees it: tensors of a fixed shape, the slot to write in a tensor.

    Slots not written yet hold a position that no query has reached, so a causal mask hides them; under one
    that looks ahead, the data mask `reached` has to. Attention reads the first `span` slots; the decoder
    raises `span` in large steps, because every value is a graph. What is carried has been carried once.
    """

    needs: tuple[str, ...] = ()

    def __init__(self, filled: StaticCache, slot: Tensor) -> None:
        assert filled.state is not None
        assert filled.positions is not None
        self.state = filled.state
        self.slot = slot
        self.span = filled.length
        self.positions = filled.positions.clone()
        self.carried = {name: value.clone() for name, value in filled.carried.items()}
        for written in (*self.state, self.positions, *self.carried.values()):
            torch._dynamo.mark_static_address(written)

    def refill(self, filled: StaticCache) -> None:
        """Takes over what the cache, whose room is this one's, was filled with."""
        assert filled.positions is not None
        self.positions.copy_(filled.positions)
        self.positions[:, filled.used :] = UNREACHED
        for name, value in filled.carried.items():
            self.carried[name].copy_(value)

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Writes one token's keys into the slot; returns `span` slots, the unwritten ones included."""
        for room, part in zip(self.state, state, strict=True):
            room.index_copy_(2, self.slot, part)
        self.positions.index_copy_(1, self.slot, positions_BT)
        return tuple(room[:, :, : self.span] for room in self.state), self.positions[:, : self.span]

    def __len__(self) -> int:
        """Always 0: how many there are is in a tensor, so positions must be given."""
        return 0

    def carry(self, name: str, value: Tensor) -> None:
        """Written over what was carried by this name."""
        self.carried[name].copy_(value)


@final
class Rooms:
    """The caches of a model's layers, which a prefill fills, and what compiled steps see of them: `layers`,
    the `slot` [1] to write and the position `at` [1 or B, 1] of the newest token.
    """

    def __init__(self, caches: Sequence[Any]) -> None:
        self.caches = caches
        self.layers: list[Any] = []

    def open(self, used: int, at: Tensor) -> None:
        """Makes `layers`, or fills them again, once a prefill has used so many slots."""
        if not self.layers:
            self.slot, self.at = at.new_tensor([used]), at.clone()
            # a layer that borrows its keys holds none
            self.layers = [cache if cache.state is None else Slots(cache, self.slot) for cache in self.caches]
        self.slot.fill_(used)
        self.at.copy_(at)
        for layer, cache in zip(self.layers, self.caches, strict=True):
            if isinstance(layer, Slots):
                layer.refill(cache)

    def span(self, slots: int) -> None:
        """Steps read so many slots from here on."""
        for layer in self.layers:
            if isinstance(layer, Slots):
                layer.span = slots

    def empty(self) -> None:
        """For the next prefill."""
        for cache in self.caches:
            cache.reset()
