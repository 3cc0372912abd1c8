"""Gated delta rule: a memory that replaces the value stored for a key and decays by a gate."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, merge_heads, split_heads
from attnlab.attention.mixers.decay_rates import DecayRates
from attnlab.attention.mixers.memory_mixer import MemoryMixer
from attnlab.attention.mixers.recurrence import RecurrenceInputs
from attnlab.attention.stateful.convolution import ShortConvolution
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class GatedDeltaNet(MemoryMixer):
    """Gated DeltaNet: S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T.

    `n_heads` heads of dim / n_heads. q, k and v are convolved over the last tokens and pass through silu; q
    and k have length 1; b = sigmoid(x W); a is as in `DecayRates`. Outputs are normalized per head and gated
    by silu(x W) (§3.4). Without `delta` nothing is replaced: a gated linear memory. The norm adds `norm_eps`
    to the mean square.

    Source: Yang et al. 2024, arXiv 2412.06464, eq. 10.
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
        self.qkv = FusedLinear(dim, {"q": dim, "k": dim, "v": dim}, bias=False)
        self.convolution = ShortConvolution(3 * dim, convolution)
        self.rates = DecayRates(dim, n_heads)
        self.write = nn.Linear(dim, n_heads, bias=False)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.norm = nn.RMSNorm(self.head_dim, norm_eps)
        self.out = ResidualProjection(dim, dim, bias=False)
        self.kinds = {"write.weight": "thin"}

    def project_tokens(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> RecurrenceInputs:
        """Compute queries and keys of length 1, values, decays and write gates."""
        qkv = F.silu(self.convolution(self.qkv(x_BTM), recurrent_state, "tokens"))
        q, k, v = (split_heads(part, self.head_dim) for part in qkv.chunk(3, dim=-1))
        write = torch.sigmoid(self.write(x_BTM)).transpose(1, 2)
        decay = self.rates(x_BTM)[1]
        q, k = (F.normalize(part, dim=-1) for part in (q, k))
        return (
            RecurrenceInputs(q, k, v, decay, write)
            if self.delta
            else RecurrenceInputs(q, k * write[..., None], v, decay)
        )

    def project_output(self, out_BHTV: Tensor, x_BTM: Tensor, inputs: RecurrenceInputs) -> Tensor:
        """Normalize, gate and project."""
        return self.out(merge_heads(self.norm(out_BHTV)) * F.silu(self.gate(x_BTM)))

    def memory_size(self) -> int:
        """H D² numbers."""
        return self.n_heads * self.head_dim**2
