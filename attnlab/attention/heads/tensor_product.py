"""Tensor product attention: the cache holds the factors of keys and values."""

from types import MappingProxyType
from typing import final

from torch import Tensor

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, resolve_head_dim, split_heads
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class TensorProductHeads(BaseHeads):
    """Queries, keys and values as means of outer products, 1/R Σ_r a_r b_r.

    a_r [H] weighs b_r [D] for each head; both are projections of the token. R is `rank` for keys and values,
    `q_rank` for queries. RoPE applies to b_r before it is cached, which equals applying it to the key. a_r
    starts as large as the input and b_r as other projections do, so products start about as large as theirs.
    Keys are expanded before they are read; the paper's reading by factors is not implemented. `convolution`:
    see `GroupedHeads`, here over the factors. The scaling of the factors' learning rates with width is
    unknown, so `mup` rejects them. State: (a of keys [B, R, S, H], b of keys [B, R, S, D], a of values, b of
    values).

    Source: Zhang et al. 2025, arXiv 2501.06425, §3.
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
        key_offset: bool = False,
    ) -> None:
        if value_residual:
            raise Unsupported("heads=tpa computes values from factors and cannot mix them: use values=own")
        if key_offset:
            raise Unsupported("heads=tpa computes keys from factors and cannot shift them: use keys=own")
        if qk_norm:
            raise Unsupported(
                "heads=tpa has no per-head keys to normalize before RoPE: use a score other than qk_norm"
            )
        if min(rank, q_rank) < 1:
            raise ValueError(f"heads=tpa needs rank and q_rank >= 1, got {rank} and {q_rank}")
        super().__init__(n_heads, n_heads, resolve_head_dim(dim, n_heads, head_dim))
        self.rank = rank
        self.q_rank = q_rank
        parts: dict[str, int] = {}
        for name, terms in (("q", q_rank), ("k", rank), ("v", rank)):
            parts |= {f"{name}_heads": terms * n_heads, name: terms * self.head_dim}
        self.factors = FusedLinear(dim, parts, bias, unit_parts=("q_heads", "k_heads", "v_heads"))
        _, _, *cached = self.factors.widths
        self.add_convolution(sum(cached), convolution)
        self.out = ResidualProjection(n_heads * self.head_dim, dim, bias=out_bias)

    def project(
        self, x_BTM: Tensor, rotate: Rotate, recurrent_state: RecurrentState | None = None
    ) -> tuple[Tensor, State]:
        """Compute q [B, H, T, D] and the state of the new tokens."""
        q_heads, q, *cached = self.factors.widths
        q_factors, *factors = self.convolution.split_and_convolve(
            self.factors(x_BTM), (q_heads + q, *cached), recurrent_state, "heads"
        )
        a, b = q_factors.split((q_heads, q), dim=-1)
        q_BHTD = _average_outer_products(split_heads(a, self.n_heads), rotate(split_heads(b, self.head_dim)))
        k_heads, k, v_heads, v = factors
        return q_BHTD, (
            split_heads(k_heads, self.n_heads),
            rotate(split_heads(k, self.head_dim)),
            split_heads(v_heads, self.n_heads),
            split_heads(v, self.head_dim),
        )

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """Compute k and v [B, H, S, D] from their factors."""
        k_heads, k, v_heads, v = state
        return _average_outer_products(k_heads, k), _average_outer_products(v_heads, v)

    def state_width(self) -> int:
        """2 R (H + D) numbers."""
        return 2 * self.rank * (self.n_heads + self.head_dim)

    @property
    def projection(self) -> FusedLinear:
        """Projection that makes the factors."""
        return self.factors

    def flops(self, n_queries: int, n_keys: int, absorbed: bool = False) -> int:
        """FLOPs with the expansion of every query and of every cached key and value."""
        n_expanded = self.n_heads * self.head_dim * (self.q_rank * n_queries + 2 * self.rank * n_keys)
        return super().flops(n_queries, n_keys) + 2 * n_expanded


def _average_outer_products(a_BRTH: Tensor, b_BRTD: Tensor) -> Tensor:
    """1/R Σ_r a_r b_r, [B, H, T, D]."""
    products_BTHD = a_BRTH.permute(0, 2, 3, 1) @ b_BRTD.transpose(1, 2)
    return products_BTHD.transpose(1, 2) / a_BRTH.shape[1]
