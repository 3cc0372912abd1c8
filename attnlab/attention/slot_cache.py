"""Static caches for compiled decoding steps: no tensor changes its shape or its address.

A CUDA graph replays on the memory with which it was recorded, and torch records no graph of a step that
writes into memory which may move. So the tensors are marked as static and are refilled for the next
generation, never reallocated. This is the only module that uses `torch._dynamo`: the mark,
`mark_static_address`, has no public name.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.cache import StaticCache
from attnlab.attention.contracts import State
from attnlab.attention.masks.data_masks import UNWRITTEN_POSITION


@final
class SlotCache:
    """Static cache for a compiled step: tensors of a fixed shape, and the slot to write as a tensor.

    Unwritten slots hold a position that no query has reached, so a causal mask hides them; under a mask that
    sees the future, the data mask `written_slots` must hide them. Attention reads the first `span` slots; the
    decoder raises `span` in large steps, because every value is a separate graph. Every carried tensor must
    exist after the prefill.
    """

    needs: tuple[str, ...] = ()

    def __init__(self, prefilled: StaticCache, slot: Tensor) -> None:
        assert prefilled.state is not None
        assert prefilled.positions is not None
        self.state = prefilled.state
        self.slot = slot
        self.span = prefilled.length
        self.positions = prefilled.positions.clone()
        self.carried = {name: value.clone() for name, value in prefilled.carried.items()}
        for tensor in (*self.state, self.positions, *self.carried.values()):
            torch._dynamo.mark_static_address(tensor)

    def refill(self, prefilled: StaticCache) -> None:
        """Copy positions and carried state from the prefilled cache; its state tensors are these."""
        assert prefilled.positions is not None
        self.positions.copy_(prefilled.positions)
        self.positions[:, prefilled.n_used :] = UNWRITTEN_POSITION
        for name, value in prefilled.carried.items():
            self.carried[name].copy_(value)

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Write the keys of one token into the slot; return `span` slots, unwritten ones included."""
        for buffer, part in zip(self.state, state, strict=True):
            buffer.index_copy_(2, self.slot, part)
        self.positions.index_copy_(1, self.slot, positions_BT)
        return tuple(buffer[:, :, : self.span] for buffer in self.state), self.positions[:, : self.span]

    def __len__(self) -> int:
        """Always 0: the number of tokens is in a tensor, so positions must be given."""
        return 0

    def carry(self, name: str, value: Tensor) -> None:
        """Overwrite the carried tensor of this name in place."""
        self.carried[name].copy_(value)


@final
class DecodeCaches:
    """Caches of a model's layers for a prefill, and their views for compiled steps.

    The views are `layers`, the `slot` [1] to write and the `position` [1 or B, 1] of the newest token.
    """

    def __init__(self, caches: Sequence[Any]) -> None:
        self.caches = caches
        self.layers: list[Any] = []

    def prepare_layers(self, n_used: int, position: Tensor) -> None:
        """Make `layers`, or refill them, after a prefill has used `n_used` slots."""
        if not self.layers:
            self.slot, self.position = position.new_tensor([n_used]), position.clone()
            # a layer that reads shared K/V caches none
            self.layers = [
                cache if cache.state is None else SlotCache(cache, self.slot) for cache in self.caches
            ]
        self.slot.fill_(n_used)
        self.position.copy_(position)
        for layer, cache in zip(self.layers, self.caches, strict=True):
            if isinstance(layer, SlotCache):
                layer.refill(cache)

    def set_span(self, n_slots: int) -> None:
        """Make later steps read the first `n_slots` slots."""
        for layer in self.layers:
            if isinstance(layer, SlotCache):
                layer.span = n_slots

    def reset_caches(self) -> None:
        """Empty the caches for the next prefill."""
        for cache in self.caches:
            cache.reset()
