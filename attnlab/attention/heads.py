"""Heads: what is projected, what is cached, and how it becomes keys and values.

    project(x, rotate) -> (q, State) · expand(State) -> (k, v) · merge(y) -> x · state_size() -> bytes per
    token

Heads decide *what* turns with position; `rotate` decides how. Grouped heads expand by doing nothing: the
cache holds G heads, and kernels read them in groups. Both classes are final.
"""

from typing import final

import torch
from torch import Tensor, nn

from attnlab.attention.cache import State
from attnlab.attention.kernels import Unsupported
from attnlab.attention.rotary import Rotate, identity


class Fused(nn.Linear):
    """Several projections of one input in one matrix; `parts` names the slices of its output, in order.

    Initialisation goes slice by slice, so that arms which share a slice start with the same numbers in it.
    """

    def __init__(self, dim: int, parts: dict[str, int], bias: bool) -> None:
        super().__init__(dim, sum(parts.values()), bias=bias)
        self.parts = parts


class IntoResidual(nn.Linear):
    """A projection back into the residual stream; it starts smaller, the deeper the model (GPT-2)."""


def _by_head(x_BTW: Tensor, width: int) -> Tensor:
    """[B, T, n * width] to [B, n, T, width], as a view."""
    B, T, _ = x_BTW.shape
    return x_BTW.view(B, -1, 1, width) if T == 1 else x_BTW.view(B, T, -1, width).transpose(1, 2)


def _merged(y_BHTV: Tensor) -> Tensor:
    """[B, H, T, V] to [B, T, H * V]."""
    B, _, T, _ = y_BHTV.shape
    return y_BHTV.reshape(B, 1, -1) if T == 1 else y_BHTV.transpose(1, 2).flatten(2)


@final
class Heads(nn.Module):
    """Single-head, multi-head, grouped and multi-query attention (Vaswani 2017 §3.2.2; Shazeer 2019;
    Ainslie 2023).

    n_kv_heads = n_heads is MHA, 1 is MQA, between them GQA. `head_dim` None is dim / n_heads. `qk_norm`
    normalises q and k per head by their RMS, with a learned gain, before they turn (Dehghani 2023 §3.1.1,
    with RMS). `tied` uses one projection for q, k and v. State: (k, v), each [B, G, S, D].
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int | None,
        bias: bool,
        out_bias: bool,
        qk_norm: bool = False,
        tied: bool = False,
    ) -> None:
        super().__init__()
        if n_heads < 1 or (head_dim is None and dim % n_heads):
            raise ValueError(
                f"{n_heads} heads do not divide the width {dim}: change model.n_heads or model.dim"
            )
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise ValueError(
                f"{n_kv_heads} KV heads do not divide {n_heads} heads: "
                "change model.attention.heads.n_kv_heads or model.n_heads"
            )
        if tied and n_kv_heads != n_heads:
            raise ValueError(f"tied q, k, v need as many KV heads as heads, got {n_kv_heads} and {n_heads}")
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads if head_dim is None else head_dim
        self.score_dim = self.rope_dim = self.head_dim
        if self.head_dim < 1:
            raise ValueError(f"head_dim must be at least 1, got {self.head_dim}")
        wide, narrow = n_heads * self.head_dim, n_kv_heads * self.head_dim
        self.tied = tied
        self.qkv = Fused(dim, {"qkv": wide} if tied else {"q": wide, "k": narrow, "v": narrow}, bias)
        self.out = IntoResidual(wide, dim, bias=out_bias)
        self.q_norm = nn.RMSNorm(self.head_dim) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim) if qk_norm else None

    def project(self, x_BTM: Tensor, rotate: Rotate) -> tuple[Tensor, State]:
        """q [B, H, T, D] and the state of the new tokens."""
        H, G = self.n_heads, self.n_kv_heads
        if self.tied:
            one = _by_head(self.qkv(x_BTM), self.head_dim)
            if self.q_norm is not None:
                return rotate(self.q_norm(one)), (rotate(self.k_norm(one)), one)
            turned = rotate(one)
            return turned, (turned, one)
        together = self.q_norm is None and rotate is not identity  # q and k turned in one go: half the calls
        widths = [n * self.head_dim for n in ((H + G, G) if together else (H, G, G))]
        parts = self.qkv(x_BTM).split_with_sizes(widths, dim=-1)
        *qk, v = (_by_head(part, self.head_dim) for part in parts)
        if together:
            q, k = rotate(qk[0]).split_with_sizes((H, G), dim=1)
            return q, (k, v)
        q, k = qk
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q), (rotate(k), v)

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """k, v [B, G, S, D]: the state itself."""
        return state

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """Concatenates the heads and projects them out."""
        return self.out(_merged(y_BHTV))

    def state_size(self) -> int:
        """2 G D numbers per token, in bytes of the weights' dtype."""
        return 2 * self.n_kv_heads * self.head_dim * self.qkv.weight.element_size()


