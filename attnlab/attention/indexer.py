"""Lightning indexer: cheap scores that learn which keys attention reads."""

import math
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.contracts import AttentionInputs, Rotate
from attnlab.attention.heads.projections import FusedLinear, split_heads
from attnlab.attention.kernels.eager import eager
from attnlab.attention.kernels.masking import make_batch_head_indices

LOSS_NAME = "indexer_kl"


@final
class Indexer(nn.Module):
    """Index scores I_ts = Σ_j w_tj ReLU(q_tj·k_s), over `n_heads` heads of width `head_dim`, with one key.

    q, k and w are projections of the layer's input, which get no gradient from the model's loss: the indexer
    learns from `compute_loss` alone, weighted by `loss_weight`, and its gradient is clipped by itself. q and
    k are rotated like the layer's. The factor (n_heads * head_dim)^-0.5 is part of w. State: k_s, [B, 1, S,
    head_dim].

    If all q_tj·k_s are negative, I_ts is exactly 0: with two heads, a quarter of the index scores at
    initialization. For about a fifth of the queries, selection then chooses between equal scores, and takes
    the later keys.

    Source: DeepSeek Sparse Attention, arXiv 2512.02556, §2.1, without its norm of k and its 8-bit numbers.
    """

    learns_alone = True

    def __init__(self, dim: int, n_heads: int, head_dim: int, loss_weight: float = 1.0) -> None:
        super().__init__()
        if min(n_heads, head_dim) < 1:
            raise ValueError(
                f"an indexer needs n_heads and head_dim of at least 1, got {n_heads} and {head_dim}"
            )
        if not 0 < loss_weight < math.inf:
            raise ValueError(f"an indexer needs a finite loss_weight above 0 to learn, got {loss_weight}")
        self.n_heads = n_heads
        self.head_dim = head_dim
        self.loss_weight = loss_weight
        self.qkw = FusedLinear(dim, {"q": n_heads * head_dim, "k": head_dim, "w": n_heads}, bias=False)
        self.kinds = {"qkw.weight": "thin"}

    def project(self, x_BTM: Tensor, rotate: Rotate) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Compute (q [B, J, T, D], w [B, J, T, 1]) and the state of the new tokens, without gradient to x."""
        widths = (self.n_heads * self.head_dim, self.head_dim, self.n_heads)
        q, k, w = self.qkw(x_BTM.detach()).split_with_sizes(widths, dim=-1)
        q, k = (rotate(split_heads(part, self.head_dim)) for part in (q, k))
        return (q, split_heads(w, 1) * (self.n_heads * self.head_dim) ** -0.5), k

    def compute_scores(self, queries: tuple[Tensor, Tensor], k_B1SD: Tensor) -> Tensor:
        """Compute I, [B, 1, T, S]."""
        q, w = queries
        return (w * F.relu(q @ k_B1SD.transpose(-1, -2))).sum(1, keepdim=True)

    @staticmethod
    def compute_loss(
        index_scores_B1TS: Tensor, inputs: AttentionInputs, is_real_BT: Tensor | None = None
    ) -> Tensor:
        """Compute the mean over tokens of KL(p ‖ softmax(I)) in nats, over all keys that a token may see.

        p is the mean over heads of the weights of attention to all these keys, selected or not (eq. 3: a
        selection made at random at the start would otherwise confirm itself). It gets no gradient. Padding,
        where `is_real` is False, and tokens that see no key count as 0, so that parts of a batch weigh alike.
        """
        (B, H, T, _), S = inputs.q.shape, inputs.k.shape[2]
        with torch.no_grad():
            weights = eager(inputs._replace(need=("weights",), dropout=0.0)).weights
            assert weights is not None
            target = weights.mean(1, keepdim=True)
            target = target / target.sum(-1, keepdim=True).clamp(min=torch.finfo(target.dtype).tiny)
            is_visible = (inputs.q_idx >= 0) & (inputs.kv_idx >= 0)
            if inputs.mask is not None:
                b, h = make_batch_head_indices(B, H, inputs.q.device)
                is_visible = is_visible & inputs.mask(b, h, inputs.q_idx, inputs.kv_idx).any(1, keepdim=True)
            is_visible = is_visible.expand(B, 1, T, S)
            counts = is_visible.any(-1)
            if is_real_BT is not None:
                counts = counts & is_real_BT[:, None]
        scores = index_scores_B1TS.to(target.dtype).masked_fill(~is_visible, -torch.inf)
        scores = scores.masked_fill(~counts[..., None], 0.0)  # -inf alone would make NaN gradients
        log_p_index = scores.log_softmax(-1).masked_fill(~is_visible, 0.0)
        divergence = (torch.xlogy(target, target) - target * log_p_index).sum(-1)
        return divergence.masked_fill(~counts, 0.0).sum() / max(1, B * T)

    def state_size(self) -> int:
        """Bytes cached per token."""
        return self.head_dim * self.qkw.weight.element_size()

    def flops(self, n_queries: int, n_keys: int) -> int:
        """FLOPs of the projection and of the index scores, per row; those of the loss are not counted."""
        return 2 * n_queries * (self.qkw.weight.numel() + self.n_heads * self.head_dim * n_keys)
