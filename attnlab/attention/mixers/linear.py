"""Linear attention: a product of features replaces the softmax, so that the past fits in one matrix."""

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, merge_heads, split_heads
from attnlab.attention.mixers.memory_mixer import MemoryMixer
from attnlab.attention.mixers.recurrence import RecurrenceInputs
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class LinearAttention(MemoryMixer):
    """phi(q)·phi(k), divided by its sum, in place of exp(q·k), with phi(x) = elu(x) + 1.

    Source: Katharopoulos et al. 2020, arXiv 2006.16236, eq. 7 and 10. With `decay`, head h retains 1 -
    2^(-5-h) per token, also of sums (Sun et al. 2023, arXiv 2307.08621, eq. 8, whose heads have no phi and no
    sum). There are `n_heads` heads of dim / n_heads. The sum is one more feature of the values.
    """

    def __init__(self, dim: int, n_heads: int, decay: bool = False, chunk: int = 64) -> None:
        super().__init__(dim, n_heads, chunk)
        self.qkv = FusedLinear(dim, {"q": dim, "k": dim, "v": dim}, bias=False)
        self.out = ResidualProjection(dim, dim, bias=False)
        self.decay = [math.log1p(-(2.0 ** (-5 - h))) if decay else 0.0 for h in range(n_heads)]

    def project_tokens(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> RecurrenceInputs:
        """Compute features of queries and keys, and values with an appended 1."""
        q, k, v = (split_heads(part, self.head_dim) for part in self.qkv(x_BTM).chunk(3, dim=-1))
        decay = torch.tensor(self.decay, dtype=v.dtype, device=v.device)[None, :, None].expand(v.shape[:3])
        return RecurrenceInputs(
            F.elu(q) + 1, F.elu(k) + 1, torch.cat((v, torch.ones_like(v[..., :1])), -1), decay
        )

    def project_output(self, out_BHTV: Tensor, x_BTM: Tensor, inputs: RecurrenceInputs) -> Tensor:
        """Divide by the sums and project."""
        return self.out(merge_heads(normalize_by_sum(out_BHTV)))

    def memory_size(self) -> int:
        """H D (D + 1) numbers."""
        return self.n_heads * self.head_dim * (self.head_dim + 1)


def normalize_by_sum(out_BHTV: Tensor) -> Tensor:
    """Divide by the sum of weights, which is the last feature; 0 if nothing was written."""
    values = out_BHTV[..., :-1]
    weight_sum = out_BHTV[..., -1:]
    return values / weight_sum.masked_fill(weight_sum == 0, 1.0)