@final
class Latent(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1): keys and values rebuilt from one
    small latent.

    A head's key is `head_dim` features from the latent plus `rope_dim` features shared by all heads, and
    only the latter turn. State: [B, 1, S, rank + rope_dim], the latent and the turned key. With `absorbed`
    the up-projections move to the query and the output, which makes it multi-query attention over the
    latent: the same numbers, and the cache is read as it is (§2.1.2).
    """

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
    ) -> None:
        super().__init__()
        if min(n_heads, rank, head_dim, rope_dim) < 1:
            raise ValueError(
                "latent heads need n_heads, rank, head_dim and rope_dim >= 1, got "
                f"{n_heads}, {rank}, {head_dim}, {rope_dim}"
            )
        if qk_norm:
            raise Unsupported(
                "heads=mla has no per-head keys to normalise before they turn: use another score than qk_norm"
            )
        self.n_heads, self.n_kv_heads = n_heads, n_heads
        self.head_dim, self.rope_dim, self.rank = head_dim, rope_dim, rank
        self.score_dim, self.absorbed = head_dim + rope_dim, absorbed
        self.down = Fused(dim, {"q": n_heads * self.score_dim, "latent": rank, "k_rope": rope_dim}, bias)
        self.norm = nn.RMSNorm(rank)
        self.up = Fused(rank, {"k": n_heads * head_dim, "v": n_heads * head_dim}, bias=False)
        self.out = IntoResidual(n_heads * head_dim, dim, bias=out_bias)

    def _up(self) -> tuple[Tensor, Tensor]:
        """Up-projections of keys and values, each [H, head_dim, rank]."""
        k, v = self.up.weight.chunk(2)
        return k.view(self.n_heads, self.head_dim, -1), v.view(self.n_heads, self.head_dim, -1)

    def project(self, x_BTM: Tensor, rotate: Rotate) -> tuple[Tensor, State]:
        """q [B, H, T, head_dim + rope_dim], or [B, H, T, rank + rope_dim] when absorbed, and the new
        tokens' state.
        """
        q, latent, k_rope = self.down(x_BTM).split(tuple(self.down.parts.values()), dim=-1)
        q, q_rope = _by_head(q, self.score_dim).split((self.head_dim, self.rope_dim), dim=-1)
        if self.absorbed:
            q = q @ self._up()[0]
        state = torch.cat((self.norm(latent).unsqueeze(1), rotate(k_rope.unsqueeze(1))), dim=-1)
        return torch.cat((q, rotate(q_rope)), dim=-1), (state,)

    def expand(self, state: State) -> tuple[Tensor, Tensor]:
        """Keys and values: per head from the latent, or the latent itself as one KV head when absorbed."""
        latent, k_rope = state[0].split((self.rank, self.rope_dim), dim=-1)
        if self.absorbed:
            return state[0], latent
        k, v = (latent @ weight.transpose(-1, -2) for weight in self._up())
        return torch.cat((k, k_rope.expand(-1, self.n_heads, -1, -1)), dim=-1), v

    def merge(self, y_BHTV: Tensor) -> Tensor:
        """Values up from the latent where absorbed, then as other heads do."""
        if self.absorbed:
            y_BHTV = y_BHTV @ self._up()[1].transpose(-1, -2)
        return self.out(_merged(y_BHTV))

    def state_size(self) -> int:
        """rank + rope_dim numbers per token, in bytes of the weights' dtype."""
        return (self.rank + self.rope_dim) * self.down.weight.element_size()
