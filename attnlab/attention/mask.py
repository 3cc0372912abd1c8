"""Masks: which keys a query may see, as pure functions of (batch, head, query position, key position).

Positions are absolute, not slots of a cache, so a mask stays right when keys are dropped, padded on the
left or packed. A mask gets broadcastable integer tensors (or scalars, inside flex) and returns bool, True =
visible. No mask at all (`None`) means that every key is visible. Padding has negative positions.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """A query sees itself and the past."""
    return j <= i


causal.never_looks_ahead = True  # declared, so that decoding need not look at every step


def real(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Keys that are no padding: their position is not negative."""
    return j >= 0


def window(size: int, keep: int = 0) -> Mask:
    """Causal, and only the last `size` keys, the query's own included; plus the first `keep` positions.

    Sliding window: Beltagy et al. 2020, §3.1. Kept first tokens: Xiao et al. 2023 (StreamingLLM), §3.2.
    """
    if size < 1 or keep < 0:
        raise ValueError(f"window needs size >= 1 and keep >= 0, got size={size}, keep={keep}")

    def window_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & ((i - j < size) | (j < keep))

    window_mask.never_looks_ahead = True
    return window_mask


def prefix(n: int) -> Mask:
    """Every query sees the first `n` positions; beyond them, causal (prefix LM, Raffel et al. 2020,
    §3.2.1).
    """
    if n < 0:
        raise ValueError(f"prefix needs n >= 0, got {n}")

    def prefix_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) | (j < n)

    return prefix_mask


def padding(lengths_B: Tensor) -> Mask:
    """Data mask: keys at positions 0 <= j < lengths[b], for sequences padded on the right."""

    def padding_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j >= 0) & (j < lengths_B[b])

    return padding_mask


def documents(ids_BS: Tensor) -> Mask:
    """Data mask for packed rows: a query sees keys of its own document. `ids[b, p]` is the document at
    position p.
    """

    def documents_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ids_BS[b, i] == ids_BS[b, j]

    return documents_mask


def every(*masks: Mask | None) -> Mask | None:
    """The conjunction. Of none it is `None`; of one it is that one, so that a kernel can still recognise
    `causal`.
    """
    parts = tuple(mask for mask in masks if mask is not None)
    if len(parts) < 2:
        return parts[0] if parts else None

    def every_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        visible = parts[0](b, h, i, j)
        for part in parts[1:]:
            visible = visible & part(b, h, i, j)
        return visible

    every_mask.never_looks_ahead = any(getattr(part, "never_looks_ahead", False) for part in parts)
    return every_mask


def looks_ahead(mask: Mask | None, i_BT: Tensor, j_BS: Tensor) -> bool:
    """Whether a query at one of the positions `i` may see a key at one of `j`; padding has no say."""
    if mask is None or mask is causal:
        return mask is None
    zero = torch.zeros(1, dtype=torch.long, device=i_BT.device)
    i, j = i_BT[:, None, :, None], j_BS[:, None, None, :]
    return bool((mask(zero, zero, i, j) & (i >= 0)).any())


@lru_cache(maxsize=4096)
def step_looks_ahead(mask: Mask | None, past: int, new: int) -> bool:
    """The same for positions 0..past-1 and the `new` that follow; remembered: decoding asks at every step."""
    return looks_ahead(mask, torch.arange(past)[None], torch.arange(past, past + new)[None])
