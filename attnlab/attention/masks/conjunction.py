"""Conjunctions of masks, and detection of masks that see the future."""

from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities, Mask, Unsupported

MISSED_KEYS_ERROR = (
    "the mask shows tokens of this chunk to an earlier token, which is already computed: use decode=none, or "
    "a first chunk as long as the prefix"
)


def combine_masks(*masks: Mask | None) -> Mask | None:
    """Combine masks by conjunction; None without masks.

    A single mask is returned as it is, so that a kernel can still recognize `causal`.
    """
    parts = tuple(mask for mask in masks if mask is not None)
    if len(parts) < 2:
        return parts[0] if parts else None
    return Conjunction(parts)


@final
class Conjunction:
    """A query sees a key if all parts show it.

    Capabilities are computed on access: most conjunctions live for one pass, and nothing reads them.
    """

    def __init__(self, parts: tuple[Mask, ...]) -> None:
        self.parts = parts

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Logical AND of all parts."""
        visible = self.parts[0](b, h, q_idx, kv_idx)
        for part in self.parts[1:]:
            visible = visible & part(b, h, q_idx, kv_idx)
        return visible

    @property
    def sees_future(self) -> bool:
        """False if any part shows no later key."""
        return all(Capabilities.from_part(part).sees_future for part in self.parts)

    @property
    def visible_window(self) -> tuple[int, int] | None:
        """Tightest window of the parts, because the window of each part bounds the conjunction."""
        windows = [Capabilities.from_part(part).visible_window for part in self.parts]
        return min((window for window in windows if window is not None), key=sum, default=None)

    @property
    def prefix(self) -> int | None:
        """Smallest prefix of the parts; a part that does not see the future has prefix 0.

        None if every part that sees the future shows more than a prefix.
        """
        capabilities = [Capabilities.from_part(part) for part in self.parts]
        prefixes = [
            part_capabilities.prefix if part_capabilities.sees_future else 0
            for part_capabilities in capabilities
        ]
        return min((prefix for prefix in prefixes if prefix is not None), default=None)


def compute_visibility(mask: Mask | None, queries_BT: Tensor, keys_BS: Tensor, heads: int) -> Tensor:
    """Evaluate the mask alone for each pair of query and key positions: [B, heads, T, S]."""
    q_idx = queries_BT[:, None, :, None]
    kv_idx = keys_BS[:, None, None, :]
    shape = (max(len(queries_BT), len(keys_BS)), heads, queries_BT.shape[1], keys_BS.shape[1])
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=queries_BT.device)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=queries_BT.device)
    h = torch.arange(heads, device=queries_BT.device)[None, :, None, None]
    return mask(zero, h, q_idx, kv_idx).expand(shape)


def can_see_future(mask: Mask | None, queries_BT: Tensor, keys_BS: Tensor, heads: int) -> bool:
    """Return True if a query at one of these positions sees a later key at one of those.

    Padding is ignored.
    """
    q_idx = queries_BT[:, None, :, None]
    kv_idx = keys_BS[:, None, None, :]
    return bool(
        (compute_visibility(mask, queries_BT, keys_BS, heads) & (q_idx >= 0) & (q_idx < kv_idx)).any()
    )


@lru_cache(maxsize=4096)
def can_step_see_future(mask: Mask | None, n_past: int, n_new: int, heads: int) -> bool:
    """`can_see_future` for queries at 0..n_past-1 and the `n_new` keys that follow.

    Results are cached, because decoding calls it at every step.
    """
    return can_see_future(mask, torch.arange(n_past)[None], torch.arange(n_past, n_past + n_new)[None], heads)


def can_decoding_miss_keys(mask: Mask | None, n_past: int, n_total: int, heads: int) -> bool:
    """Return True if decoding from `n_past` to `n_total` adds a key that an earlier query should have seen.

    Decoding goes token by token.
    """
    keys = torch.arange(n_past, n_total).split(256)
    queries = torch.arange(n_total)[None]
    return any(
        can_see_future(mask, queries[:, : int(key_chunk[-1])], key_chunk[None], heads) for key_chunk in keys
    )


def require_no_missed_keys(
    mask: Mask | None, queries_BT: Tensor, keys_BS: Tensor, heads: int, n_past: int | None
) -> None:
    """Raise `Unsupported` if the mask let a cached query see one of the new keys.

    Args:
        n_past: the tokens before the new ones if positions are consecutive, for which results are cached;
            else None.
    """
    n_new = queries_BT.shape[1]
    if n_past is None:
        misses_keys = can_see_future(mask, keys_BS[:, :-n_new], queries_BT, heads)
    else:
        misses_keys = can_step_see_future(mask, n_past, n_new, heads)
    if misses_keys:
        raise Unsupported(MISSED_KEYS_ERROR)
