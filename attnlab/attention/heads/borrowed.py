"""Heads that have queries alone: their keys and values are an earlier layer's."""

from typing import final

from torch import Tensor, nn

from attnlab.attention.contracts import Channel, Rotate, State
from attnlab.attention.heads.projections import IntoResidual, by_head, head_width, merged, require_groups


@final
class BorrowedHeads(nn.Module):
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
        super().__init__()
        self.head_dim = head_width(dim, n_heads, head_dim)
        require_groups(n_heads, n_kv_heads)
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.score_dim = self.rope_dim = self.head_dim
        self.q = nn.Linear(dim, n_heads * self.head_dim, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, norm_eps) if qk_norm else None
        self.out = IntoResidual(n_heads * self.head_dim, dim, bias=out_bias)

    def project(self, x_BTM: Tensor, rotate: Rotate, channel: Channel | None = None) -> tuple[Tensor, State]:
        """q [B, H, T, D], and no state."""
        q = by_head(self.q(x_BTM), self.head_dim)
        return rotate(q if self.q_norm is None else self.q_norm(q)), ()

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """k, v [B, G, S, D]: the state that was lent."""
        k, v = state
        return k, v

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """Concatenates the heads and projects them out."""
        return self.out(merged(y_BHTV))

    def state_size(self) -> int:
        """Nothing is cached."""
        return 0

    @property
    def projection(self) -> nn.Module:
        """That of the queries."""
        return self.q

    def flops(self, new: int, held: int, absorbed: bool = False) -> int:
        """As of `GroupedHeads`, without projections of keys and values."""
        own = self.q.weight.numel() + self.out.weight.numel()
        return 2 * (new * own + self.n_heads * 2 * self.head_dim * new * held)

    def read_width(self, absorbed: bool = False) -> int:
        """G keys and G values of D."""
        return 2 * self.n_kv_heads * self.head_dim
