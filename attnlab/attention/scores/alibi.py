"""ALiBi: a penalty linear in the distance."""

import math

import torch
from torch import Tensor

from attnlab.attention.scores.bias import Bias


class Alibi(Bias):
    """-slope[h] * |q_idx - kv_idx|, with slopes 2^(-8/H), 2^(-16/H), ...

    If H is not a power of two: the slopes of the power below, then every second one of the power above, as in
    the paper. Source: Press et al. 2022, arXiv 2108.12409, §3.
    """

    slopes: Tensor

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(self.compute_slopes(n_heads)), persistent=False)

    @staticmethod
    def compute_slopes(n_heads: int) -> list[float]:
        """Slopes per head, steepest first for a power of two."""
        power = 2 ** int(math.log2(n_heads))
        slopes = [2 ** (-8 * (n + 1) / power) for n in range(power)]
        return slopes + [2 ** (-4 * (2 * n + 1) / power) for n in range(n_heads - power)]

    def compute_bias(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Penalty linear in the distance, in the dtype of the slopes."""
        return -self.slopes[h] * (q_idx - kv_idx).abs()


class CoarseAlibi(Alibi):
    """ALiBi of released Falcon models: slope[h] * kv_idx in bfloat16, times `scale`.

    Both factors and their product are rounded to bfloat16, so far keys share a penalty. Falcon adds the
    penalty before scores are scaled, hence `scale`.
    """

    def __init__(self, n_heads: int, scale: float) -> None:
        super().__init__(n_heads)
        self.scale = scale

    def compute_bias(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Penalty linear in the key's position, which differs from the distance by a constant per row."""
        return (self.slopes[h].bfloat16() * kv_idx.clamp(min=0)).to(self.slopes.dtype) * self.scale
