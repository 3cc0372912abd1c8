"""Muon for hidden matrices and AdamW for the rest, stepped as one optimizer."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn

from attnlab.training.optim.parameter_groups import build_parameter_groups, iterate_trained_parameters


@final
class MuonAdamW(torch.optim.Optimizer):
    """torch's Muon (Jordan 2024) for matrices with a Muon rate in the table, and AdamW for all others.

    Muon's steps are scaled to the size of AdamW's (Liu 2025, 2502.16982, §2.2), so that one `lr` serves both.
    Fused projections, such as q, k and v, are orthogonalized as the one matrix they are.

    Both have their own groups, AdamW's first. State and groups are those of one optimizer, for schedule,
    clipping and checkpoints.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        momentum: float,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"optim.optimizer.momentum must be at least 0 and below 1, got {momentum}")
        hidden = []
        rest = []
        for weight, row in iterate_trained_parameters(model):
            if row.muon_lr is not None and weight.ndim == 2:
                hidden.append((weight, row.muon_lr))
            else:
                rest.append((weight, row.adam_lr))
        self._adamw = torch.optim.AdamW(
            build_parameter_groups(rest, lr, weight_decay), lr=lr, betas=betas, fused=True
        )
        self._muon = torch.optim.Muon(
            build_parameter_groups(hidden, lr, weight_decay),
            lr=lr,
            momentum=momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        super().__init__([*self._adamw.param_groups, *self._muon.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step both over the current groups and state, which loading a checkpoint replaces."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        n_adamw_groups = len(self._adamw.param_groups)
        for optimizer, groups in (
            (self._adamw, self.param_groups[:n_adamw_groups]),
            (self._muon, self.param_groups[n_adamw_groups:]),
        ):
            optimizer.param_groups = groups
            optimizer.state = self.state
            optimizer.step()
        return loss
