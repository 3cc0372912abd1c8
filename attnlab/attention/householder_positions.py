"""Positions as reflections that depend on the tokens in between (PaTH attention)."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.contracts import AttentionInputs
from attnlab.attention.heads.projections import split_heads
from attnlab.attention.stateful.convolution import ShortConvolution
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class HouseholderPositions(nn.Module):
    """PaTH: scores k_s·H_(s+1) ... H_t q_t, with H_i = I - b_i w_i w_i^T for every token i after s.

    w_i is a unit vector: a projection of rank `rank`, a short convolution over `convolution` tokens (0: none)
    and a norm; b_i = 2 sigmoid(x_i·s + c) lies in (0, 2), so that H_i may reflect. Unlike the layer in the
    library fla, no SiLU follows the convolution. Each group of query heads has its own H, which acts on the
    first `width` features: all, or in latent heads those without RoPE. Keys after the query, which only masks
    that see the future show, have the score q·k.

    State: w and b of each token, [B, n_groups, S, width + 1], since cached keys are not rewritten as in the
    paper. A step therefore costs O(S²), and a full pass O(S³). A cache must hold all tokens after a retained
    one. Tokens that a mask hides still count, as in a forget gate; padding does not.

    Source: Yang et al. 2025, arXiv 2505.16381, §3.
    """

    has_token_state = True

    def __init__(self, dim: int, n_groups: int, width: int, rank: int = 32, convolution: int = 3) -> None:
        super().__init__()
        if min(n_groups, width, rank) < 1:
            raise ValueError(
                f"PaTH needs n_groups, width and rank of at least 1, got {n_groups}, {width} and {rank}"
            )
        self.width = width
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, n_groups * width, bias=False)
        self.strength = nn.Linear(dim, n_groups)
        self.kinds = {"strength.weight": "thin"}
        self.convolution = ShortConvolution(n_groups * width, convolution)

    def project(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> Tensor:
        """Compute w and b of the new tokens, [B, n_groups, T, width + 1]."""
        directions = self.convolution(self.up(self.down(x_BTM)), recurrent_state, "directions")
        w = F.normalize(split_heads(directions, self.width), dim=-1)
        b = 2 * self.strength(x_BTM).sigmoid()
        is_real = recurrent_state.find_real_tokens(x_BTM.shape[0])
        if is_real is not None:
            b = b * is_real[..., None]
        return torch.cat((w, b.transpose(1, 2)[..., None].to(w.dtype)), -1)

    def forward(self, score_BHTS: Tensor, inputs: AttentionInputs, visible: Tensor) -> Tensor:
        """Subtract what the reflections take from each score.

        From the right, H_i takes b_i w_i (w_i·r_i) from r_i, where r_t = q_t and r_(i-1) = H_i r_i. These
        amounts are the solution of one triangular system for all queries.
        """
        assert inputs.token_state is not None
        H = score_BHTS.shape[1]
        state = _repeat_groups(inputs.token_state.to(score_BHTS.dtype), H)
        w, b = state.split_with_sizes((self.width, 1), -1)
        q = inputs.q[..., : self.width] * inputs.scale
        k = _repeat_groups(inputs.k[..., : self.width], H)
        is_later = inputs.kv_idx.transpose(-1, -2) > inputs.kv_idx  # row: token of a reflection, column: key
        overlap = b * (w @ w.transpose(-1, -2)) * is_later.transpose(-1, -2)
        along = b * (w @ q.transpose(-1, -2)) * (inputs.kv_idx <= inputs.q_idx).transpose(-1, -2)
        amounts = torch.linalg.solve_triangular(overlap, along, upper=True, unitriangular=True)
        return score_BHTS - amounts.transpose(-1, -2) @ ((w @ k.transpose(-1, -2)) * is_later)

    def state_size(self) -> int:
        """Bytes cached per token."""
        return (self.up.out_features + self.strength.out_features) * self.up.weight.element_size()

    def carried_size(self) -> int:
        """Bytes carried by the convolution."""
        return self.convolution.carried_size()

    def flops(self, heads: int, n_queries: int, n_keys: int) -> int:
        """FLOPs of the projections and of the products of w, queries and keys; not of the solution."""
        n_weights = sum(part.weight.numel() for part in (self.down, self.up, self.strength))
        products = n_keys * self.width * (n_queries + 2 * n_keys) + n_queries * n_keys**2
        return 2 * (n_queries * n_weights + heads * products)


def _repeat_groups(x_BGSD: Tensor, heads: int) -> Tensor:
    return x_BGSD.repeat_interleave(heads // x_BGSD.shape[1], 1)
