"""Tensor product attention: what is cached of a token are the factors of its keys and values."""

from types import MappingProxyType
from typing import final

from torch import Tensor

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, head_width
from attnlab.attention.past.past import Past


@final
class TensorProductHeads(BaseHeads):
    """Queries, keys and values are means of outer products, 1/R sum over r of a_r b_r: a_r [H] says how much
    of b_r [D] each head gets, both projections of the token (Zhang et al. 2025, arXiv 2501.06425, §3).

    R is `rank` for keys and values, `q_rank` for queries. What turns is b_r, before it is cached: the same
    as turning the key. a_r starts as large as the input and b_r as other projections do, so that products
    start about as large as theirs. Keys are put together before they are read: the paper's reading by factors
    is not done. `convolution` as of `GroupedHeads`, of the factors. How rates of factors go with the width is
    not known here: `mup` refuses them. State: (a of keys [B, R, S, H], b of keys [B, R, S, D], a of values, b
    of values).
    """

    has_own_values = True
    kinds = MappingProxyType({"factors.weight": "factors of products"})

    def __init__(
        self,
        dim: int,
        n_heads: int,
        rank: int,
        q_rank: int,
        head_dim: int | None,
        bias: bool,
        out_bias: bool,
        qk_norm: bool = False,
        convolution: int = 0,
        value_residual: bool = False,
    ) -> None:
        if value_residual:
            raise Unsupported("heads=tpa has values made of factors: use values=own")
        if qk_norm:
            raise Unsupported(
                "heads=tpa has no keys to normalise before they turn: use another score than qk_norm"
            )
        if min(rank, q_rank) < 1:
            raise ValueError(f"heads=tpa needs rank and q_rank >= 1, got {rank} and {q_rank}")
        super().__init__(n_heads, n_heads, head_width(dim, n_heads, head_dim))
        self.rank = rank
        self.q_rank = q_rank
        parts: dict[str, int] = {}
        for name, terms in (("q", q_rank), ("k", rank), ("v", rank)):
            parts |= {f"{name}_heads": terms * n_heads, name: terms * self.head_dim}
        self.factors = Fused(dim, parts, bias, unit=("q_heads", "k_heads", "v_heads"))
        _, _, *cached = self.factors.widths
        self.convolve(sum(cached), convolution)
        self.out = IntoResidual(n_heads * self.head_dim, dim, bias=out_bias)

    def project(self, x_BTM: Tensor, rotate: Rotate, past: Past | None = None) -> tuple[Tensor, State]:
        """q [B, H, T, D] and the state of the new tokens."""
        q_heads, q, *cached = self.factors.widths
        of_queries, *factors = self.convolution.beside(
            self.factors(x_BTM), (q_heads + q, *cached), past, "heads"
        )
        a, b = of_queries.split((q_heads, q), dim=-1)
        query = _mean_product(by_head(a, self.n_heads), rotate(by_head(b, self.head_dim)))
        k_heads, k, v_heads, v = factors
        return query, (
            by_head(k_heads, self.n_heads),
            rotate(by_head(k, self.head_dim)),
            by_head(v_heads, self.n_heads),
            by_head(v, self.head_dim),
        )

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """k, v [B, H, S, D]."""
        k_heads, k, v_heads, v = state
        return _mean_product(k_heads, k), _mean_product(v_heads, v)

    def state_width(self) -> int:
        """2 R (H + D)."""
        return 2 * self.rank * (self.n_heads + self.head_dim)

    @property
    def projection(self) -> Fused:
        """The one that makes the factors."""
        return self.factors

    def flops(self, new: int, held: int, absorbed: bool = False) -> int:
        """Every query, and every held key and value, is put together first."""
        together = self.n_heads * self.head_dim * (self.q_rank * new + 2 * self.rank * held)
        return super().flops(new, held) + 2 * together


def _mean_product(a_BRTH: Tensor, b_BRTD: Tensor) -> Tensor:
    """1/R sum over r of a_r b_r, [B, H, T, D]."""
    products_BTHD = a_BRTH.permute(0, 2, 3, 1) @ b_BRTD.transpose(1, 2)
    return products_BTHD.transpose(1, 2) / a_BRTH.shape[1]
