"""Several masks as one, and whether a mask looks ahead."""

from functools import lru_cache

import torch
from torch import Tensor

from attnlab.attention.contracts import Mask
from attnlab.attention.masks.causal import causal


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
