"""A mixture of experts in the place of an FFN: what each token passes is chosen by a router."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.heads.projections import IntoResidual


@final
class Experts(nn.Module):
    """The sum of the `n_chosen` experts with the largest logits for a token, weighted by the softmax of these
    logits (gpt-oss, arXiv 2508.10925, §2.2).

    An expert is down((up(x) + 1) * gate(x) * sigmoid(sharpness * gate(x))), `up` kept within ±`limit` and
    `gate` below it. A plain loop in which every expert computes every token: it tells what a mixture is
    worth, not how fast it is. ValueError where there are fewer experts than are chosen.
    """

    kinds = MappingProxyType({"router.weight": "thin"})

    def __init__(
        self,
        dim: int,
        width: int,
        bias: bool,
        n_experts: int,
        n_chosen: int,
        sharpness: float = 1.702,
        limit: float = 7.0,
    ) -> None:
        super().__init__()
        if not 1 <= n_chosen <= n_experts:
            raise ValueError(f"a mixture chooses 1 to all of its experts, got {n_chosen} of {n_experts}")
        self.n_experts = n_experts
        self.n_chosen = n_chosen
        self.sharpness = sharpness
        self.limit = limit
        self.router = nn.Linear(dim, n_experts, bias=bias)
        self.up = nn.Linear(dim, n_experts * 2 * width, bias=bias)  # by expert: its gate, then its up
        self.down = IntoResidual(width, n_experts * dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, M] -> [B, T, M]."""
        logits = self.router(x)
        chosen = logits.topk(self.n_chosen, dim=-1)
        shares = chosen.values.softmax(-1).to(logits.dtype)
        weights = torch.zeros_like(logits).scatter(-1, chosen.indices, shares)
        written = torch.zeros_like(x)
        for n, (up, down) in enumerate(zip(self._each(self.up), self._each(self.down), strict=True)):
            gate, scale = nn.functional.linear(x, *up).chunk(2, dim=-1)
            gate = gate.clamp(max=self.limit)
            scale = scale.clamp(-self.limit, self.limit) + 1
            hidden = scale * gate * torch.sigmoid(self.sharpness * gate)
            written = written + weights[..., n, None] * nn.functional.linear(hidden, *down)
        return written

    def _each(self, together: nn.Linear) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of every expert."""
        weights = together.weight.chunk(self.n_experts)
        biases = [None] * self.n_experts if together.bias is None else together.bias.chunk(self.n_experts)
        return list(zip(weights, biases, strict=True))
