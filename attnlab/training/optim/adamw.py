"""AdamW over all parameters."""

import torch
from torch import nn

from attnlab.training.optim.parameter_groups import build_parameter_groups, iterate_trained_parameters


def adamw(
    model: nn.Module, *, lr: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """Build torch's fused AdamW over all trained parameters."""
    rates = ((weight, row.adam_lr) for weight, row in iterate_trained_parameters(model))
    return torch.optim.AdamW(build_parameter_groups(rates, lr, weight_decay), lr=lr, betas=betas, fused=True)
