"""Differential attention as heads: two softmax maps per output head, the second taken off the first when
they are merged.
"""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, head_width
from attnlab.attention.past.past import Past


@final
class DifferentialHeads(BaseHeads):
    """(softmax_1 - λ softmax_2) v, normalised per head and scaled by 1 - λ_0 (Ye et al. 2024, arXiv
    2410.05258, eq. 1-3).

    `n_heads` counts softmax maps, so two make one output head of twice the width, and the parameters are
    those of `GroupedHeads`. The first half of the heads are the minuends. λ = exp(a·b) - exp(c·d) + λ_0, with
    λ_0 the same in every layer (the paper's ablation finds 0.8 as good as a value by depth). `norm_gain`:
    the norm has a learned gain. All norms add `norm_eps` to the mean square. `convolution` as
    of `GroupedHeads`. State: (k [B, G, S, D], v [B, G / 2, S, 2D]).
    """

    kinds = MappingProxyType({"lambdas": "factor"})
    normalises = True

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
        norm_gain: bool = True,
        norm_eps: float = 1e-6,
    ) -> None:
        if value_residual:
            raise Unsupported("heads=differential has wide values, which two maps share: use values=own")
        if n_heads < 2 or n_heads % 2 or n_kv_heads < 2 or n_kv_heads % 2 or n_heads % n_kv_heads:
            raise ValueError(
                "differential attention needs even numbers of heads and KV heads, the latter dividing the "
                f"former, got {n_heads} and {n_kv_heads}"
            )
        if not 0 <= lambda_init < 1:
            raise ValueError(f"lambda_init must lie in [0, 1), got {lambda_init}")
        width = head_width(dim, n_heads, head_dim)
        super().__init__(n_heads, n_kv_heads, width, value_dim=2 * width)
        self.lambda_init = lambda_init
        wide = n_heads * self.head_dim
        narrow = n_kv_heads * self.head_dim
        self.qkv = Fused(dim, {"q": wide, "k": narrow, "v": narrow}, bias)
        self.q_norm = nn.RMSNorm(self.head_dim, norm_eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, norm_eps) if qk_norm else None
        self.convolve(2 * narrow, convolution)
        self.lambdas = nn.Parameter(torch.full((4, self.head_dim), 0.1))  # zeros would stay zeros
        self.norm = nn.RMSNorm(self.value_dim, norm_eps, elementwise_affine=norm_gain)
        self.out = IntoResidual(wide, dim, bias=out_bias)

    def project(self, x_BTM: Tensor, rotate: Rotate, past: Past | None = None) -> tuple[Tensor, State]:
        """q [B, H, T, D] and the new tokens' state."""
        q, k, v = self.convolution.beside(self.qkv(x_BTM), self.qkv.widths, past, "heads")
        q = by_head(q, self.head_dim)
        k = by_head(k, self.head_dim)
        v = by_head(v, self.value_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return rotate(q), (rotate(k), v)

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """Both maps read the same values."""
        k, v = state
        return k, torch.cat((v, v), dim=1)

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """First half minus λ times second half, normalised, projected out."""
        first, second = y_BHTV.chunk(2, dim=1)
        a, b, c, d = self.lambdas
        share = (a @ b).exp() - (c @ d).exp() + self.lambda_init
        y = self.norm(first - share * second) * (1 - self.lambda_init)
        return super().merge(y)

    def state_width(self) -> int:
        """2 G D."""
        return 2 * self.n_kv_heads * self.head_dim
