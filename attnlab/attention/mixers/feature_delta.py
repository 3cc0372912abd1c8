"""Delta rules whose memory decays at a rate per feature of the keys."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, merge_heads, split_heads
from attnlab.attention.mixers.decay_rates import FeatureDecayRates
from attnlab.attention.mixers.memory_mixer import MemoryMixer
from attnlab.attention.mixers.recurrence import RecurrenceInputs
from attnlab.attention.stateful.convolution import ShortConvolution
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class KimiDeltaAttention(MemoryMixer):
    """KDA: S_t = (I - b_t k_t k_t^T) diag(a_t) S_(t-1) + b_t k_t v_t^T, o_t = S_t^T q_t.

    `n_heads` heads of D = dim / n_heads. q, k and v are convolved over the last tokens and pass through silu;
    q and k have length 1; b = sigmoid(x W); a [D] is as in `FeatureDecayRates`. Outputs are normalized per
    head and gated by sigmoid(x W_down W_up). Both products of two matrices have rank D. The norm adds
    `norm_eps` to the mean square.

    With `feature_gates`, features are erased and written by gates b [D] and w [D] of their own, both
    sigmoid(x W) with a full matrix: S_t = (I - k_t (b_t k_t)^T) diag(a_t) S_(t-1) + k_t (w_t v_t)^T (Gated
    DeltaNet-2, Hatamizadeh et al. 2026, arXiv 2605.22791).

    Source: Kimi Linear, arXiv 2510.26692, eq. 1 and §4.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        convolution: int = 4,
        chunk: int = 16,
        norm_eps: float = 1e-6,
        feature_gates: bool = False,
    ) -> None:
        super().__init__(dim, n_heads, chunk)
        self.qkv = FusedLinear(dim, {"q": dim, "k": dim, "v": dim}, bias=False)
        self.convolution = ShortConvolution(3 * dim, convolution)
        self.rates = FeatureDecayRates(dim, n_heads, self.head_dim, self.head_dim)
        self.feature_gates = feature_gates
        self.write = (
            FusedLinear(dim, {"erase": dim, "write": dim}, bias=False)
            if feature_gates
            else nn.Linear(dim, n_heads, bias=False)
        )
        self.gate_down = nn.Linear(dim, self.head_dim, bias=False)
        self.gate_up = nn.Linear(self.head_dim, dim, bias=False)
        self.norm = nn.RMSNorm(self.head_dim, norm_eps)
        self.out = ResidualProjection(dim, dim, bias=False)
        self.kinds = {"write.weight": "hidden" if feature_gates else "thin", "gate_up.weight": "latent"}

    def project_tokens(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> RecurrenceInputs:
        """Compute queries and keys of length 1, values, decays, and write gates or erased keys."""
        qkv = F.silu(self.convolution(self.qkv(x_BTM), recurrent_state, "tokens"))
        q, k, v = (split_heads(part, self.head_dim) for part in qkv.chunk(3, dim=-1))
        q, k = (F.normalize(part, dim=-1) for part in (q, k))
        decay, gates = self.rates(x_BTM), torch.sigmoid(self.write(x_BTM))
        if not self.feature_gates:
            return RecurrenceInputs(q, k, v, decay, gates.transpose(1, 2))
        erase, write = (split_heads(part, self.head_dim) for part in gates.chunk(2, dim=-1))
        return RecurrenceInputs(q, k, write * v, decay, erase=erase * k)

    def project_output(self, out_BHTV: Tensor, x_BTM: Tensor, inputs: RecurrenceInputs) -> Tensor:
        """Normalize, gate and project."""
        gate = torch.sigmoid(self.gate_up(self.gate_down(x_BTM)))
        return self.out(merge_heads(self.norm(out_BHTV)) * gate)

    def memory_size(self) -> int:
        """H D² numbers."""
        return self.n_heads * self.head_dim**2
