"""A state space with one decay a head: linear attention whose memory fades by what the tokens say."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, merged
from attnlab.attention.mixers.memory import Memory
from attnlab.attention.mixers.rates import Rates
from attnlab.attention.mixers.recurrence import Tokens
from attnlab.attention.past.convolution import ShortConvolution
from attnlab.attention.past.past import Past


@final
class ScalarDecay(Memory):
    """S_t = a_t S_(t-1) + step_t k_t v_t^T, o_t = S_t^T q_t + d v_t (Mamba-2, Dao & Gu 2024, arXiv
    2405.21060, eq. 1 and §7.1): q and k of `state` features for all heads, q, k and v convolved over the
    last tokens and through silu, a and steps as of `Rates`; outputs gated by silu(x W), then normalised
    over the width.

    `n_heads` heads of dim / n_heads; the paper's are twice as wide together as the model. The norm adds
    `norm_eps` to the mean square.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        state: int,
        convolution: int = 4,
        chunk: int = 64,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, n_heads, chunk)
        if state < 1:
            raise ValueError(f"state must be at least 1, got {state}")
        self.state = state
        self.vkq = Fused(dim, {"v": dim, "k": state, "q": state}, bias=False)
        self.convolution = ShortConvolution(dim + 2 * state, convolution)
        self.rates = Rates(dim, n_heads)
        self.skip = nn.Parameter(torch.ones(n_heads))
        self.gate = nn.Linear(dim, dim, bias=False)
        self.norm = nn.RMSNorm(dim, norm_eps)
        self.out = IntoResidual(dim, dim, bias=False)

    def tokens(self, x_BTM: Tensor, past: Past) -> Tokens:
        """Keys and queries of one group; keys by their step."""
        vkq = F.silu(self.convolution(self.vkq(x_BTM), past, "tokens"))
        v, k, q = vkq.split(self.vkq.widths, dim=-1)
        steps, decay = self.rates(x_BTM)
        k, q = (part[:, None].expand(-1, self.n_heads, -1, -1) for part in (k, q))
        return Tokens(q, k * steps[..., None], by_head(v, self.head_dim), decay)

    def finish(self, out_BHTV: Tensor, x_BTM: Tensor, tokens: Tokens) -> Tensor:
        """The token's own value beside, gated, normalised, projected."""
        own = tokens.v.to(out_BHTV.dtype) * self.skip[:, None, None]
        return self.out(self.norm(merged(out_BHTV + own) * F.silu(self.gate(x_BTM))))

    def memory_size(self) -> int:
        """H N D."""
        return self.n_heads * self.state * self.head_dim
