"""Helpers of kernels: index tensors, rows without visible keys, and sizes that torch.compile leaves open."""

import torch
from torch import Tensor

from attnlab.attention.contracts import Mask


def make_batch_head_indices(rows: int, heads: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row indices b [B, 1, 1, 1] and head indices h [1, H, 1, 1], the arguments of masks and scores."""
    b = torch.arange(rows, device=device)[:, None, None, None]
    h = torch.arange(heads, device=device)[None, :, None, None]
    return b, h


def unmask_empty_rows(
    mask: Mask, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor
) -> tuple[Tensor, Tensor]:
    """Make rows without a visible key fully visible, because a softmax over no keys is NaN.

    Returns:
        (visible, sees_any_key). `sees_any_key` [..., T, 1] is False for these rows, so that callers can set
        their outputs to zero.
    """
    visible = mask(b, h, q_idx, kv_idx)
    sees_any_key = visible.any(-1, keepdim=True)
    return visible | ~sees_any_key, sees_any_key


def to_python_bool(condition: bool) -> bool:
    """Return True or False itself, even for a comparison of sizes that torch.compile leaves open.

    Such a comparison is a symbol, which torch's kernels reject as an option. A branch decides it, `bool()`
    does not.
    """
    return True if condition else False  # noqa: SIM210
