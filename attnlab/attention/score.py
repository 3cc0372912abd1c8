"""Scores: pointwise functions (score, b, h, i, j) -> score, applied in the order of the config before the
mask.

What only adds is declared by its type (`Bias`), because a fused kernel can take an addition and nothing
else. Asking a function for its value at zero to find its bias would silently delete a soft cap.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Bias(nn.Module, ABC):
    """A score that adds `bias(b, h, i, j)` and does nothing else."""

    @abstractmethod
    def bias(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """What is added; broadcasts to [B, H, T, S]."""

    def forward(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """score + bias."""
        return score + self.bias(b, h, i, j).to(score.dtype)


class Alibi(Bias):
    """-slope[h] * |i - j|, slopes 2^(-8/H), 2^(-16/H), ... (Press et al. 2022, arXiv 2108.12409, §3).

    Where H is no power of two: the slopes of the power below, then every second one of the power above, as
    in the paper.
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(self.slope(n_heads)), persistent=False)

    @staticmethod
    def slope(n_heads: int) -> list[float]:
        """The head-specific slopes, steepest first for a power of two."""
        power = 2 ** int(math.log2(n_heads))
        slopes = [2 ** (-8 * (n + 1) / power) for n in range(power)]
        return slopes + [2 ** (-4 * (2 * n + 1) / power) for n in range(n_heads - power)]

    def bias(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Linear in the distance, in the dtype of the slopes."""
        return -self.slopes[h] * (i - j).abs()


class RelativeBias(Bias):
    """A learned number per head and bucket of i - j (T5, Raffel et al. 2020, §2.1), one-sided: made for
    causal masks.

    The first half of the buckets holds one distance each; the rest grow with the logarithm up to
    `max_distance`. Keys after the query share bucket 0.
    """

    def __init__(self, n_heads: int, buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        if buckets < 2 or max_distance <= buckets // 2:
            raise ValueError(
                f"relative positions need buckets >= 2 and max_distance > buckets / 2, got "
                f"buckets={buckets} and max_distance={max_distance}"
            )
        self.buckets, self.max_distance = buckets, max_distance
        self.table = nn.Parameter(torch.zeros(buckets, n_heads))

    def bucket(self, distance: Tensor) -> Tensor:
        """Bucket of i - j: exact below buckets/2, logarithmic above, the last one for everything beyond."""
        exact = self.buckets // 2
        distance = distance.clamp(min=0)
        ratio = torch.log(distance.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        far = exact + (ratio * (self.buckets - exact)).to(distance.dtype)
        return torch.where(distance < exact, distance, far.clamp(max=self.buckets - 1))

    def bias(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """table[bucket(i - j), h]."""
        return self.table[self.bucket(i - j), h]


def softcap(cap: float) -> Score:
    """cap * tanh(score / cap): scores stay within ±cap (Gemma 2, arXiv 2408.00118, §2)."""
    if not cap > 0:
        raise ValueError(f"softcap needs cap > 0, got {cap}")

    def softcap_score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return softcap_score


def log_length(base: float) -> Score:
    """score * ln(i + 1) / ln(base): sharper with more keys, neutral at i + 1 = base (Chiang & Cholak 2022,
    §5.3).
    """
    if not base > 1:
        raise ValueError(f"log_length needs base > 1, got {base}")

    def log_length_score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score * (torch.log((i + 1).clamp(min=1).to(score.dtype)) / math.log(base))

    return log_length_score
