"""Linear attention whose memory decays at a rate per feature of the keys."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, merge_heads, split_heads
from attnlab.attention.mixers.memory_mixer import MemoryMixer
from attnlab.attention.mixers.recurrence import RecurrenceInputs
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class GatedLinearAttention(MemoryMixer):
    """Gated linear attention: S_t = diag(a_t) S_(t-1) + k_t v_t^T, o_t = S_t^T q_t.

    `n_heads` heads with queries and keys of `state` features, half of the values' in the paper, and values of
    dim / n_heads; a = sigmoid(x W_down W_up + c)^(1 / `temperature`), where W_down W_up has rank `rank`.
    Outputs are normalized per head and gated by silu(x W). The norm, which adds `norm_eps` to the mean
    square, has no mean and no bias, as in the authors' code. The scaling of W_up's learning rate with width
    is unknown, so `mup` rejects it.

    Source: Yang et al. 2023, arXiv 2312.06635, §4.3 and §4.4.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        state: int,
        rank: int,
        temperature: float = 16.0,
        chunk: int = 16,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, n_heads, chunk)
        for name, number in (("state", state), ("rank", rank)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self.state, self.temperature = state, temperature
        self.qkv = FusedLinear(dim, {"q": n_heads * state, "k": n_heads * state, "v": dim}, bias=False)
        self.decay_down = nn.Linear(dim, rank, bias=False)
        self.decay_up = nn.Linear(rank, n_heads * state)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.norm = nn.RMSNorm(self.head_dim, norm_eps)
        self.out = ResidualProjection(dim, dim, bias=False)
        self.kinds = {"decay_up.weight": "decays"}

    def project_tokens(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> RecurrenceInputs:
        """Compute queries, keys, values and decays; the decays in float32 at least."""
        q, k, v = self.qkv(x_BTM).split(self.qkv.widths, dim=-1)
        q, k, raw = (split_heads(part, self.state) for part in (q, k, self.decay_up(self.decay_down(x_BTM))))
        compute_dtype = torch.promote_types(raw.dtype, torch.float32)
        decay = F.logsigmoid(raw.to(compute_dtype)) / self.temperature
        return RecurrenceInputs(q, k, split_heads(v, self.head_dim), decay)

    def project_output(self, out_BHTV: Tensor, x_BTM: Tensor, inputs: RecurrenceInputs) -> Tensor:
        """Normalize, gate and project."""
        return self.out(merge_heads(self.norm(out_BHTV)) * F.silu(self.gate(x_BTM)))

    def memory_size(self) -> int:
        """H K D numbers."""
        return self.n_heads * self.state * self.head_dim
