"""What kernels share: the indices that masks and scores are asked with, rows that see nothing, and sizes that
torch.compile leaves open.
"""

import torch
from torch import Tensor

from attnlab.attention.contracts import Mask


def batch_and_head(rows: int, heads: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """b [B, 1, 1, 1] and h [1, H, 1, 1]: which row and which head a score is of."""
    b = torch.arange(rows, device=device)[:, None, None, None]
    h = torch.arange(heads, device=device)[None, :, None, None]
    return b, h


def open_blind_rows(mask: Mask, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> tuple[Tensor, Tensor]:
    """(visible, sighted): rows that see nothing are opened, since a softmax over nothing is NaN; `sighted`
    [..., T, 1] is False for them, so that their outputs can be made zero.
    """
    visible = mask(b, h, q_pos, kv_pos)
    sighted = visible.any(-1, keepdim=True)
    return visible | ~sighted, sighted


def settled(truth: bool) -> bool:
    """True or False itself. Where torch.compile leaves a size open, a comparison of it is a symbol, which
    torch's kernels refuse as an option: a branch decides it, `bool()` does not.
    """
    return True if truth else False  # noqa: SIM210
