"""Grouped-tied attention: a KV head caches its value, which is also most of its key."""

from typing import final

import torch
from torch import Tensor

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, resolve_head_dim, split_heads
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class TiedHeads(BaseHeads):
    """GTA: one D-wide vector per KV head is the value, and its first D - R features are part of the key.

    RoPE does not apply to these features; the other R features of the key are rotated and shared by all
    heads. `rope_dim` is R, D / 2 if None. `convolution`: see `GroupedHeads`. State: (kv [B, G, S, D], k_rope
    [B, 1, S, R]): about half the cache of grouped heads.

    Source: Zadouri et al. 2025, arXiv 2505.21487, §3.1.
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
        key_offset: bool = False,
    ) -> None:
        if value_residual:
            raise Unsupported("heads=gta uses its values as keys and cannot mix them: use values=own")
        if key_offset:
            raise Unsupported("heads=gta uses its values as keys and cannot shift them: use keys=own")
        width = resolve_head_dim(dim, n_heads, head_dim)
        super().__init__(n_heads, n_kv_heads, width, rope_dim=width // 2 if rope_dim is None else rope_dim)
        if qk_norm:
            raise Unsupported(
                "heads=gta has no keys to normalize that are not also values: use a score other than qk_norm"
            )
        if not 0 < self.rope_dim < self.head_dim:
            raise ValueError(f"heads=gta needs 0 < rope_dim < {self.head_dim}, got {self.rope_dim}")
        q_width = n_heads * self.head_dim
        kv_width = n_kv_heads * self.head_dim
        self.qkv = FusedLinear(dim, {"q": q_width, "kv": kv_width, "k_rope": self.rope_dim}, bias)
        self.add_convolution(kv_width + self.rope_dim, convolution)
        self.out = ResidualProjection(q_width, dim, bias=out_bias)

    def project(
        self, x_BTM: Tensor, rotate: Rotate, recurrent_state: RecurrentState | None = None
    ) -> tuple[Tensor, State]:
        """Compute q [B, H, T, D] and the state of the new tokens."""
        rope_dim = self.rope_dim
        q, kv, k_rope = self.convolution.split_and_convolve(
            self.qkv(x_BTM), self.qkv.widths, recurrent_state, "heads"
        )
        q_nope, q_rope = split_heads(q, self.head_dim).split((self.head_dim - rope_dim, rope_dim), dim=-1)
        return torch.cat((q_nope, rotate(q_rope)), dim=-1), (
            split_heads(kv, self.head_dim),
            rotate(k_rope.unsqueeze(1)),
        )

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """Compute k and v [B, G, S, D]; the key combines value features and rotated features."""
        kv, k_rope = state
        k_nope = kv[..., : self.head_dim - self.rope_dim]
        return torch.cat((k_nope, k_rope.expand(-1, self.n_kv_heads, -1, -1)), dim=-1), kv

    def state_width(self) -> int:
        """G D + R numbers."""
        return self.n_kv_heads * self.head_dim + self.rope_dim
