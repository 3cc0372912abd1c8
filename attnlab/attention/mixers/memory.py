"""What mixers with a memory of fixed size share: where they begin anew, what they carry, how they go over
tokens.
"""

from abc import ABC, abstractmethod
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from attnlab.attention.contracts import Cache, Mask
from attnlab.attention.heads.projections import head_width
from attnlab.attention.mixers.recurrence import Tokens, by_chunk, by_token, empty
from attnlab.attention.past.convolution import ShortConvolution
from attnlab.attention.past.past import Past
from attnlab.attention.positions import Positions


class Memory(nn.Module, ABC):
    """A mixer of `n_heads` heads, dim / n_heads wide, that reads and writes one matrix a head. Padding
    writes nothing, and a document begins with an empty memory; a data mask that hides another part of the
    past is Unsupported.

    `chunk` tokens are computed at a time, one by one where there is one. Computed in float32 at least.
    """

    def __init__(self, dim: int, n_heads: int, chunk: int) -> None:
        super().__init__()
        self.n_heads, self.head_dim, self.chunk = n_heads, head_width(dim, n_heads), chunk
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")

    @abstractmethod
    def tokens(self, x_BTM: Tensor, past: Past) -> Tokens:
        """What the new tokens ask, write and let go of, without `reset`."""

    @abstractmethod
    def finish(self, out_BHTV: Tensor, x_BTM: Tensor, tokens: Tokens) -> Tensor:
        """[B, T, M] of what was read from memory."""

    @abstractmethod
    def memory_size(self) -> int:
        """Numbers of the memory, all heads."""

    def forward(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | Positions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """x [B, T, M] -> [B, T, M]; positions tell padding and documents apart, and change nothing else."""
        B = len(x_BTM)
        positions = Positions.of_pass(positions, cache, x_BTM)
        past = Past(positions, mask, cache)
        follows = past.sees(1, B)
        real = past.real(B)
        past.require_whole(follows, real, B)
        tokens = self.tokens(x_BTM, past)
        if follows is not None:
            tokens = tokens._replace(reset=~follows[..., 0])
        if real is not None:
            tokens = tokens._replace(k=tokens.k * real[:, None, :, None])
        out, memory = self._over(tokens, None if cache is None else cache.carried.get("memory"))
        if cache is not None:
            cache.append((), positions.of)
            cache.carry("memory", memory)
        return self.finish(out.to(x_BTM.dtype), x_BTM, tokens)

    def _over(self, tokens: Tokens, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(tokens.q.dtype, torch.float32)
        q, k, v, decay, write, reset = tokens
        write = None if write is None else write.to(exact)
        tokens = Tokens(q.to(exact), k.to(exact), v.to(exact), decay.to(exact), write, reset)
        memory = empty(tokens) if memory is None else memory
        device = tokens.q.device.type
        rounds = torch.amp.is_autocast_available(device)  # not of meta, where things are counted
        with torch.autocast(device, enabled=False) if rounds else nullcontext():
            if tokens.q.shape[2] == 1:
                return by_token(tokens, memory)
            return by_chunk(tokens, memory, self.chunk)

    def state_size(self) -> int:
        """Nothing grows with the tokens."""
        return 0

    def carried_size(self) -> int:
        """Bytes of the memory, and of what convolutions carry."""
        size = max(4, next(self.parameters()).element_size())
        convolutions = (part for part in self.children() if isinstance(part, ShortConvolution))
        return self.memory_size() * size + sum(part.carried_size() for part in convolutions)
