"""Grouped latent attention: a latent for each group of heads, read by that group alone."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, merged
from attnlab.attention.past.convolution import ShortConvolution
from attnlab.attention.past.past import Past


@final
class GroupedLatentHeads(nn.Module):
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
        super().__init__()
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
        self.n_heads = n_heads
        self.n_kv_heads = n_heads
        self.groups = groups
        self.head_dim = head_dim
        self.rope_dim = rope_dim
        self.rank = rank
        self.score_dim = head_dim + rope_dim
        self.absorbed = absorbed
        self.down = Fused(
            dim, {"q": n_heads * self.score_dim, "latent": groups * rank, "k_rope": rope_dim}, bias
        )
        self.convolution = ShortConvolution(groups * rank + rope_dim, convolution)
        self.looks_back = self.convolution.looks_back
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
        return self.out(merged(y_BHTV))

    def state_size(self) -> int:
        """L rank + R numbers per token, in bytes of the weights' dtype."""
        return (self.groups * self.rank + self.rope_dim) * self.down.weight.element_size()

    def carried_size(self) -> int:
        """What the convolution carries."""
        return self.convolution.carried_size()

    @property
    def projection(self) -> nn.Module:
        """The one that makes the latents."""
        return self.down

    def flops(self, new: int, held: int, absorbed: bool = False) -> int:
        """As of `LatentHeads`, since a head reads one latent."""
        own = self.down.weight.numel() + self.out.weight.numel()
        up = self.up.weight.numel()
        if absorbed:
            return 2 * new * (own + up + self.n_heads * (2 * self.rank + self.rope_dim) * held)
        width = 2 * self.head_dim + self.rope_dim
        return 2 * (new * own + held * up + self.n_heads * width * new * held)

    def read_width(self, absorbed: bool = False) -> int:
        """L latents with the turned key, and the latents as values; else H keys and values made of them."""
        own = self.groups * (2 * self.rank + self.rope_dim)
        return own if absorbed else self.n_heads * (2 * self.head_dim + self.rope_dim)
