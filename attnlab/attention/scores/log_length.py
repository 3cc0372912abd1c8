"""Scores that sharpen with the number of keys."""

import math

import torch
from torch import Tensor

from attnlab.attention.contracts import Score


def log_length(base: float) -> Score:
    """score * ln(q_pos + 1) / ln(base): sharper with more keys, neutral at q_pos + 1 = base (Chiang & Cholak
    2022, §5.3).
    """
    if not base > 1:
        raise ValueError(f"log_length needs base > 1, got {base}")

    def log_length_score(score: Tensor, b: Tensor, h: Tensor, q_pos: Tensor, kv_pos: Tensor) -> Tensor:
        return score * (torch.log((q_pos + 1).clamp(min=1).to(score.dtype)) / math.log(base))

    return log_length_score
