"""What only adds is declared by its type, because a fused kernel can take an addition and nothing else.

Asking a function for its value at zero to find its bias would silently delete a soft cap.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Bias(nn.Module, ABC):
    """A score that adds `bias(b, h, q_pos, kv_pos)` and does nothing else."""

    @abstractmethod
    def bias(self, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        """What is added; broadcasts to [B, H, T, S]."""

    def forward(self, score: Tensor, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        """score + bias."""
        return score + self.bias(b, h, q_pos, kv_pos).to(score.dtype)
