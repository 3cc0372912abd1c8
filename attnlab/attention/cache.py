"""Caches of past keys and values.

A cache stores the `State` of the heads and the positions of the keys, and depends on nothing else. Because
positions travel with the keys, left padding, packed documents and dropped keys need no special case here.
"""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities, State, Unsupported, declare_capabilities


class CarriedStateMixin(ABC):  # noqa: B024 - shared by all caches, nothing to override
    """Fixed-size carried state of a cache, next to its per-token states: `carried` maps names to tensors."""

    needs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.carried: dict[str, Tensor] = {}

    def carry(self, name: str, value: Tensor) -> None:
        """Replace the carried tensor of this name."""
        self.carried[name] = value


@final
class DynamicCache(CarriedStateMixin):
    """Cache that concatenates: simple and exact, but it copies the past at every step."""

    capacity: int | None = None
    max_cached_tokens: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None
        self.positions: Tensor | None = None

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Append T new keys; return the whole state and the key positions [B or 1, S]."""
        self.state, self.positions = concatenate_states(self.state, self.positions, state, positions_BT)
        return self.state, self.positions

    def __len__(self) -> int:
        """Number of tokens so far: the next token's position in an unpadded sequence."""
        return 0 if self.positions is None else self.positions.shape[1]

    def live_bytes(self) -> int:
        """Bytes of the cached states and the carried state.

        Positions are not counted: all heads share them, and they are tiny.
        """
        return count_bytes(self.state, *self.carried.values())


@final
class StaticCache(CarriedStateMixin):
    """Cache with preallocated memory for `length` tokens.

    A step writes its own slots and copies nothing of the past.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        if length < 1:
            raise ValueError(f"a static cache needs length >= 1, got {length}")
        self.length = length
        self.n_used = 0
        self.capacity = self.max_cached_tokens = length
        self.state: State | None = None
        self.positions: Tensor | None = None

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Write T new keys into the next slots; return views of the used slots.

        Raises:
            ValueError: the cache has no room for the new tokens.
        """
        begin = self.n_used
        n_new = positions_BT.shape[1]
        end = begin + n_new
        if end > self.length:
            raise ValueError(
                f"the static cache holds {self.length} tokens, but the sequence has {end}: raise "
                "decode.cache.length"
            )
        if self.state is None or self.positions is None:
            self.state = tuple(part.new_zeros(*part.shape[:2], self.length, part.shape[3]) for part in state)
            self.positions = positions_BT.new_zeros(len(positions_BT), self.length)
            # one view per slot, made once: such small operations are most of a decoding step
            buffers = (*(buffer.split(1, 2) for buffer in self.state), self.positions.split(1, 1))
            self._slot_views = list(zip(*buffers, strict=True))
        parts = (*state, positions_BT)
        if n_new == 1:
            for slot, part in zip(self._slot_views[begin], parts, strict=True):
                slot.copy_(part)
        else:
            for buffer, part in zip(self.state, state, strict=True):
                buffer.narrow(2, begin, n_new).copy_(part)
            self.positions.narrow(1, begin, n_new).copy_(positions_BT)
        self.n_used = end
        return tuple(buffer.narrow(2, 0, end) for buffer in self.state), self.positions.narrow(1, 0, end)

    def reset(self) -> None:
        """Mark all slots as unused; the allocated memory stays in place."""
        self.n_used = 0
        self.carried = {}

    def __len__(self) -> int:
        """Number of tokens so far."""
        return self.n_used

    def live_bytes(self) -> int:
        """Bytes of the used slots and the carried state; unused slots are not counted."""
        return count_bytes(
            [buffer[:, :, : self.n_used] for buffer in self.state or ()], *self.carried.values()
        )


