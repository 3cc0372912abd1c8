"""Linear attention whose features are the second Taylor polynomial of the exponential."""

from typing import final

import torch
from torch import Tensor

from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, merged
from attnlab.attention.mixers.linear import over_sums
from attnlab.attention.mixers.memory import Memory
from attnlab.attention.mixers.recurrence import Tokens
from attnlab.attention.past.convolution import ShortConvolution
from attnlab.attention.past.past import Past


@final
class TaylorAttention(Memory):
    """1 + s + s²/2 in the place of exp(s), s = q·k / sqrt(`features`), over its sum: never below a half
    (Based, Arora et al. 2024, arXiv 2402.18668, §4.1), with q, k and v convolved over the last tokens.

    `n_heads` heads with queries and keys of `features` numbers and values of dim / n_heads: the memory's size
    is chosen by `features` alone. The paper has convolutions and windows in layers of their own.
    """

    def __init__(self, dim: int, n_heads: int, features: int, convolution: int = 4, chunk: int = 64) -> None:
        super().__init__(dim, n_heads, chunk)
        if features < 1:
            raise ValueError(f"taylor attention needs features >= 1, got {features}")
        self.features = features
        self.widths = (n_heads * features, n_heads * features, dim)
        self.qkv = Fused(dim, dict(zip("qkv", self.widths, strict=True)), bias=False)
        self.convolution = ShortConvolution(sum(self.widths), convolution)
        self.out = IntoResidual(dim, dim, bias=False)

    def tokens(self, x_BTM: Tensor, past: Past) -> Tokens:
        """Polynomials of queries and keys, values and a 1."""
        parts = self.convolution(self.qkv(x_BTM), past, "tokens").split_with_sizes(self.widths, dim=-1)
        widths = (self.features, self.features, self.head_dim)
        q, k, v = (by_head(part, width) for part, width in zip(parts, widths, strict=True))
        v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        return Tokens(_polynomial(q), _polynomial(k), v, v.new_zeros(1, 1, 1).expand(v.shape[:3]))

    def finish(self, out_BHTV: Tensor, x_BTM: Tensor, tokens: Tokens) -> Tensor:
        """Over the sums."""
        return self.out(merged(over_sums(out_BHTV)))

    def memory_size(self) -> int:
        """H (1 + f + f (f + 1) / 2) (D + 1): each product of two different features once."""
        terms = 1 + self.features + self.features * (self.features + 1) // 2
        return self.n_heads * terms * (self.head_dim + 1)


def _polynomial(x: Tensor) -> Tensor:
    """[..., f] -> [..., 1 + f + f (f + 1) / 2], whose products are 1 + s + s²/2."""
    width = x.shape[-1]
    x = x * width**-0.25
    first, second = torch.triu_indices(width, width, device=x.device)
    products = x[..., first] * x[..., second]
    squares = first == second  # x_i x_j is there twice, x_i² once
    return torch.cat((torch.ones_like(x[..., :1]), x, products.where(~squares, products * 0.5**0.5)), -1)
