"""Grouped latent attention: a latent for each group of heads, read by that group alone."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import Fused, IntoResidual, by_head
from attnlab.attention.past.past import Past


@final
class GroupedLatentHeads(BaseHeads):
    """GLA (Zadouri et al. 2025, arXiv 2505.21487, §3.2): `groups` latents of `rank`, each rebuilt to the keys
    and values of its share of the heads, so that devices can hold a latent each; of one group it is MLA.

    Absorbed, as `LatentHeads`: grouped attention over the latents. State: (latents [B, L, S, rank], k_rope
    [B, 1, S, R], one turned key for all heads). A `convolution` is of both, as they are projected. The
    norm of the latents adds `norm_eps` to the mean square.
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
        norm_eps: float = 1e-6,
    ) -> None:
        if value_residual:
            raise Unsupported("heads=gla has values made of a latent: use values=own")
        if min(n_heads, groups, rank, head_dim, rope_dim) < 1 or n_heads % groups:
            raise ValueError(
                "grouped latent heads need n_heads, groups, rank, head_dim and rope_dim >= 1, groups that "
                f"divide n_heads, got {n_heads}, {groups}, {rank}, {head_dim}, {rope_dim}"
            )
        if qk_norm:
            raise Unsupported(
                "heads=gla has no per-head keys to normalise before they turn: use another score than qk_norm"
            )
        super().__init__(n_heads, n_heads, head_dim, score_dim=head_dim + rope_dim, rope_dim=rope_dim)
        self.groups = groups
        self.rank = rank
        self.absorbed = absorbed
        self.down = Fused(
            dim, {"q": n_heads * self.score_dim, "latent": groups * rank, "k_rope": rope_dim}, bias
        )
        self.convolve(groups * rank + rope_dim, convolution)
        self.norm = nn.RMSNorm(rank, norm_eps)
        self.up = Fused(rank, {"k": n_heads * head_dim, "v": n_heads * head_dim}, bias=False)
        self.out = IntoResidual(n_heads * head_dim, dim, bias=out_bias)

    def _up(self) -> tuple[Tensor, Tensor]:
        """Up-projections of keys and values, each [L, H / L, head_dim, rank]: heads of a group read its
        latent.
        """
        k, v = self.up.weight.view(2, self.groups, -1, self.head_dim, self.rank)
        return k, v

    def project(self, x_BTM: Tensor, rotate: Rotate, past: Past | None = None) -> tuple[Tensor, State]:
        """q [B, H, T, head_dim + rope_dim], or [B, H, T, rank + rope_dim] when absorbed, and the new tokens'
        state.
        """
        q, latent, k_rope = self.convolution.beside(self.down(x_BTM), self.down.widths, past, "heads")
        q, q_rope = by_head(q, self.score_dim).split((self.head_dim, self.rope_dim), dim=-1)
        if self.absorbed:
            q = (q.unflatten(1, (self.groups, -1)) @ self._up()[0]).flatten(1, 2)
        state = (self.norm(by_head(latent, self.rank)), rotate(k_rope.unsqueeze(1)))
        return torch.cat((q, rotate(q_rope)), dim=-1), state

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """Keys and values: per head from its group's latent, or the latents as L KV heads when absorbed."""
        latent, k_rope = state
        if self.absorbed:
            return torch.cat((latent, k_rope.expand(-1, self.groups, -1, -1)), dim=-1), latent
        k, v = ((latent.unsqueeze(2) @ weight.transpose(-1, -2)).flatten(1, 2) for weight in self._up())
        return torch.cat((k, k_rope.expand(-1, self.n_heads, -1, -1)), dim=-1), v

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """Values up from the latents where absorbed, then as other heads do."""
        if self.absorbed:
            y_BHTV = (y_BHTV.unflatten(1, (self.groups, -1)) @ self._up()[1].transpose(-1, -2)).flatten(1, 2)
        return super().merge(y_BHTV)

    def state_width(self) -> int:
        """L rank + R."""
        return self.groups * self.rank + self.rope_dim

    @property
    def projection(self) -> Fused:
        """The one that makes the latents."""
        return self.down

    def flops(self, new: int, held: int, absorbed: bool = False) -> int:
        """As of `LatentHeads`, since a head reads one latent."""
        up = self.up.weight.numel()
        if absorbed:
            over_latents = self.n_heads * (2 * self.rank + self.rope_dim) * held
            return super().flops(new, 0) + 2 * new * (up + over_latents)
        return super().flops(new, held) + 2 * held * up

    def read_width(self, absorbed: bool = False) -> int:
        """Absorbed, L latents with the turned key, and the latents as values."""
        return self.groups * (2 * self.rank + self.rope_dim) if absorbed else super().read_width()
