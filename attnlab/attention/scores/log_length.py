"""Scores that sharpen with the number of keys."""

import math
from types import MappingProxyType

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Score


def log_length(base: float) -> Score:
    """score * ln(q_idx + 1) / ln(base): sharper with more keys, neutral at q_idx + 1 = base.

    Source: Chiang & Cholak 2022, §5.3.
    """
    if not base > 1:
        raise ValueError(f"log_length needs base > 1, got {base}")

    def log_length_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score * (_log_key_count(q_idx, score.dtype) / math.log(base))

    return log_length_score


class LearnedLogLength(nn.Module):
    """score * slope[h] * ln(q_idx + 1), with a learned slope per head (SSMax).

    Slopes start at 1 / ln(base), neutral at that length; in the paper they start at one number for any
    length. Source: Nakanishi 2025, arXiv 2501.19399, eq. 3.
    """

    kinds = MappingProxyType({"slope": "vector"})

    def __init__(self, n_heads: int, base: float) -> None:
        super().__init__()
        if not base > 1:
            raise ValueError(f"learned log_length needs base > 1, got {base}")
        self.slope = nn.Parameter(torch.full((n_heads,), 1 / math.log(base)))

    def forward(self, score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        """Sharpen the score; that of the first token is 0."""
        return score * (self.slope[h].to(score.dtype) * _log_key_count(q_idx, score.dtype))


def _log_key_count(q_idx: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.log((q_idx + 1).clamp(min=1).to(dtype))
