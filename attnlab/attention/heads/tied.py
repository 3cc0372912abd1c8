"""Grouped-tied attention: what a KV head caches is its value, and most of its key."""

from typing import final

import torch
from torch import Tensor

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, head_width
from attnlab.attention.past.past import Past


@final
class TiedHeads(BaseHeads):
    """GTA (Zadouri et al. 2025, arXiv 2505.21487, §3.1): one vector a KV head, D wide, is the value; its
    first D - R features are those of the key that do not turn, the R others are one turned key for all heads.

    `rope_dim` R, half of D where None. `convolution` as of `GroupedHeads`. State: (kv [B, G, S, D], k_rope
    [B, 1, S, R]): about half of what grouped heads cache.
    """

    has_own_values = True

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int | None,
        rope_dim: int | None,
        bias: bool,
        out_bias: bool,
        qk_norm: bool = False,
        convolution: int = 0,
        value_residual: bool = False,
    ) -> None:
        if value_residual:
            raise Unsupported("heads=gta has values that are keys too: use values=own")
        width = head_width(dim, n_heads, head_dim)
        super().__init__(n_heads, n_kv_heads, width, rope_dim=width // 2 if rope_dim is None else rope_dim)
        if qk_norm:
            raise Unsupported(
                "heads=gta has no keys to normalise that are not values too: use another score than qk_norm"
            )
        if not 0 < self.rope_dim < self.head_dim:
            raise ValueError(f"heads=gta needs 0 < rope_dim < {self.head_dim}, got {self.rope_dim}")
        wide = n_heads * self.head_dim
        narrow = n_kv_heads * self.head_dim
        self.qkv = Fused(dim, {"q": wide, "kv": narrow, "k_rope": self.rope_dim}, bias)
        self.convolve(narrow + self.rope_dim, convolution)
        self.out = IntoResidual(wide, dim, bias=out_bias)

    def project(self, x_BTM: Tensor, rotate: Rotate, past: Past | None = None) -> tuple[Tensor, State]:
        """q [B, H, T, D] and the state of the new tokens."""
        turning = self.rope_dim
        q, kv, k_rope = self.convolution.beside(self.qkv(x_BTM), self.qkv.widths, past, "heads")
        still, q_rope = by_head(q, self.head_dim).split((self.head_dim - turning, turning), dim=-1)
        return torch.cat((still, rotate(q_rope)), dim=-1), (
            by_head(kv, self.head_dim),
            rotate(k_rope.unsqueeze(1)),
        )

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """k, v [B, G, S, D]: the key is made of the value and of what turns."""
        kv, k_rope = state
        still = kv[..., : self.head_dim - self.rope_dim]
        return torch.cat((still, k_rope.expand(-1, self.n_kv_heads, -1, -1)), dim=-1), kv

    def state_width(self) -> int:
        """G D + R."""
        return self.n_kv_heads * self.head_dim + self.rope_dim
