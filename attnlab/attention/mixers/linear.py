"""Linear attention: the softmax replaced by a product of features, so that the past fits in one matrix."""

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, merged
from attnlab.attention.mixers.memory import Memory
from attnlab.attention.mixers.recurrence import Tokens
from attnlab.attention.past.past import Past


@final
class LinearAttention(Memory):
    """phi(q)·phi(k) in the place of exp(q·k), phi(x) = elu(x) + 1, over its sum (Katharopoulos et al. 2020,
    arXiv 2006.16236, eq. 7 and 10). With `decay` head h keeps 1 - 2^(-5-h) a token, of sums too (Sun et al.
    2023, arXiv 2307.08621, eq. 8, whose heads have no phi and no sum).

    `n_heads` heads of dim / n_heads. The sum is one more feature of the values.
    """

    def __init__(self, dim: int, n_heads: int, decay: bool = False, chunk: int = 64) -> None:
        super().__init__(dim, n_heads, chunk)
        self.qkv = Fused(dim, {"q": dim, "k": dim, "v": dim}, bias=False)
        self.out = IntoResidual(dim, dim, bias=False)
        self.decay = [math.log1p(-(2.0 ** (-5 - h))) if decay else 0.0 for h in range(n_heads)]

    def tokens(self, x_BTM: Tensor, past: Past) -> Tokens:
        """Features of queries and keys, values and a 1."""
        q, k, v = (by_head(part, self.head_dim) for part in self.qkv(x_BTM).chunk(3, dim=-1))
        decay = torch.tensor(self.decay, dtype=v.dtype, device=v.device)[None, :, None].expand(v.shape[:3])
        return Tokens(F.elu(q) + 1, F.elu(k) + 1, torch.cat((v, torch.ones_like(v[..., :1])), -1), decay)

    def finish(self, out_BHTV: Tensor, x_BTM: Tensor, tokens: Tokens) -> Tensor:
        """Over the sums."""
        return self.out(merged(over_sums(out_BHTV)))

    def memory_size(self) -> int:
        """H D (D + 1)."""
        return self.n_heads * self.head_dim * (self.head_dim + 1)


def over_sums(out_BHTV: Tensor) -> Tensor:
    """What was read over its sum of weights, which is its last feature; 0 where nothing was written."""
    values = out_BHTV[..., :-1]
    total = out_BHTV[..., -1:]
    return values / total.masked_fill(total == 0, 1.0)
