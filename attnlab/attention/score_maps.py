"""Score maps: scores that depend on queries and keys, not on their product and positions alone."""

from types import MappingProxyType
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.contracts import AttentionInputs


@final
class ContextualPositions(nn.Module):
    """CoPE: q_t·k_s + q_t·e[p_ts], with p_ts = g_ts + ... + g_tt, gates g_ti = sigmoid(q_t·k_i).

    Products are scaled as all scores are. Positions are cut off at `n_positions` - 1; e is interpolated
    between integers. All heads share e [n_positions, width], which starts at zero and multiplies the first
    `width` features of q: all, or in latent heads those without RoPE. Hidden keys do not count. A key after
    the query, which only masks that see the future show, counts as well.

    Source: Golovneva et al. 2024, arXiv 2405.18719, §4.
    """

    kinds = MappingProxyType({"embeddings": "input"})

    def __init__(self, n_positions: int, width: int) -> None:
        super().__init__()
        if n_positions < 2 or width < 1:
            raise ValueError(
                f"contextual positions need n_positions >= 2 and width >= 1, got {n_positions} and {width}"
            )
        self.width = width
        self.embeddings = nn.Parameter(torch.zeros(n_positions, width))

    def forward(self, score_BHTS: Tensor, inputs: AttentionInputs, visible: Tensor) -> Tensor:
        """Add q·e[p] to scores of keys in the order of their positions."""
        n_positions, width = self.embeddings.shape
        gates = score_BHTS.sigmoid() * visible
        positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=n_positions - 1)
        below = positions.detach().floor()
        q = inputs.q[..., :width] * inputs.scale
        q_embeddings = q @ self.embeddings.to(q.dtype).T
        lower, upper = (
            q_embeddings.gather(-1, index.long()) for index in (below, (below + 1).clamp(max=n_positions - 1))
        )
        return score_BHTS + lower + (positions - below) * (upper - lower)

    def flops(self, heads: int, n_queries: int, n_keys: int) -> int:
        """FLOPs of the products of queries and embeddings."""
        return 2 * heads * n_queries * self.embeddings.numel()


@final
class KeyQueryConvolution(nn.Module):
    """Multi-token attention: score of query t and key s = Σ_ij w[h, i, j] score(t - i, s + j - n_keys // 2).

    The window covers the query and those just before it, and keys on both sides of s. Keys that are hidden
    from t count as 0, as do those after token t - i. Weights [H, n_queries, n_keys] start as the identity.
    State: the last n_queries - 1 queries. `normalizer=talking` adds the paper's mixing of heads, before and
    after the softmax; its convolution after the softmax and its norm per head are left out.

    Source: Golovneva et al. 2025, arXiv 2504.00927, §3.1.
    """

    kinds = MappingProxyType({"weight": "vector"})

    def __init__(self, n_heads: int, n_queries: int, n_keys: int) -> None:
        super().__init__()
        if n_queries < 1 or n_keys < 1 or n_keys % 2 == 0:
            raise ValueError(
                f"multi-token attention needs n_queries >= 1 and an odd n_keys >= 1, got {n_queries} and "
                f"{n_keys}"
            )
        self.lookback = n_queries - 1
        weight = torch.zeros(n_heads, n_queries, n_keys)
        weight[:, 0, n_keys // 2] = 1.0
        self.weight = nn.Parameter(weight)

    def forward(self, score_BHTS: Tensor, inputs: AttentionInputs, visible: Tensor) -> Tensor:
        """Convolve scores, those of `inputs.earlier_q` included."""
        T, n_keys = score_BHTS.shape[2], self.weight.shape[2]
        if not T:  # torch convolves no empty input
            return score_BHTS
        if inputs.earlier_q is not None:
            earlier_q, k = inputs.earlier_q.to(score_BHTS.dtype) * inputs.scale, inputs.k
            grouped_q = earlier_q.unflatten(1, (k.shape[1], -1))
            earlier = (grouped_q @ k.unsqueeze(2).transpose(-1, -2)).flatten(1, 2)
            score_BHTS = torch.cat((earlier, score_BHTS), 2)
        convolved = torch.zeros_like(score_BHTS[:, :, self.lookback :])
        for distance, weight in enumerate(self.weight.to(score_BHTS.dtype).unbind(1)):
            seen = visible & (inputs.kv_idx <= inputs.q_idx - distance) if distance else visible
            score = score_BHTS.narrow(2, self.lookback - distance, T).masked_fill(~seen, 0.0)
            convolved = convolved + F.conv2d(
                score, weight[:, None, None], padding=(0, n_keys // 2), groups=len(weight)
            )
        return convolved

    def flops(self, heads: int, n_queries: int, n_keys: int) -> int:
        """FLOPs of the convolution."""
        return 2 * n_queries * n_keys * self.weight.numel()
