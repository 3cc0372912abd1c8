"""What a layer reads of what the layers before it wrote."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn


@final
class DepthAttention(nn.Module):
    """Attention residuals (Kimi 2026, arXiv 2603.15031): a softmax over w·norm(v) weighs the embedding and
    each output v so far, in the place of their sum. w is learned, one for each reader, and starts at 0: all
    alike. The norm adds `norm_eps` to the mean square.
    """

    kinds = MappingProxyType({"query": "vector"})

    def __init__(self, dim: int, norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.norm = nn.RMSNorm(dim, norm_eps)

    def forward(self, written: Sequence[Tensor]) -> Tensor:
        """[B, T, M] each -> [B, T, M]."""
        stack = torch.stack(tuple(written))
        weights = (self.norm(stack) @ self.query).softmax(0)
        return (weights[..., None] * stack).sum(0)
