"""Mixture of experts in place of an FFN: a router chooses the experts of each token."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.heads.projections import ResidualProjection
from attnlab.model.transformer import SwiGlu


@final
class Experts(nn.Module):
    """Sum of a token's `n_chosen` top experts, weighted by the softmax of their logits.

    An expert is down((up(x) + offset) * gate(x) * sigmoid(sharpness * gate(x))), with `up` clamped to
    ±`limit` and `gate` to at most `limit`. The defaults are those of gpt-oss (arXiv 2508.10925, §2.2).
    Sharpness 1 and offset 0 without a limit are SwiGLU, as in Mixtral (arXiv 2401.04088, §2.1). A plain loop
    computes every expert on every token: the quality is that of a mixture, the speed is not.

    Args:
        renormalize: Weights of the chosen experts sum to 1; false is a softmax over all experts.
        shared_width: Width of a SwiGLU expert that every token uses, with a sigmoid gate (Qwen2-MoE).

    Raises:
        ValueError: `n_chosen` is not between 1 and `n_experts`, or `shared_width` is below 1.
    """

    kinds = MappingProxyType({"router.weight": "thin", "shared_gate.weight": "thin"})

    def __init__(
        self,
        dim: int,
        width: int,
        bias: bool,
        n_experts: int,
        n_chosen: int,
        sharpness: float = 1.702,
        limit: float | None = 7.0,
        offset: float = 1.0,
        renormalize: bool = True,
        shared_width: int | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= n_chosen <= n_experts:
            raise ValueError(
                f"n_chosen must lie in [1, n_experts], got n_chosen={n_chosen} and n_experts={n_experts}"
            )
        if shared_width is not None and shared_width < 1:
            raise ValueError(f"shared_width must be at least 1, got {shared_width}")
        self.n_experts = n_experts
        self.n_chosen = n_chosen
        self.sharpness = sharpness
        self.limit = limit
        self.offset = offset
        self.renormalize = renormalize
        self.router = nn.Linear(dim, n_experts, bias=bias)
        self.up = nn.Linear(dim, n_experts * 2 * width, bias=bias)  # by expert: its gate, then its up
        self.down = ResidualProjection(width, n_experts * dim, bias=bias)
        self.shared = None if shared_width is None else SwiGlu(dim, shared_width, bias)
        self.shared_gate = None if shared_width is None else nn.Linear(dim, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, M] -> [B, T, M]."""
        logits = self.router(x)
        top = logits.topk(self.n_chosen, dim=-1)
        probabilities = (
            top.values.softmax(-1) if self.renormalize else logits.softmax(-1).gather(-1, top.indices)
        )
        weights = torch.zeros_like(logits).scatter(-1, top.indices, probabilities.to(logits.dtype))
        output = torch.zeros_like(x)
        if self.shared is not None and self.shared_gate is not None:
            output = torch.sigmoid(self.shared_gate(x)) * self.shared(x)
        for n, (up, down) in enumerate(
            zip(self._split_experts(self.up), self._split_experts(self.down), strict=True)
        ):
            gate, scale = nn.functional.linear(x, *up).chunk(2, dim=-1)
            if self.limit is not None:
                gate = gate.clamp(max=self.limit)
                scale = scale.clamp(-self.limit, self.limit)
            hidden = (scale + self.offset) * gate * torch.sigmoid(self.sharpness * gate)
            output = output + weights[..., n, None] * nn.functional.linear(hidden, *down)
        return output

    def _split_experts(self, fused: nn.Linear) -> list[tuple[Tensor, Tensor | None]]:
        """Split a fused layer into the weight and bias of every expert."""
        weights = fused.weight.chunk(self.n_experts)
        biases = [None] * self.n_experts if fused.bias is None else fused.bias.chunk(self.n_experts)
        return list(zip(weights, biases, strict=True))
