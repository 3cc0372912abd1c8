"""A penalty that is linear in the distance."""

import math

import torch
from torch import Tensor

from attnlab.attention.scores.bias import Bias


class Alibi(Bias):
    """-slope[h] * |q_pos - kv_pos|, slopes 2^(-8/H), 2^(-16/H), ... (Press et al. 2022, arXiv 2108.12409,
    §3).

    Where H is no power of two: the slopes of the power below, then every second one of the power above, as
    in the paper.
    """

    slopes: Tensor

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(self.slope(n_heads)), persistent=False)

    @staticmethod
    def slope(n_heads: int) -> list[float]:
        """The head-specific slopes, steepest first for a power of two."""
        power = 2 ** int(math.log2(n_heads))
        slopes = [2 ** (-8 * (n + 1) / power) for n in range(power)]
        return slopes + [2 ** (-4 * (2 * n + 1) / power) for n in range(n_heads - power)]

    def bias(self, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        """Linear in the distance, in the dtype of the slopes."""
        return -self.slopes[h] * (q_pos - kv_pos).abs()


class CoarseAlibi(Alibi):
    """As released Falcon models compute it: slope[h] * kv_pos, both and their product in bfloat16, so that
    far keys share a penalty; times `scale`, since there it is added before scores are scaled.
    """

    def __init__(self, n_heads: int, scale: float) -> None:
        super().__init__(n_heads)
        self.scale = scale

    def bias(self, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        """Linear in the key's position, which differs from the distance by a number a row."""
        return (self.slopes[h].bfloat16() * kv_pos.clamp(min=0)).to(self.slopes.dtype) * self.scale
