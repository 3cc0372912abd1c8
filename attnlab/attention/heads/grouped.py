"""Single-head, multi-head, grouped and multi-query attention. Grouped heads expand by doing nothing: the
cache holds G heads, and kernels read them in groups.
"""

from typing import Literal, final

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Channel, Rotate, State, Unsupported
from attnlab.attention.heads.base import BaseHeads
from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, head_width
from attnlab.attention.past.past import Past
from attnlab.attention.rotary import identity


@final
class GroupedHeads(BaseHeads):
    """Single-head, multi-head, grouped and multi-query attention (Vaswani 2017 §3.2.2; Shazeer 2019;
    Ainslie 2023).

    n_kv_heads = n_heads is MHA, 1 is MQA, between them GQA. `head_dim` None is dim / n_heads. `qk_norm`
    normalises q and k per head by their RMS, with a learned gain, before they turn (Dehghani 2023 §3.1.1,
    with RMS), or over the width of all heads together (`norm_over`: OLMo 2, arXiv 2501.00656, §3.2); to the
    mean square `norm_eps` is added. `tied` uses one projection for q, k and v.
    `convolution` is the width of a short convolution over tokens, on keys and values as they are projected;
    0 is none. With `value_residual` values are a learned mixture of their own and the first layer's, half of
    each at the start (Zhou et al. 2024, arXiv 2410.17897, eq. 4, learnable). State: (k, v), each
    [B, G, S, D].
    """

    has_own_values = True

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
        convolution: int = 0,
        value_residual: bool = False,
        norm_over: Literal["head", "width"] = "head",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(n_heads, n_kv_heads, head_width(dim, n_heads, head_dim))
        if tied and n_kv_heads != n_heads:
            raise ValueError(f"tied q, k, v need as many KV heads as heads, got {n_kv_heads} and {n_heads}")
        wide = n_heads * self.head_dim
        narrow = n_kv_heads * self.head_dim
        self.tied = tied
        self.qkv = Fused(dim, {"qkv": wide} if tied else {"q": wide, "k": narrow, "v": narrow}, bias)
        self.out = IntoResidual(wide, dim, bias=out_bias)
        self.norms_width = qk_norm and norm_over == "width"
        normed = (wide, narrow) if self.norms_width else (self.head_dim, self.head_dim)
        self.q_norm, self.k_norm = (nn.RMSNorm(n, norm_eps) if qk_norm else None for n in normed)
        if tied and self.norms_width:
            raise Unsupported("heads=tied_qkv has one projection to normalise: use norm_over=head")
        if tied and convolution:
            raise Unsupported("heads=tied_qkv has no keys and values apart to convolve: use convolution=none")
        if tied and value_residual:
            raise Unsupported("heads=tied_qkv has no values apart to mix: use values=own")
        self.pools = not (convolution or value_residual or self.norms_width)
        self.shares = nn.Parameter(torch.full((2,), 0.5)) if value_residual else None
        self.reads = self.publishes = ("values",) if value_residual else ()
        self.convolve(2 * narrow, convolution)

    def project(
        self,
        x_BTM: Tensor,
        rotate: Rotate,
        past: Past | None = None,
        channel: Channel | None = None,
    ) -> tuple[Tensor, State]:
        """q [B, H, T, D] and the state of the new tokens."""
        q, (k, v) = self._projected(x_BTM, rotate, past)
        if self.shares is None:
            return q, (k, v)
        first = v if channel is None else channel.setdefault("values", v)
        if first.shape != v.shape:
            raise ValueError("value_residual=true needs values of one shape in all layers")
        own, shared = self.shares
        return q, (k, own * v + shared * first)

    def _projected(self, x_BTM: Tensor, rotate: Rotate, past: Past | None) -> tuple[Tensor, State]:
        H = self.n_heads
        G = self.n_kv_heads
        if self.tied:
            shared = by_head(self.qkv(x_BTM), self.head_dim)
            if self.q_norm is not None and self.k_norm is not None:
                return rotate(self.q_norm(shared)), (rotate(self.k_norm(shared)), shared)
            turned = rotate(shared)
            return turned, (turned, shared)
        together = self.q_norm is None and rotate is not identity  # q and k turned in one go: half the calls
        widths = [n * self.head_dim for n in ((H + G, G) if together else (H, G, G))]
        projected = self.qkv(x_BTM)
        if past is not None:
            q, kv = projected.split_with_sizes((H * self.head_dim, 2 * G * self.head_dim), dim=-1)
            projected = torch.cat((q, self.convolution(kv, past, "heads")), -1)
        parts = projected.split_with_sizes(widths, dim=-1)
        if self.norms_width and self.q_norm is not None and self.k_norm is not None:
            parts = (self.q_norm(parts[0]), self.k_norm(parts[1]), parts[2])
        *qk, v = (by_head(part, self.head_dim) for part in parts)
        if together:
            q, k = rotate(qk[0]).split_with_sizes((H, G), dim=1)
            return q, (k, v)
        q, k = qk
        if self.q_norm is not None and self.k_norm is not None and not self.norms_width:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return rotate(q), (rotate(k), v)

    def state_width(self) -> int:
        """2 G D."""
        return 2 * self.n_kv_heads * self.head_dim
