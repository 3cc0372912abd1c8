"""Linear attention with the second-order Taylor polynomial of the exponential as features."""

from typing import final

import torch
from torch import Tensor

from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, merge_heads, split_heads
from attnlab.attention.mixers.linear import normalize_by_sum
from attnlab.attention.mixers.memory_mixer import MemoryMixer
from attnlab.attention.mixers.recurrence import RecurrenceInputs
from attnlab.attention.stateful.convolution import ShortConvolution
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class TaylorAttention(MemoryMixer):
    """Based: 1 + s + s²/2, divided by its sum, in place of exp(s), with s = q·k / sqrt(`features`).

    The polynomial is never below 0.5. q, k and v are convolved over the last tokens. There are `n_heads`
    heads, with queries and keys of `features` numbers and values of dim / n_heads: `features` alone sets the
    memory's size. The paper has convolutions and windows in layers of their own.

    Source: Arora et al. 2024, arXiv 2402.18668, §4.1.
    """

    def __init__(self, dim: int, n_heads: int, features: int, convolution: int = 4, chunk: int = 64) -> None:
        super().__init__(dim, n_heads, chunk)
        if features < 1:
            raise ValueError(f"taylor attention needs features >= 1, got {features}")
        self.features = features
        self.widths = (n_heads * features, n_heads * features, dim)
        self.qkv = FusedLinear(dim, dict(zip("qkv", self.widths, strict=True)), bias=False)
        self.convolution = ShortConvolution(sum(self.widths), convolution)
        self.out = ResidualProjection(dim, dim, bias=False)

    def project_tokens(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> RecurrenceInputs:
        """Compute polynomials of queries and keys, and values with an appended 1."""
        parts = self.convolution(self.qkv(x_BTM), recurrent_state, "tokens").split_with_sizes(
            self.widths, dim=-1
        )
        widths = (self.features, self.features, self.head_dim)
        q, k, v = (split_heads(part, width) for part, width in zip(parts, widths, strict=True))
        v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        return RecurrenceInputs(
            _expand_taylor_features(q),
            _expand_taylor_features(k),
            v,
            v.new_zeros(1, 1, 1).expand(v.shape[:3]),
        )

    def project_output(self, out_BHTV: Tensor, x_BTM: Tensor, inputs: RecurrenceInputs) -> Tensor:
        """Divide by the sums and project."""
        return self.out(merge_heads(normalize_by_sum(out_BHTV)))

    def memory_size(self) -> int:
        """H (1 + f + f (f + 1) / 2) (D + 1) numbers: each product of two different features once."""
        terms = 1 + self.features + self.features * (self.features + 1) // 2
        return self.n_heads * terms * (self.head_dim + 1)


def _expand_taylor_features(x: Tensor) -> Tensor:
    """Expand [..., f] to [..., 1 + f + f (f + 1) / 2], whose products are 1 + s + s²/2."""
    width = x.shape[-1]
    x = x * width**-0.25
    first, second = torch.triu_indices(width, width, device=x.device)
    products = x[..., first] * x[..., second]
    squares = first == second  # x_i x_j occurs twice, x_i² once
    return torch.cat((torch.ones_like(x[..., :1]), x, products.where(~squares, products * 0.5**0.5)), -1)
