"""What makes weights of scores, where it is not the softmax of each head by itself."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn


def off_by_one(score_S: Tensor) -> Tensor:
    """exp(s) / (1 + sum of exp(s)): as if one more key had a score and a value of 0 (Miller 2023, "Attention
    is off by one").
    """
    nothing = score_S.new_zeros(*score_S.shape[:-1], 1)
    return torch.cat((score_S, nothing), -1).softmax(-1)[..., :-1]


def softpick(score_S: Tensor) -> Tensor:
    """relu(exp(s) - 1) / sum of |exp(s) - 1| (Zuhri et al. 2025, arXiv 2504.20966, eq. 4): keys below 0 get
    nothing, and take from what the others get.
    """
    top = score_S.detach().amax(-1, keepdim=True).clamp(min=0)
    near = (-top).exp() * score_S.clamp(max=1).expm1()  # exp(s) - 1, over exp(top): exact near 0
    above = torch.where(score_S < 1, near, (score_S - top).exp() - (-top).exp())
    above = above.masked_fill(score_S == -torch.inf, 0.0)
    total = above.abs().sum(-1, keepdim=True)
    return above.relu() / total.clamp(min=torch.finfo(total.dtype).tiny)


@final
class Sigmoid:
    """1 / (1 + exp(-(s - ln(length)))): each key by itself, none against the others (Ramapuram et al. 2024,
    arXiv 2409.04431, eq. 3; the bias of §3.2). `length` is the trained one.
    """

    def __init__(self, length: float) -> None:
        if not length >= 1:
            raise ValueError(f"sigmoid attention needs length >= 1, got {length}")
        self.length = length

    def __call__(self, score_S: Tensor) -> Tensor:
        """Weights of a row sum to anything up to its keys."""
        return torch.sigmoid(score_S - torch.tensor(self.length, dtype=score_S.dtype).log())


@final
class TalkingHeads(nn.Module):
    """A softmax between two mixtures of the heads: one of their scores before it, one of their weights after
    it (Shazeer et al. 2020, arXiv 2003.02436, §4). Both begin as no mixture; weights may become negative,
    which maps show as nothing.

    A key that is hidden from a head says nothing to the others there, and gets nothing of them.
    """

    signed = True
    kinds = MappingProxyType({"of_scores": "vector", "of_weights": "vector"})

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.of_scores = nn.Parameter(torch.eye(n_heads))
        self.of_weights = nn.Parameter(torch.eye(n_heads))

    def forward(self, score_BHTS: Tensor) -> Tensor:
        """Weights [B, H, T, S]."""
        hidden = score_BHTS == -torch.inf
        score = _mixed(self.of_scores, score_BHTS.masked_fill(hidden, 0.0)).masked_fill(hidden, -torch.inf)
        return _mixed(self.of_weights, score.softmax(-1)).masked_fill(hidden, 0.0)

    def flops(self, heads: int, new: int, held: int) -> int:
        """Of both mixtures."""
        return 2 * 2 * heads * heads * new * held


def _mixed(matrix: Tensor, of_heads_BHTS: Tensor) -> Tensor:
    return torch.einsum("hi,bits->bhts", matrix.to(of_heads_BHTS.dtype), of_heads_BHTS)
