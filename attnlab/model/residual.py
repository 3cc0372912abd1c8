"""Attention over depth, in place of the sum in the residual stream."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn


@final
class DepthAttention(nn.Module):
    """Attention residuals (Kimi 2026, arXiv 2603.15031): a softmax over earlier outputs replaces their sum.

    The weights of the embedding and of each output v so far are softmax(w·norm(v)). Each reader learns its
    own w, which starts at 0, so that all weights are equal. The norm adds `norm_eps` to the mean square.
    """

    kinds = MappingProxyType({"query": "vector"})

    def __init__(self, dim: int, norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.norm = nn.RMSNorm(dim, norm_eps)

    def forward(self, outputs: Sequence[Tensor]) -> Tensor:
        """Mix outputs of [B, T, M] each into [B, T, M]."""
        stack = torch.stack(tuple(outputs))
        weights = (self.norm(stack) @ self.query).softmax(0)
        return (weights[..., None] * stack).sum(0)
