"""Multi-head latent attention: keys and values expanded from one small latent, or absorbed into queries."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, split_heads
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class LatentHeads(BaseHeads):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1).

    A head's key is `head_dim` features from the latent plus `rope_dim` features shared by all heads; RoPE
    applies to the latter only. State: [B, 1, S, rank + rope_dim], the latent and the rotated key.
    `model.qk_gain` sets the initial scale of keys from the latent and of queries without `q_rank`.

    Args:
        absorbed: move the up-projections to the query and the output. This makes it multi-query attention
            over the latent: the same numbers, and the cache is read unexpanded (§2.1.2).
        convolution: width of a short convolution over the latent and the shared key, as they are projected.
        q_rank: make queries from a normalized latent of this rank (§2.1.3); None is one full projection.
        value_dim: width of a head's values; None is `head_dim`.
        norm_eps: added to the mean squares of latents.
    """

    can_absorb = True
    kinds = MappingProxyType({"up.weight": "latent", "q_up.weight": "latent"})

    def __init__(
        self,
        dim: int,
        n_heads: int,
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
        q_rank: int | None = None,
        value_dim: int | None = None,
        norm_eps: float = 1e-6,
    ) -> None:
        if value_residual:
            raise Unsupported("heads=mla computes values from a latent and cannot mix them: use values=own")
        if key_offset:
            raise Unsupported("heads=mla computes keys from a latent and cannot shift them: use keys=own")
        value_dim = head_dim if value_dim is None else value_dim
        sizes = (n_heads, rank, head_dim, rope_dim, value_dim, 1 if q_rank is None else q_rank)
        if min(sizes) < 1:
            raise ValueError(
                "latent heads need n_heads, rank, head_dim, rope_dim, value_dim and q_rank >= 1, got "
                f"{', '.join(map(str, sizes))}"
            )
        if qk_norm:
            raise Unsupported(
                "heads=mla has no per-head keys to normalize before RoPE: use a score other than qk_norm"
            )
        score_dim = head_dim + rope_dim
        super().__init__(
            n_heads, n_heads, head_dim, score_dim=score_dim, value_dim=value_dim, rope_dim=rope_dim
        )
        self.rank = rank
        self.absorbed = absorbed
        q_width = n_heads * score_dim
        self.down = FusedLinear(dim, {"q": q_rank or q_width, "latent": rank, "k_rope": rope_dim}, bias)
        self.q_norm = None if q_rank is None else nn.RMSNorm(q_rank, norm_eps)
        self.q_up = None if q_rank is None else nn.Linear(q_rank, q_width, bias=False)
        self.add_convolution(rank + rope_dim, convolution)
        self.norm = nn.RMSNorm(rank, norm_eps)
        self.up = FusedLinear(rank, {"k": n_heads * head_dim, "v": n_heads * value_dim}, bias=False)
        self.out = ResidualProjection(n_heads * value_dim, dim, bias=out_bias)

    def _split_up_projection(self) -> tuple[Tensor, Tensor]:
        """Up-projections of keys [H, head_dim, rank] and values [H, value_dim, rank]."""
        k, v = self.up.weight.split(self.up.widths)
        return k.view(self.n_heads, self.head_dim, -1), v.view(self.n_heads, self.value_dim, -1)

    def project(
        self, x_BTM: Tensor, rotate: Rotate, recurrent_state: RecurrentState | None = None
    ) -> tuple[Tensor, State]:
        """Compute q and the state of the new tokens.

        q is [B, H, T, head_dim + rope_dim], or [B, H, T, rank + rope_dim] when absorbed.
        """
        q, latent, k_rope = self.convolution.split_and_convolve(
            self.down(x_BTM), self.down.widths, recurrent_state, "heads"
        )
        if self.q_norm is not None and self.q_up is not None:
            q = self.q_up(self.q_norm(q))
        q, q_rope = split_heads(q, self.score_dim).split((self.head_dim, self.rope_dim), dim=-1)
        if self.absorbed:
            q = q @ self._split_up_projection()[0]
        state = torch.cat((self.norm(latent).unsqueeze(1), rotate(k_rope.unsqueeze(1))), dim=-1)
        return torch.cat((q, rotate(q_rope)), dim=-1), (state,)

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """Expand the latent to keys and values per head; when absorbed, return it as one KV head."""
        latent, k_rope = state[0].split((self.rank, self.rope_dim), dim=-1)
        if self.absorbed:
            return state[0], latent
        k, v = (latent @ weight.transpose(-1, -2) for weight in self._split_up_projection())
        return torch.cat((k, k_rope.expand(-1, self.n_heads, -1, -1)), dim=-1), v

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """Project values up from the latent when absorbed, then merge as other heads do."""
        if self.absorbed:
            y_BHTV = y_BHTV @ self._split_up_projection()[1].transpose(-1, -2)
        return super().merge(y_BHTV)

    def state_width(self) -> int:
        """rank + rope_dim numbers."""
        return self.rank + self.rope_dim

    @property
    def projection(self) -> FusedLinear:
        """Down-projection that makes the latent."""
        return self.down

    def flops(self, n_queries: int, n_keys: int, absorbed: bool = False) -> int:
        """FLOPs with the up-projections of every cached key or, absorbed, of every query and output.

        Absorbed scores and values are as wide as the latent.
        """
        up = self.up.weight.numel()
        q_up = 0 if self.q_up is None else self.q_up.weight.numel()
        if absorbed:
            over_latents = self.n_heads * (2 * self.rank + self.rope_dim) * n_keys
            return super().flops(n_queries, 0) + 2 * n_queries * (q_up + up + over_latents)
        return super().flops(n_queries, n_keys) + 2 * (n_queries * q_up + n_keys * up)

    def read_width(self, absorbed: bool = False) -> int:
        """Absorbed: the latent, which contains the values, and the rotated key."""
        return self.rank + self.rope_dim if absorbed else super().read_width()
