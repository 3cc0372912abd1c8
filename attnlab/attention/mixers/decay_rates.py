"""Decay rates of a head's memory, per token."""

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@final
class DecayRates(nn.Module):
    """Steps softplus(x W + b) and log decays ln a = -exp(A) step, per head.

    Initial values are spread evenly over the heads, where the papers draw them at random: exp(A) from 1 to
    16, steps geometrically from 0.001 to 0.1. Sources: Gu & Dao 2023, arXiv 2312.00752, §3.2; Dao & Gu 2024,
    2405.21060, §7.1.
    """

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.step = nn.Linear(dim, n_heads, bias=False)
        self.kinds = {"step.weight": "thin"}
        self.log_rate = nn.Parameter(torch.linspace(1, 16, n_heads).log())
        steps = torch.logspace(math.log10(1e-3), math.log10(1e-1), n_heads)
        self.shift = nn.Parameter(steps.expm1().log())  # inverse of the softplus

    def forward(self, x_BTM: Tensor) -> tuple[Tensor, Tensor]:
        """Compute steps and ln a, each [B, H, T], in float32 at least."""
        raw = self.step(x_BTM)
        compute_dtype = torch.promote_types(raw.dtype, torch.float32)
        steps = F.softplus(raw.to(compute_dtype) + self.shift).transpose(1, 2)
        return steps, -self.log_rate.exp()[:, None] * steps
