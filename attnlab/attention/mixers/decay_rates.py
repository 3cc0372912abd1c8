"""Decay rates of a head's memory, per token and head or feature."""

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.heads.projections import split_heads


def _spread_shifts(count: int) -> Tensor:
    """Shifts whose softplus is spread geometrically from 0.001 to 0.1."""
    return torch.logspace(math.log10(1e-3), math.log10(1e-1), count).expm1().log()


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
        self.shift = nn.Parameter(_spread_shifts(n_heads))

    def forward(self, x_BTM: Tensor) -> tuple[Tensor, Tensor]:
        """Compute steps and ln a, each [B, H, T], in float32 at least."""
        raw = self.step(x_BTM)
        compute_dtype = torch.promote_types(raw.dtype, torch.float32)
        steps = F.softplus(raw.to(compute_dtype) + self.shift).transpose(1, 2)
        return steps, -self.log_rate.exp()[:, None] * steps


@final
class FeatureDecayRates(nn.Module):
    """Log decays ln a = -exp(A) softplus(x W_down W_up + b) per head and feature of its keys, of low rank.

    Initial values are spread evenly, exp(A) over the heads as in `DecayRates`, and softplus(b) geometrically
    from 0.001 to 0.1 over a head's features. Source: Kimi Linear, arXiv 2510.26692, §4.
    """

    def __init__(self, dim: int, n_heads: int, features: int, rank: int) -> None:
        super().__init__()
        self.features = features
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, n_heads * features, bias=False)
        self.log_rate = nn.Parameter(torch.linspace(1, 16, n_heads).log())
        self.shift = nn.Parameter(_spread_shifts(features).repeat(n_heads))
        self.kinds = {"up.weight": "latent"}

    def forward(self, x_BTM: Tensor) -> Tensor:
        """Compute ln a [B, H, T, K], in float32 at least."""
        raw = self.up(self.down(x_BTM))
        compute_dtype = torch.promote_types(raw.dtype, torch.float32)
        steps = split_heads(F.softplus(raw.to(compute_dtype) + self.shift), self.features)
        return -self.log_rate.exp()[:, None, None] * steps
