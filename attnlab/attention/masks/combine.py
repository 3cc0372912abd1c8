"""Several masks as one, and whether a mask looks ahead."""

from functools import lru_cache

import torch
from torch import Tensor

from attnlab.attention.contracts import Mask, declared, declares
from attnlab.attention.masks.causal import causal


def every(*masks: Mask | None) -> Mask | None:
    """The conjunction. Of none it is `None`; of one it is that one, so that a kernel can still recognise
    `causal`.
    """
    parts = tuple(mask for mask in masks if mask is not None)
    if len(parts) < 2:
        return parts[0] if parts else None

    @declares(is_causal=any(declared(part, Mask, "is_causal") for part in parts))
    def every_mask(b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        visible = parts[0](b, h, q_pos, kv_pos)
        for part in parts[1:]:
            visible = visible & part(b, h, q_pos, kv_pos)
        return visible

    return every_mask


def looks_ahead(mask: Mask | None, queries_BT: Tensor, keys_BS: Tensor) -> bool:
    """Whether a query at one of these positions may see a key at one of those; padding has no say."""
    if mask is None or mask is causal:
        return mask is None
    zero = torch.zeros(1, dtype=torch.long, device=queries_BT.device)
    q_pos, kv_pos = queries_BT[:, None, :, None], keys_BS[:, None, None, :]
    return bool((mask(zero, zero, q_pos, kv_pos) & (q_pos >= 0)).any())


@lru_cache(maxsize=4096)
def step_looks_ahead(mask: Mask | None, past: int, new: int) -> bool:
    """The same for positions 0..past-1 and the `new` that follow; remembered: decoding asks at every step."""
    return looks_ahead(mask, torch.arange(past)[None], torch.arange(past, past + new)[None])
