"""Heads that have queries alone: their keys and values are an earlier layer's."""

from typing import final

from torch import Tensor, nn

from attnlab.attention.contracts import Channel, Rotate, State
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import IntoResidual, by_head, head_width


@final
class BorrowedHeads(BaseHeads):
    """Cross-layer attention (Brandon et al. 2024, arXiv 2405.12981, §3.1): queries of its own over keys and
    values that an earlier layer of grouped heads lends (`Attention.lends_keys`). Nothing is cached here.

    The sizes are those of the lending layer; `qk_norm` normalises queries, as that layer does its keys, and
    `norm_eps` is added to their mean square.
    """

    reads = ("keys",)

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int | None,
        bias: bool,
        out_bias: bool,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(n_heads, n_kv_heads, head_width(dim, n_heads, head_dim))
        self.q = nn.Linear(dim, n_heads * self.head_dim, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, norm_eps) if qk_norm else None
        self.out = IntoResidual(n_heads * self.head_dim, dim, bias=out_bias)

    def project(self, x_BTM: Tensor, rotate: Rotate, channel: Channel | None = None) -> tuple[Tensor, State]:
        """q [B, H, T, D], and no state: that to expand is lent."""
        q = by_head(self.q(x_BTM), self.head_dim)
        return rotate(q if self.q_norm is None else self.q_norm(q)), ()

    def state_width(self) -> int:
        """Nothing is cached."""
        return 0

    @property
    def projection(self) -> nn.Linear:
        """That of the queries."""
        return self.q
