"""Gated delta rule: a memory that replaces what it has for a key, and lets go of the rest by a gate."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, merged
from attnlab.attention.mixers.memory import Memory
from attnlab.attention.mixers.rates import Rates
from attnlab.attention.mixers.recurrence import Tokens
from attnlab.attention.past.convolution import ShortConvolution
from attnlab.attention.past.past import Past


@final
class GatedDeltaNet(Memory):
    """S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T (Yang et al. 2024, arXiv 2412.06464, eq. 10),
    with q, k and v convolved over the last tokens and through silu, q and k of length 1, b = sigmoid(x W),
    a as of `Rates`, and outputs normalised per head and gated by silu(x W) (§3.4).

    `n_heads` heads of dim / n_heads. Without `delta` nothing is replaced: a gated linear memory. The norm
    adds `norm_eps` to the mean square.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        convolution: int = 4,
        delta: bool = True,
        chunk: int = 64,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, n_heads, chunk)
        self.delta = delta
        self.qkv = Fused(dim, {"q": dim, "k": dim, "v": dim}, bias=False)
        self.convolution = ShortConvolution(3 * dim, convolution)
        self.rates = Rates(dim, n_heads)
        self.write = nn.Linear(dim, n_heads, bias=False)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.norm = nn.RMSNorm(self.head_dim, norm_eps)
        self.out = IntoResidual(dim, dim, bias=False)
        self.kinds = {"write.weight": "thin"}

    def tokens(self, x_BTM: Tensor, past: Past) -> Tokens:
        """Queries and keys of length 1."""
        qkv = F.silu(self.convolution(self.qkv(x_BTM), past, "tokens"))
        q, k, v = (by_head(part, self.head_dim) for part in qkv.chunk(3, dim=-1))
        write = torch.sigmoid(self.write(x_BTM)).transpose(1, 2)
        decay = self.rates(x_BTM)[1]
        q, k = (F.normalize(part, dim=-1) for part in (q, k))
        return Tokens(q, k, v, decay, write) if self.delta else Tokens(q, k * write[..., None], v, decay)

    def finish(self, out_BHTV: Tensor, x_BTM: Tensor, tokens: Tokens) -> Tensor:
        """Normalised, gated, projected."""
        return self.out(merged(self.norm(out_BHTV)) * F.silu(self.gate(x_BTM)))

    def memory_size(self) -> int:
        """H D²."""
        return self.n_heads * self.head_dim**2
