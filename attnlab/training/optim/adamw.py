"""AdamW over all parameters."""

import torch
from torch import nn

from attnlab.training.optim.groups import groups, learned


def adamw(
    model: nn.Module, *, lr: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """torch's, fused."""
    rates = ((weight, row.adam) for weight, row in learned(model))
    return torch.optim.AdamW(groups(rates, lr, weight_decay), lr=lr, betas=betas, fused=True)
