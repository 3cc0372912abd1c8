"""K = V: one projection is both key and value, and the cache holds it once."""

from typing import final

from torch import Tensor, nn

from attnlab.attention.contracts import Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, resolve_head_dim, split_heads
from attnlab.attention.rotary import identity_rotation
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class EqualKVHeads(BaseHeads):
    """Grouped heads with v = x W_k and k = RoPE(v): exactly half the cache of `GroupedHeads`.

    The cached tensor is unrotated, so every pass rotates all keys that it reads: a cached step takes more
    time to save memory. `qk_norm` normalizes q and k by their RMS before RoPE, and not v; `norm_eps` is added
    to the mean square. `convolution`: see `GroupedHeads`, here over the one projection. State: (kv
    [B, G, S, D],).

    Sources: Q-K=V of "Do Transformers Need Three Projections?", 2026, arXiv 2606.04032; the global layers of
    Gemma 4, which also normalize v, without a gain.
    """

    has_own_values = True
    rotates_cached_keys = True

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int | None,
        bias: bool,
        out_bias: bool,
        qk_norm: bool = False,
        convolution: int = 0,
        value_residual: bool = False,
        key_offset: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        if value_residual:
            raise Unsupported("heads=k_eq_v uses its values as keys and cannot mix them: use values=own")
        if key_offset:
            raise Unsupported("heads=k_eq_v uses its values as keys and cannot shift them: use keys=own")
        super().__init__(n_heads, n_kv_heads, resolve_head_dim(dim, n_heads, head_dim))
        q_width = n_heads * self.head_dim
        kv_width = n_kv_heads * self.head_dim
        self.qkv = FusedLinear(dim, {"q": q_width, "k": kv_width}, bias)
        self.q_norm = nn.RMSNorm(self.head_dim, norm_eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, norm_eps) if qk_norm else None
        self.add_convolution(kv_width, convolution)
        self.out = ResidualProjection(q_width, dim, bias=out_bias)

    def project(
        self, x_BTM: Tensor, rotate: Rotate, recurrent_state: RecurrentState | None = None
    ) -> tuple[Tensor, State]:
        """Compute q [B, H, T, D] and the state of the new tokens, which is not rotated."""
        q, kv = self.convolution.split_and_convolve(
            self.qkv(x_BTM), self.qkv.widths, recurrent_state, "heads"
        )
        q = split_heads(q, self.head_dim)
        return rotate(q if self.q_norm is None else self.q_norm(q)), (split_heads(kv, self.head_dim),)

    def expand(self, state: State, rotate: Rotate = identity_rotation) -> tuple[Tensor, Tensor]:
        """Compute k and v [B, G, S, D]; `rotate` is made for the positions of the keys."""
        (kv,) = state
        return rotate(kv if self.k_norm is None else self.k_norm(kv)), kv

    def state_width(self) -> int:
        """G D numbers."""
        return self.n_kv_heads * self.head_dim
