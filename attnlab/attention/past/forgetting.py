"""Scores that depend on the tokens between: a forget gate, as features of queries and keys."""

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.past.past import Past


@final
class Forgetting(nn.Module):
    """Adds log f_(s+1) + ... + log f_t to the score of query t and key s of a head, f = sigmoid(x W + b +
    start) (forgetting attention, Lin et al. 2025, arXiv 2503.02130, eq. 5-8).

    With sums C over all tokens it is C_t - C_s: two more features of queries and keys, so any kernel computes
    it. State: C_s, [B, H, S, 1], and C of the last token. In 16 bits a sum is told in three parts.
    """

    looks_back = math.inf

    def __init__(self, dim: int, n_heads: int, start: float = 0.0) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.start = start
        self.gate = nn.Linear(dim, n_heads)
        self.kinds = {"gate.weight": "thin"}

    def project(self, x_BTM: Tensor, past: Past) -> Tensor:
        """C of the new tokens, [B, H, T, 1], in float32 at least."""
        gates = self.gate(x_BTM)
        exact = torch.promote_types(gates.dtype, torch.float32)
        return past.total("forgetting", F.logsigmoid(gates.to(exact) + self.start).transpose(1, 2))[..., None]

    def beside(self, q: Tensor, k: Tensor, new: Tensor, held: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """q and k with their features; where heads share a key, it has those of each of them."""
        of_q = self.features(new / scale, True, q.dtype)
        of_k = self.features(held / scale, False, k.dtype)
        B, H, S, width = of_k.shape
        G = k.shape[1]
        shared = H // G
        if shared > 1:
            of_k = of_k.view(B, G, shared, S, width).transpose(2, 3).reshape(B, G, S, shared * width)
            own = torch.eye(shared, dtype=q.dtype, device=q.device).repeat(G, 1)[:, None, :, None]
            of_q = (of_q[..., None, :] * own).flatten(-2)
        return torch.cat((q, of_q), -1), torch.cat((k, of_k), -1)

    def flops(self, new: int, held: int, groups: int) -> int:
        """Of matrix products, per row: the gates, and the features of scores; two a multiplication."""
        wide = 2 * (self.n_heads // groups)
        return 2 * new * (self.gate.weight.numel() + self.n_heads * wide * held)

    @staticmethod
    def features(total_BHT1: Tensor, of_query: bool, dtype: torch.dtype) -> Tensor:
        """[B, H, T, F], whose products are C_t - C_s."""
        parts = []
        rest = total_BHT1
        for _ in range(1 if dtype.itemsize > 2 else 3):
            parts.append(rest.to(dtype))
            rest = rest - parts[-1]
        told = torch.cat(parts, -1)
        ones = torch.ones_like(told)
        return torch.cat((told, ones) if of_query else (ones, -told), -1)

    def state_size(self) -> int:
        """Bytes per token."""
        return self.n_heads * max(4, self.gate.weight.element_size())

    def carried_size(self) -> int:
        """Bytes carried: the sums up to the last token."""
        return self.state_size()
