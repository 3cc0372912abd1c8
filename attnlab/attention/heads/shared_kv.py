"""Heads with queries only, over the keys and values of an earlier layer."""

from typing import final

from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, SharedTensors, State
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import (
    FusedLinear,
    ResidualProjection,
    resolve_head_dim,
    split_heads,
)


@final
class SharedKVHeads(BaseHeads):
    """Cross-layer attention: queries over K/V that an earlier layer of grouped heads shares.

    The earlier layer sets `Attention.writes_shared_kv`. This layer caches nothing. The sizes are those of the
    earlier layer; `qk_norm` normalizes queries, as that layer does its keys, and `norm_eps` is added to their
    mean square.

    Source: Brandon et al. 2024, arXiv 2405.12981, §3.1.
    """

    reads_shared = ("keys",)

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
        super().__init__(n_heads, n_kv_heads, resolve_head_dim(dim, n_heads, head_dim))
        self.q = FusedLinear(dim, {"q": n_heads * self.head_dim}, bias)
        self.q_norm = nn.RMSNorm(self.head_dim, norm_eps) if qk_norm else None
        self.out = ResidualProjection(n_heads * self.head_dim, dim, bias=out_bias)

    def project(
        self, x_BTM: Tensor, rotate: Rotate, shared_tensors: SharedTensors | None = None
    ) -> tuple[Tensor, State]:
        """Compute q [B, H, T, D] and an empty state: the state to expand is the earlier layer's."""
        q = split_heads(self.q(x_BTM), self.head_dim)
        return rotate(q if self.q_norm is None else self.q_norm(q)), ()

    def state_width(self) -> int:
        """0: nothing is cached."""
        return 0

    @property
    def projection(self) -> FusedLinear:
        """Query projection."""
        return self.q
