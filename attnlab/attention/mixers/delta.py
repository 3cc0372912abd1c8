"""Gated delta rule: a memory that replaces the value stored for a key and decays by a gate."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, merge_heads, split_heads
from attnlab.attention.mixers.decay_rates import DecayRates
from attnlab.attention.mixers.memory_mixer import MemoryMixer
from attnlab.attention.mixers.recurrence import RecurrenceInputs
from attnlab.attention.stateful.convolution import ShortConvolution
from attnlab.attention.stateful.recurrent_state import RecurrentState


@final
class GatedDeltaNet(MemoryMixer):
    """Gated DeltaNet: S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T.

    `n_heads` heads of `head_dim`, by default dim / n_heads. With `n_key_heads`, a smaller number of heads of
    queries and keys each serve n_heads / n_key_heads heads of values (Qwen3-Next). q, k and v are convolved
    over the last tokens and pass through silu; q and k have length 1; b = `max_write` sigmoid(x W); a is as
    in `DecayRates`, or 1 without `decay`, as in DeltaNet (Yang et al. 2024, arXiv 2406.06484). Outputs are
    normalized per head and gated by silu(x W) (§3.4). Without `delta` nothing is replaced: a gated linear
    memory. The norm adds `norm_eps` to the mean square.

    The transition's eigenvalue along k_t is a_t (1 - b_t): between 0 and 1 for `max_write` 1, between -1 and
    1 for 2. No layer with positive eigenvalues alone tracks parity (Grazzi et al. 2024, arXiv 2411.12537,
    theorem 1).

    With `steps_per_token` n, a token decays the memory once and then makes n writes, each with its own k, v
    and b, so that its transition is a product of n generalized Householder matrices: DeltaProduct (Siems et
    al. 2025, arXiv 2502.10297, §3).

    Source: Yang et al. 2024, arXiv 2412.06464, eq. 10.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        convolution: int = 4,
        delta: bool = True,
        chunk: int = 64,
        norm_eps: float = 1e-6,
        max_write: float = 1.0,
        decay: bool = True,
        steps_per_token: int = 1,
        n_key_heads: int | None = None,
        head_dim: int | None = None,
    ) -> None:
        super().__init__(dim, n_heads, chunk, steps_per_token, head_dim)
        n_key_heads = n_heads if n_key_heads is None else n_key_heads
        if n_key_heads < 1 or n_heads % n_key_heads:
            raise ValueError(f"n_key_heads={n_key_heads} does not divide n_heads={n_heads}: choose a divisor")
        if not 0 < max_write <= 2:
            raise ValueError(f"max_write must be above 0 and at most 2, got {max_write}")
        self.delta, self.max_write = delta, max_write
        self.values_per_key = n_heads // n_key_heads
        keys, values = n_key_heads * self.head_dim, n_heads * self.head_dim
        parts = {"q": keys, "k": steps_per_token * keys, "v": steps_per_token * values}
        self.qkv = FusedLinear(dim, parts, bias=False)
        self.convolution = ShortConvolution(sum(parts.values()), convolution)
        self.rates = DecayRates(dim, n_heads) if decay else None
        self.write = nn.Linear(dim, steps_per_token * n_heads, bias=False)
        self.gate = nn.Linear(dim, values, bias=False)
        self.norm = nn.RMSNorm(self.head_dim, norm_eps)
        self.out = ResidualProjection(values, dim, bias=False)
        self.kinds = {"write.weight": "thin"}

    def project_tokens(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> RecurrenceInputs:
        """Compute queries and keys of length 1, values, decays and write gates."""
        qkv = F.silu(self.convolution(self.qkv(x_BTM), recurrent_state, "tokens"))
        q, k, v = qkv.split(self.qkv.widths, dim=-1)
        write = torch.sigmoid(self.write(x_BTM))
        if self.max_write != 1:
            write = self.max_write * write
        n = self.steps_per_token
        if n > 1:
            k, v, write = (part.unflatten(-1, (n, -1)).flatten(1, 2) for part in (k, v, write))
        write = write.transpose(1, 2)
        q, k, v = (split_heads(part, self.head_dim) for part in (q, k, v))
        q, k = (F.normalize(part, dim=-1) for part in (q, k))
        if self.values_per_key > 1:
            q, k = (part.repeat_interleave(self.values_per_key, 1) for part in (q, k))
        decay = torch.zeros_like(write[..., ::n]) if self.rates is None else self.rates(x_BTM)[1]
        if n > 1:  # read after the last step, decay before the first
            q, decay = q.repeat_interleave(n, 2), F.pad(decay[..., None], (0, n - 1)).flatten(2)
        return (
            RecurrenceInputs(q, k, v, decay, write)
            if self.delta
            else RecurrenceInputs(q, k * write[..., None], v, decay)
        )

    def project_output(self, out_BHTV: Tensor, x_BTM: Tensor, inputs: RecurrenceInputs) -> Tensor:
        """Normalize, gate and project."""
        return self.out(merge_heads(self.norm(out_BHTV)) * F.silu(self.gate(x_BTM)))

    def memory_size(self) -> int:
        """H D² numbers."""
        return self.n_heads * self.head_dim**2
