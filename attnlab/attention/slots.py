"""A static cache for steps that are compiled: nothing changes its shape or its place."""

from typing import final

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
        self.state, self.slot, self.span = filled.state, slot, filled.length
        assert filled.positions is not None
        self.positions = filled.positions.clone()
        self.positions[:, filled.used :] = UNREACHED
        self.carried = filled.carried

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
