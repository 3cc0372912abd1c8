"""Grouped latent attention: a latent for each group of heads, read only by that group."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, split_heads
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class GroupedLatentHeads(BaseHeads):
    """GLA: `groups` latents of `rank`, each expanded to the keys and values of its group of heads.

    Devices can thus hold one latent each; one group is MLA. Absorbed, as in `LatentHeads`, it is grouped
    attention over the latents. State: (latents [B, L, S, rank], k_rope [B, 1, S, R], one rotated key for all
    heads). A `convolution` covers both, as they are projected. The norm of the latents adds `norm_eps` to the
    mean square.

    Source: Zadouri et al. 2025, arXiv 2505.21487, §3.2.
    """

    can_absorb = True
    kinds = MappingProxyType({"up.weight": "latent"})

    def __init__(
        self,
        dim: int,
        n_heads: int,
        groups: int,
        rank: int,
        head_dim: int,
        rope_dim: int,
        bias: bool,
        out_bias: bool,
        qk_norm: bool = False,
        absorbed: bool = False,
        convolution: int = 0,
        value_residual: bool = False,
        key_offset: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        if value_residual:
            raise Unsupported("heads=gla computes values from a latent and cannot mix them: use values=own")
        if key_offset:
            raise Unsupported("heads=gla computes keys from a latent and cannot shift them: use keys=own")
        if min(n_heads, groups, rank, head_dim, rope_dim) < 1 or n_heads % groups:
            raise ValueError(
                "grouped latent heads need n_heads, groups, rank, head_dim and rope_dim >= 1, groups that "
                f"divide n_heads, got {n_heads}, {groups}, {rank}, {head_dim}, {rope_dim}"
            )
        if qk_norm:
            raise Unsupported(
                "heads=gla has no per-head keys to normalize before RoPE: use a score other than qk_norm"
            )
        super().__init__(n_heads, n_heads, head_dim, score_dim=head_dim + rope_dim, rope_dim=rope_dim)
        self.groups = groups
        self.rank = rank
        self.absorbed = absorbed
        self.down = FusedLinear(
            dim, {"q": n_heads * self.score_dim, "latent": groups * rank, "k_rope": rope_dim}, bias
        )
        self.add_convolution(groups * rank + rope_dim, convolution)
        self.norm = nn.RMSNorm(rank, norm_eps)
        self.up = FusedLinear(rank, {"k": n_heads * head_dim, "v": n_heads * head_dim}, bias=False)
        self.out = ResidualProjection(n_heads * head_dim, dim, bias=out_bias)

    def _split_up_projection(self) -> tuple[Tensor, Tensor]:
        """Up-projections of keys and values, each [L, H / L, head_dim, rank].

        The heads of a group read its latent.
        """
        k, v = self.up.weight.view(2, self.groups, -1, self.head_dim, self.rank)
        return k, v

    def project(
        self, x_BTM: Tensor, rotate: Rotate, recurrent_state: RecurrentState | None = None
    ) -> tuple[Tensor, State]:
        """Compute q and the state of the new tokens.

        q is [B, H, T, head_dim + rope_dim], or [B, H, T, rank + rope_dim] when absorbed.
        """
        q, latent, k_rope = self.convolution.split_and_convolve(
            self.down(x_BTM), self.down.widths, recurrent_state, "heads"
        )
        q, q_rope = split_heads(q, self.score_dim).split((self.head_dim, self.rope_dim), dim=-1)
        if self.absorbed:
            q = (q.unflatten(1, (self.groups, -1)) @ self._split_up_projection()[0]).flatten(1, 2)
        state = (self.norm(split_heads(latent, self.rank)), rotate(k_rope.unsqueeze(1)))
        return torch.cat((q, rotate(q_rope)), dim=-1), state

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """Expand latents to keys and values per head; when absorbed, return the latents as L KV heads."""
        latent, k_rope = state
        if self.absorbed:
            return torch.cat((latent, k_rope.expand(-1, self.groups, -1, -1)), dim=-1), latent
        k, v = (
            (latent.unsqueeze(2) @ weight.transpose(-1, -2)).flatten(1, 2)
            for weight in self._split_up_projection()
        )
        return torch.cat((k, k_rope.expand(-1, self.n_heads, -1, -1)), dim=-1), v

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """Project values up from the latents when absorbed, then merge as other heads do."""
        if self.absorbed:
            y_BHTV = (
                y_BHTV.unflatten(1, (self.groups, -1)) @ self._split_up_projection()[1].transpose(-1, -2)
            ).flatten(1, 2)
        return super().merge(y_BHTV)

    def state_width(self) -> int:
        """L rank + R numbers."""
        return self.groups * self.rank + self.rope_dim

    @property
    def projection(self) -> FusedLinear:
        """Down-projection that makes the latents."""
        return self.down

    def flops(self, n_queries: int, n_keys: int, absorbed: bool = False) -> int:
        """FLOPs as of `LatentHeads`, because each head reads one latent."""
        up = self.up.weight.numel()
        if absorbed:
            over_latents = self.n_heads * (2 * self.rank + self.rope_dim) * n_keys
            return super().flops(n_queries, 0) + 2 * n_queries * (up + over_latents)
        return super().flops(n_queries, n_keys) + 2 * n_keys * up

    def read_width(self, absorbed: bool = False) -> int:
        """Absorbed: L latents with the rotated key, and the latents as values."""
        return self.groups * (2 * self.rank + self.rope_dim) if absorbed else super().read_width()
