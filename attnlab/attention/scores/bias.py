"""Additive scores, declared by their type, because a fused kernel supports an addition and nothing else.

Evaluating a score at zero to find its bias would silently delete a soft cap.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Bias(nn.Module, ABC):
    """Score that adds `compute_bias(b, h, q_idx, kv_idx)` and does nothing else."""

    @abstractmethod
    def compute_bias(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Term added to scores; broadcasts to [B, H, T, S]."""

    def forward(self, score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Return score + bias, in the dtype of the score."""
        return score + self.compute_bias(b, h, q_idx, kv_idx).to(score.dtype)
