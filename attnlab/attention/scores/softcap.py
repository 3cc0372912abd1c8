"""Soft caps: scores that stay within a bound."""

import torch
from torch import Tensor

from attnlab.attention.contracts import Score


def softcap(cap: float) -> Score:
    """cap * tanh(score / cap): scores stay within ±cap (Gemma 2, arXiv 2408.00118, §2)."""
    if not cap > 0:
        raise ValueError(f"softcap needs cap > 0, got {cap}")

    def softcap_score(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return softcap_score
