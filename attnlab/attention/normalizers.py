"""Attention normalizers: alternatives to the softmax of each head by itself."""

from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn


def off_by_one(score_S: Tensor) -> Tensor:
    """exp(s) / (1 + Σ exp(s)), as with one more key whose score and value are 0.

    Source: Miller 2023, "Attention is off by one".
    """
    null_score = score_S.new_zeros(*score_S.shape[:-1], 1)
    return torch.cat((score_S, null_score), -1).softmax(-1)[..., :-1]


def softpick(score_S: Tensor) -> Tensor:
    """relu(exp(s) - 1) / Σ |exp(s) - 1| (Zuhri et al. 2025, arXiv 2504.20966, eq. 4).

    Keys with scores below 0 get no weight and reduce the weights of the others.
    """
    max_score = score_S.detach().amax(-1, keepdim=True).clamp(min=0)
    near_zero = (-max_score).exp() * score_S.clamp(
        max=1
    ).expm1()  # (exp(s) - 1) / exp(max_score), exact near 0
    numerator = torch.where(score_S < 1, near_zero, (score_S - max_score).exp() - (-max_score).exp())
    numerator = numerator.masked_fill(score_S == -torch.inf, 0.0)
    total = numerator.abs().sum(-1, keepdim=True)
    return numerator.relu() / total.clamp(min=torch.finfo(total.dtype).tiny)


@final
class Sigmoid:
    """1 / (1 + exp(-(s - ln(length)))): each key independently of the others.

    `length` is the training length. Source: Ramapuram et al. 2024, arXiv 2409.04431, eq. 3, with the bias of
    §3.2.
    """

    def __init__(self, length: float) -> None:
        if not length >= 1:
            raise ValueError(f"sigmoid attention needs length >= 1, got {length}")
        self.length = length

    def __call__(self, score_S: Tensor) -> Tensor:
        """Compute weights; a row may sum to anything up to its number of keys."""
        return torch.sigmoid(score_S - torch.tensor(self.length, dtype=score_S.dtype).log())


@final
class TalkingHeads(nn.Module):
    """Softmax between two mixtures of the heads: of their scores before it, of their weights after it.

    Both mixtures start as the identity. Weights may become negative; attention maps show those as zero. A key
    that is hidden from a head contributes nothing to the other heads there, and receives nothing from them.

    Source: Shazeer et al. 2020, arXiv 2003.02436, §4.
    """

    is_signed = True
    kinds = MappingProxyType({"of_scores": "vector", "of_weights": "vector"})

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.of_scores = nn.Parameter(torch.eye(n_heads))
        self.of_weights = nn.Parameter(torch.eye(n_heads))

    def forward(self, score_BHTS: Tensor) -> Tensor:
        """Compute weights [B, H, T, S]."""
        hidden = score_BHTS == -torch.inf
        score = _mix_heads(self.of_scores, score_BHTS.masked_fill(hidden, 0.0)).masked_fill(
            hidden, -torch.inf
        )
        return _mix_heads(self.of_weights, score.softmax(-1)).masked_fill(hidden, 0.0)

    def flops(self, heads: int, n_queries: int, n_keys: int) -> int:
        """FLOPs of both mixtures."""
        return 2 * 2 * heads * heads * n_queries * n_keys


def _mix_heads(matrix: Tensor, x_BHTS: Tensor) -> Tensor:
    return torch.einsum("hi,bits->bhts", matrix.to(x_BHTS.dtype), x_BHTS)
