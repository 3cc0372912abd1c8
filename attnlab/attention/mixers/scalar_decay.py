"""State-space model with one decay per head: linear attention with input-dependent decay."""

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
class ScalarDecay(MemoryMixer):
    """Mamba-2: S_t = a_t S_(t-1) + step_t k_t v_t^T, o_t = S_t^T q_t + d v_t.

    `n_heads` heads of dim / n_heads; the paper's heads together are twice as wide as the model. q and k have
    `state` features, shared by all heads. q, k and v are convolved over the last tokens and pass through
    silu; a and steps are as in `DecayRates`. Outputs are gated by silu(x W), then normalized over the width.
    The norm adds `norm_eps` to the mean square.

    Source: Dao & Gu 2024, arXiv 2405.21060, eq. 1 and §7.1.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        state: int,
        convolution: int = 4,
        chunk: int = 64,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, n_heads, chunk)
        if state < 1:
            raise ValueError(f"state must be at least 1, got {state}")
        self.state = state
        self.vkq = FusedLinear(dim, {"v": dim, "k": state, "q": state}, bias=False)
        self.convolution = ShortConvolution(dim + 2 * state, convolution)
        self.rates = DecayRates(dim, n_heads)
        self.skip = nn.Parameter(torch.ones(n_heads))
        self.gate = nn.Linear(dim, dim, bias=False)
        self.norm = nn.RMSNorm(dim, norm_eps)
        self.out = ResidualProjection(dim, dim, bias=False)

    def project_tokens(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> RecurrenceInputs:
        """Compute queries and keys, shared by all heads, and values; steps scale the keys."""
        vkq = F.silu(self.convolution(self.vkq(x_BTM), recurrent_state, "tokens"))
        v, k, q = vkq.split(self.vkq.widths, dim=-1)
        steps, decay = self.rates(x_BTM)
        k, q = (part[:, None].expand(-1, self.n_heads, -1, -1) for part in (k, q))
        return RecurrenceInputs(q, k * steps[..., None], split_heads(v, self.head_dim), decay)

    def project_output(self, out_BHTV: Tensor, x_BTM: Tensor, inputs: RecurrenceInputs) -> Tensor:
        """Add the token's own value, gate, normalize, project."""
        skipped = inputs.v.to(out_BHTV.dtype) * self.skip[:, None, None]
        return self.out(self.norm(merge_heads(out_BHTV + skipped) * F.silu(self.gate(x_BTM))))

    def memory_size(self) -> int:
        """H N D numbers."""
        return self.n_heads * self.state * self.head_dim
