"""Scores that sharpen with the number of keys."""

import math
from types import MappingProxyType

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Score


def log_length(base: float) -> Score:
    """score * ln(q_pos + 1) / ln(base): sharper with more keys, neutral at q_pos + 1 = base (Chiang & Cholak
    2022, §5.3).
    """
    if not base > 1:
        raise ValueError(f"log_length needs base > 1, got {base}")

    def log_length_score(score: Tensor, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        return score * (_log_keys(q_pos, score.dtype) / math.log(base))

    return log_length_score


class LearnedLogLength(nn.Module):
    """score * slope[h] * ln(q_pos + 1), a learned slope per head (SSMax, Nakanishi 2025, arXiv 2501.19399,
    eq. 3). Slopes start at 1 / ln(base), neutral at that length; in the paper at one number for any length.
    """

    kinds = MappingProxyType({"slope": "vector"})

    def __init__(self, n_heads: int, base: float) -> None:
        super().__init__()
        if not base > 1:
            raise ValueError(f"a learned log length needs base > 1, got {base}")
        self.slope = nn.Parameter(torch.full((n_heads,), 1 / math.log(base)))

    def forward(self, score: Tensor, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        """The score, sharpened; that of the first token is 0."""
        return score * (self.slope[h].to(score.dtype) * _log_keys(q_pos, score.dtype))


def _log_keys(q_pos: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.log((q_pos + 1).clamp(min=1).to(dtype))
