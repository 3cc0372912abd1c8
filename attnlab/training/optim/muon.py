"""Muon for hidden matrices and AdamW for the rest, stepped as one optimiser."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn

from attnlab.training.optim.groups import groups, learned


@final
class MuonAdamW(torch.optim.Optimizer):
    """torch's own Muon (Jordan 2024) takes the matrices that the table has a rate of Muon's for, AdamW all
    else. A step of Muon is made as large as one of AdamW's (Liu 2025, 2502.16982, §2.2), so that one `lr`
    serves both. Projections that are fused, as q, k and v are, are orthogonalised as the one matrix they are.

    Each has its own groups, AdamW's first; state and groups are one optimiser's, for schedule, clipping and
    checkpoints.
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
        for weight, row in learned(model):
            if row.muon is not None and weight.ndim == 2:
                hidden.append((weight, row.muon))
            else:
                rest.append((weight, row.adam))
        self._adamw = torch.optim.AdamW(groups(rest, lr, weight_decay), lr=lr, betas=betas, fused=True)
        self._muon = torch.optim.Muon(
            groups(hidden, lr, weight_decay), lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw"
        )
        super().__init__([*self._adamw.param_groups, *self._muon.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Both, over today's groups and state: a checkpoint that was loaded has replaced them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        split = len(self._adamw.param_groups)
        for part, own in (
            (self._adamw, self.param_groups[:split]),
            (self._muon, self.param_groups[split:]),
        ):
            part.param_groups = own
            part.state = self.state
            part.step()
        return loss