@final
class SlidingWindowCache(CarriedStateMixin):
    """Cache of the last `size` tokens and the first `keep`: its memory is bounded by the window.

    It is exact if the mask is that window. New queries see the cached keys and all new keys, so a long
    prefill loses nothing. Sources: Mistral 7B §2; StreamingLLM §3.2.
    """

    def __init__(self, size: int, keep: int = 0) -> None:
        super().__init__()
        if size < 1 or keep < 0:
            raise ValueError(
                f"a sliding-window cache needs size >= 1 and keep >= 0, got size={size}, keep={keep}"
            )
        self.size = size
        self.keep = keep
        self.n_seen = 0
        self.capacity = None
        self.max_cached_tokens = size + keep
        self.leaves_gaps = keep > 0
        self.state: State | None = None
        self.positions: Tensor | None = None

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Append T new keys, return all keys visible to them, then drop those that no later query may see.

        Raises:
            Unsupported: `keep` > 0 and the rows have different positions.
        """
        if (
            self.keep
            and len(positions_BT) > 1
            and not torch.equal(positions_BT, positions_BT[:1].expand_as(positions_BT))
        ):
            raise Unsupported(
                "decode=sliding with keep > 0 does not support prompts of unequal length: use keep=0"
            )
        self.n_seen += positions_BT.shape[1]
        state, positions_BT = concatenate_states(self.state, self.positions, state, positions_BT)
        n_keys = positions_BT.shape[1]
        if n_keys <= self.max_cached_tokens:
            self.state = state
            self.positions = positions_BT
        else:
            ends = (slice(0, self.keep), slice(n_keys - self.size, n_keys))
            self.state = tuple(torch.cat([part[:, :, end] for end in ends], dim=2) for part in state)
            self.positions = torch.cat([positions_BT[:, end] for end in ends], dim=1)
        return state, positions_BT

    def __len__(self) -> int:
        """Number of tokens so far, dropped ones included."""
        return self.n_seen

    def live_bytes(self) -> int:
        """Bytes of the cached states and the carried state."""
        return count_bytes(self.state, *self.carried.values())


@declare_capabilities(takes_layer=True)
def sliding_window_cache(layer: Any) -> Any:
    """Build the cache for the layer's mask: a sliding window, or a dynamic cache if the mask has none."""
    visible_window = Capabilities.from_part(getattr(layer, "mask", None)).visible_window
    cache = DynamicCache() if visible_window is None else SlidingWindowCache(*visible_window)
    if Capabilities.from_part(cache).leaves_gaps and getattr(layer, "score_map_has_state", False):
        raise Unsupported(
            "decode=sliding drops tokens between the first keys and a query, which this position needs: use "
            "decode=dynamic"
        )
    return cache


def create_layer_cache(make_cache: Callable[..., Any], layer: Any) -> Any:
    """Build an empty cache for one layer.

    `make_cache` is a class or a function; one that declares `takes_layer` receives the layer.
    """
    return make_cache(layer) if getattr(make_cache, "takes_layer", False) else make_cache()


def create_layer_caches(make_cache: Callable[..., Any], layers: Sequence[Any]) -> list[Any]:
    """Build one empty cache per layer.

    Raises:
        Unsupported: the caches are sliding windows and no layer's mask has a window.
    """
    caches = [create_layer_cache(make_cache, layer) for layer in layers]
    if getattr(make_cache, "takes_layer", False) and not any(
        Capabilities.from_part(cache).max_cached_tokens for cache in caches
    ):
        raise Unsupported(
            "decode=sliding needs a mask with a window, and no layer has one: use decode=dynamic"
        )
    return caches


def concatenate_states(
    old: State | None, old_BS: Tensor | None, new: State, new_BT: Tensor
) -> tuple[State, Tensor]:
    """Concatenate states and positions along the sequence; return the new ones if nothing is cached.

    Positions are expanded to the larger number of rows of the two.
    """
    if old is None or old_BS is None:
        return new, new_BT
    rows = max(len(old_BS), len(new_BT))
    positions = torch.cat((old_BS.expand(rows, -1), new_BT.expand(rows, -1)), dim=1)
    return tuple(torch.cat(pair, dim=2) for pair in zip(old, new, strict=True)), positions


def count_bytes(state: Sequence[Tensor] | None, *carried: Tensor) -> int:
    """Total bytes of a state and of carried tensors."""
    return sum(part.numel() * part.element_size() for part in (*(state or ()), *carried))
