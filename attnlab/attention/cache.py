"""Caches: what a layer keeps of past tokens. They store a heads' `State` and the keys' positions, and know
nothing else.

Because positions travel with the keys, left padding, packed documents and dropped keys need no special case
here.
"""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities, State, Unsupported, declares


class Carrying(ABC):  # noqa: B024 - what the caches of tokens share beside their tokens
    """What parts carry over, of fixed size, beside the states of tokens: `carried`, tensors by name."""

    needs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.carried: dict[str, Tensor] = {}

    def carry(self, name: str, value: Tensor) -> None:
        """In the place of what was carried by this name."""
        self.carried[name] = value


@final
class DynamicCache(Carrying):
    """Concatenates: simple, exact, and copies the past at every step."""

    room: int | None = None
    holds: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None
        self.positions: Tensor | None = None

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Adds T new keys; returns the whole state and key positions [B or 1, S]."""
        self.state, self.positions = joined(self.state, self.positions, state, positions_BT)
        return self.state, self.positions

    def __len__(self) -> int:
        """Tokens seen so far: the next token's position in an unpadded sequence."""
        return 0 if self.positions is None else self.positions.shape[1]

    def live_bytes(self) -> int:
        """Bytes of the states held and of what is carried, positions left out (shared by all heads, tiny)."""
        return bytes_of(self.state, *self.carried.values())


@final
class StaticCache(Carrying):
    """Room for `length` tokens, allocated once; a step writes its own slots and copies nothing of the past.

    ValueError where more tokens come than there is room for.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        if length < 1:
            raise ValueError(f"a static cache needs length >= 1, got {length}")
        self.length = length
        self.used = 0
        self.room = self.holds = length
        self.state: State | None = None
        self.positions: Tensor | None = None

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Writes T new keys into the next slots; returns views of the used ones."""
        begin = self.used
        new = positions_BT.shape[1]
        end = begin + new
        if end > self.length:
            raise ValueError(
                f"the static cache has room for {self.length} tokens, {end} came: raise decode.cache.length"
            )
        if self.state is None or self.positions is None:
            self.state = tuple(part.new_zeros(*part.shape[:2], self.length, part.shape[3]) for part in state)
            self.positions = positions_BT.new_zeros(len(positions_BT), self.length)
            # each slot as a view, made once: a step is mostly such small operations
            rooms = (*(room.split(1, 2) for room in self.state), self.positions.split(1, 1))
            self._slots = list(zip(*rooms, strict=True))
        parts = (*state, positions_BT)
        if new == 1:
            for slot, part in zip(self._slots[begin], parts, strict=True):
                slot.copy_(part)
        else:
            for room, part in zip(self.state, state, strict=True):
                room.narrow(2, begin, new).copy_(part)
            self.positions.narrow(1, begin, new).copy_(positions_BT)
        self.used = end
        return tuple(room.narrow(2, 0, end) for room in self.state), self.positions.narrow(1, 0, end)

    def reset(self) -> None:
        """Empties it; its room stays where it is."""
        self.used = 0
        self.carried = {}

    def __len__(self) -> int:
        """Tokens seen so far."""
        return self.used

    def live_bytes(self) -> int:
        """Bytes of the used slots and of what is carried; the room ahead is not counted."""
        return bytes_of([room[:, :, : self.used] for room in self.state or ()], *self.carried.values())


@final
class SlidingWindowCache(Carrying):
    """The last `size` tokens and the first `keep`: memory bounded by the window (Mistral 7B §2;
    StreamingLLM §3.2).

    Exact where the mask is that window. New queries see what is held plus all new keys, so a long prefill
    loses nothing.
    """

    def __init__(self, size: int, keep: int = 0) -> None:
        super().__init__()
        if size < 1 or keep < 0:
            raise ValueError(f"a rolling cache needs size >= 1 and keep >= 0, got size={size}, keep={keep}")
        self.size = size
        self.keep = keep
        self.seen = 0
        self.room = None
        self.holds = size + keep
        self.state: State | None = None
        self.positions: Tensor | None = None

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Adds T new keys, returns what they may see, then drops what no later query may."""
        if (
            self.keep
            and len(positions_BT) > 1
            and not torch.equal(positions_BT, positions_BT[:1].expand_as(positions_BT))
        ):
            raise Unsupported(
                "decode=rolling keeps first tokens of one place only: prompts of unequal length need keep=0"
            )
        self.seen += positions_BT.shape[1]
        state, positions_BT = joined(self.state, self.positions, state, positions_BT)
        held = positions_BT.shape[1]
        if held <= self.holds:
            self.state = state
            self.positions = positions_BT
        else:
            ends = (slice(0, self.keep), slice(held - self.size, held))
            self.state = tuple(torch.cat([part[:, :, end] for end in ends], dim=2) for part in state)
            self.positions = torch.cat([positions_BT[:, end] for end in ends], dim=1)
        return state, positions_BT

    def __len__(self) -> int:
        """Tokens seen so far, the dropped ones included."""
        return self.seen

    def live_bytes(self) -> int:
        """Bytes of the states held and of what is carried."""
        return bytes_of(self.state, *self.carried.values())


@declares(of_layer=True)
def rolling(layer: Any) -> Any:
    """What this layer's mask can still show: its window, or all where it has none."""
    within = Capabilities.of(getattr(layer, "mask", None)).within
    return DynamicCache() if within is None else SlidingWindowCache(*within)


def new_cache(make_cache: Callable[..., Any], layer: Any) -> Any:
    """An empty cache for one layer. `make_cache` is a class or a function; one that declares `of_layer` is
    given the layer.
    """
    return make_cache(layer) if getattr(make_cache, "of_layer", False) else make_cache()


def new_caches(make_cache: Callable[..., Any], layers: Sequence[Any]) -> list[Any]:
    """One for each layer. Unsupported where they should roll and no layer has a window to roll in."""
    caches = [new_cache(make_cache, layer) for layer in layers]
    if getattr(make_cache, "of_layer", False) and not any(Capabilities.of(each).holds for each in caches):
        raise Unsupported("decode=rolling: no layer's mask has a window to roll in: use decode=growing")
    return caches


def joined(past: State | None, past_BS: Tensor | None, new: State, new_BT: Tensor) -> tuple[State, Tensor]:
    """States and positions after one another, the latter of as many rows as either has; the new ones where
    nothing is held.
    """
    if past is None or past_BS is None:
        return new, new_BT
    rows = max(len(past_BS), len(new_BT))
    positions = torch.cat((past_BS.expand(rows, -1), new_BT.expand(rows, -1)), dim=1)
    return tuple(torch.cat(pair, dim=2) for pair in zip(past, new, strict=True)), positions


def bytes_of(state: Sequence[Tensor] | None, *carried: Tensor) -> int:
    """Of a state and of what is carried beside it."""
    return sum(part.numel() * part.element_size() for part in (*(state or ()), *carried))
