"""What kernels share: the axes that masks and scores are asked with, and rows that see nothing."""

import torch
from torch import Tensor

from attnlab.attention.contracts import Mask


def axes(rows: int, heads: int, device: torch.device) -> tuple[Tensor, Tensor]:
    b = torch.arange(rows, device=device)[:, None, None, None]
    h = torch.arange(heads, device=device)[None, :, None, None]
    return b, h


def opened(mask: Mask, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """(visible, alive): rows that see nothing are opened and reported: a softmax over nothing is NaN."""
    visible = mask(b, h, i, j)
    alive = visible.any(-1, keepdim=True)
    return visible | ~alive, alive
