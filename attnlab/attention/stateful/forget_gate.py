"""Forget gate: a score term that depends on the tokens in between, as features of queries and keys."""

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class ForgetGate(nn.Module):
    """Add log f_(s+1) + ... + log f_t to the score of query t and key s, with gates f per head.

    f = sigmoid(x W + b + start). With sums C over all tokens the term is C_t - C_s: two more features of
    queries and keys, so any kernel computes it. State: C_s, [B, H, S, 1], and C of the last token. In 16 bits
    a sum is split into three parts. Source: forgetting attention, Lin et al. 2025, arXiv 2503.02130, eq. 5-8.
    """

    lookback = math.inf

    def __init__(self, dim: int, n_heads: int, start: float = 0.0) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.start = start
        self.gate = nn.Linear(dim, n_heads)
        self.kinds = {"gate.weight": "thin"}

    def project(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> Tensor:
        """Compute C of the new tokens, [B, H, T, 1], in float32 at least."""
        gates = self.gate(x_BTM)
        compute_dtype = torch.promote_types(gates.dtype, torch.float32)
        return recurrent_state.accumulate_sums(
            "forgetting", F.logsigmoid(gates.to(compute_dtype) + self.start).transpose(1, 2)
        )[..., None]

    def append_features(
        self, q: Tensor, k: Tensor, new_sums: Tensor, key_sums: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Append the features to q and k; a key that several heads share gets those of each of them."""
        q_features = self.build_features(new_sums / scale, True, q.dtype)
        k_features = self.build_features(key_sums / scale, False, k.dtype)
        B, H, S, width = k_features.shape
        G = k.shape[1]
        group_size = H // G
        if group_size > 1:
            k_features = (
                k_features.view(B, G, group_size, S, width)
                .transpose(2, 3)
                .reshape(B, G, S, group_size * width)
            )
            head_selector = torch.eye(group_size, dtype=q.dtype, device=q.device).repeat(G, 1)[
                :, None, :, None
            ]
            q_features = (q_features[..., None, :] * head_selector).flatten(-2)
        return torch.cat((q, q_features), -1), torch.cat((k, k_features), -1)

    def flops(self, n_queries: int, n_keys: int, groups: int) -> int:
        """FLOPs of matrix products, per row: the gates, and the features of scores.

        A multiplication counts two.
        """
        n_features = 2 * (self.n_heads // groups)
        return 2 * n_queries * (self.gate.weight.numel() + self.n_heads * n_features * n_keys)

    @staticmethod
    def build_features(total_BHT1: Tensor, of_query: bool, dtype: torch.dtype) -> Tensor:
        """Build features [B, H, T, F], whose products are C_t - C_s."""
        parts = []
        remainder = total_BHT1
        for _ in range(1 if dtype.itemsize > 2 else 3):
            parts.append(remainder.to(dtype))
            remainder = remainder - parts[-1]
        sums = torch.cat(parts, -1)
        ones = torch.ones_like(sums)
        return torch.cat((sums, ones) if of_query else (ones, -sums), -1)

    def state_size(self) -> int:
        """Bytes per token."""
        return self.n_heads * max(4, self.gate.weight.element_size())

    def carried_size(self) -> int:
        """Bytes carried: the sums up to the last token."""
        return self.state_size()
