"""Mixture of experts in place of an FFN: a router chooses the experts of each token."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.heads.projections import ResidualProjection


@final
class Experts(nn.Module):
    """Sum of a token's `n_chosen` top experts, weighted by the softmax of their logits.

    Source: gpt-oss, arXiv 2508.10925, §2.2. An expert is down((up(x) + 1) * gate(x) * sigmoid(sharpness *
    gate(x))), with `up` clamped to ±`limit` and `gate` to at most `limit`. A plain loop computes every expert
    on every token: the quality is that of a mixture, the speed is not.

    Raises:
        ValueError: `n_chosen` is not between 1 and `n_experts`.
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
            raise ValueError(
                f"n_chosen must lie in [1, n_experts], got n_chosen={n_chosen} and n_experts={n_experts}"
            )
        self.n_experts = n_experts
        self.n_chosen = n_chosen
        self.sharpness = sharpness
        self.limit = limit
        self.router = nn.Linear(dim, n_experts, bias=bias)
        self.up = nn.Linear(dim, n_experts * 2 * width, bias=bias)  # by expert: its gate, then its up
        self.down = ResidualProjection(width, n_experts * dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, M] -> [B, T, M]."""
        logits = self.router(x)
        top = logits.topk(self.n_chosen, dim=-1)
        probabilities = top.values.softmax(-1).to(logits.dtype)
        weights = torch.zeros_like(logits).scatter(-1, top.indices, probabilities)
        output = torch.zeros_like(x)
        for n, (up, down) in enumerate(
            zip(self._split_experts(self.up), self._split_experts(self.down), strict=True)
        ):
            gate, scale = nn.functional.linear(x, *up).chunk(2, dim=-1)
            gate = gate.clamp(max=self.limit)
            scale = scale.clamp(-self.limit, self.limit) + 1
            hidden = scale * gate * torch.sigmoid(self.sharpness * gate)
            output = output + weights[..., n, None] * nn.functional.linear(hidden, *down)
        return output

    def _split_experts(self, fused: nn.Linear) -> list[tuple[Tensor, Tensor | None]]:
        """Split a fused layer into the weight and bias of every expert."""
        weights = fused.weight.chunk(self.n_experts)
        biases = [None] * self.n_experts if fused.bias is None else fused.bias.chunk(self.n_experts)
        return list(zip(weights, biases, strict=True))
