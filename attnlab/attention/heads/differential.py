"""Differential attention: two softmax maps per output head, the second subtracted when heads are merged."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, resolve_head_dim, split_heads
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class DifferentialHeads(BaseHeads):
    """Differential attention (softmax_1 - λ softmax_2) v, normalized per head and scaled by 1 - λ_0.

    `n_heads` counts softmax maps, so two make one output head of twice the width, and the parameters are
    those of `GroupedHeads`. The first half of the heads are the minuends. λ = exp(a·b) - exp(c·d) + λ_0, with
    λ_0 the same in every layer (in the paper's ablation 0.8 is as good as a value by depth). `norm_gain`: the
    norm has a learned gain. All norms add `norm_eps` to the mean square. `convolution`: see `GroupedHeads`.
    State: (k [B, G, S, D], v [B, G / 2, S, 2D]).

    Source: Ye et al. 2024, arXiv 2410.05258, eq. 1-3.
    """

    kinds = MappingProxyType({"lambdas": "factor"})
    normalizes_heads = True

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int | None,
        bias: bool,
        out_bias: bool,
        qk_norm: bool = False,
        lambda_init: float = 0.8,
        convolution: int = 0,
        value_residual: bool = False,
        key_offset: bool = False,
        norm_gain: bool = True,
        norm_eps: float = 1e-6,
    ) -> None:
        if value_residual:
            raise Unsupported(
                "heads=differential shares wide values between two maps and cannot mix them: use values=own"
            )
        if key_offset:
            raise Unsupported("heads=differential has two keys per head and cannot shift them: use keys=own")
        if n_heads < 2 or n_heads % 2 or n_kv_heads < 2 or n_kv_heads % 2 or n_heads % n_kv_heads:
            raise ValueError(
                "heads=differential needs an even n_heads and an even n_kv_heads that divides it, "
                f"got {n_heads} and {n_kv_heads}"
            )
        if not 0 <= lambda_init < 1:
            raise ValueError(f"lambda_init must lie in [0, 1), got {lambda_init}")
        width = resolve_head_dim(dim, n_heads, head_dim)
        super().__init__(n_heads, n_kv_heads, width, value_dim=2 * width)
        self.lambda_init = lambda_init
        q_width = n_heads * self.head_dim
        kv_width = n_kv_heads * self.head_dim
        self.qkv = FusedLinear(dim, {"q": q_width, "k": kv_width, "v": kv_width}, bias)
        self.q_norm = nn.RMSNorm(self.head_dim, norm_eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, norm_eps) if qk_norm else None
        self.add_convolution(2 * kv_width, convolution)
        self.lambdas = nn.Parameter(torch.full((4, self.head_dim), 0.1))  # zeros would have zero gradients
        self.norm = nn.RMSNorm(self.value_dim, norm_eps, elementwise_affine=norm_gain)
        self.out = ResidualProjection(q_width, dim, bias=out_bias)

    def project(
        self, x_BTM: Tensor, rotate: Rotate, recurrent_state: RecurrentState | None = None
    ) -> tuple[Tensor, State]:
        """Compute q [B, H, T, D] and the state of the new tokens."""
        q, k, v = self.convolution.split_and_convolve(
            self.qkv(x_BTM), self.qkv.widths, recurrent_state, "heads"
        )
        q = split_heads(q, self.head_dim)
        k = split_heads(k, self.head_dim)
        v = split_heads(v, self.value_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return rotate(q), (rotate(k), v)

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """Repeat the values: both maps read the same ones."""
        k, v = state
        return k, torch.cat((v, v), dim=1)

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """Subtract λ times the second half of the heads from the first, normalize, project."""
        first, second = y_BHTV.chunk(2, dim=1)
        a, b, c, d = self.lambdas
        factor = (a @ b).exp() - (c @ d).exp() + self.lambda_init
        y = self.norm(first - factor * second) * (1 - self.lambda_init)
        return super().merge(y)

    def state_width(self) -> int:
        """2 G D numbers."""
        return 2 * self.n_kv_heads * self.head_dim
