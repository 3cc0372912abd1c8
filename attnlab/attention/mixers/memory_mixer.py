"""Base class of mixers with a memory of fixed size: resets, carried state and the pass over tokens."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.contracts import Cache, Mask
from attnlab.attention.heads.projections import resolve_head_dim
from attnlab.attention.kernels.autocast import disable_autocast
from attnlab.attention.mixers.recurrence import (
    RecurrenceInputs,
    make_empty_memory,
    scan_by_chunk,
    scan_by_token,
)
from attnlab.attention.stateful.convolution import ShortConvolution
from attnlab.attention.stateful.recurrent_state import RecurrentState
from attnlab.attention.token_positions import TokenPositions


class MemoryMixer(nn.Module, ABC):
    """Mixer of `n_heads` heads that reads and writes one matrix per head; `head_dim` None is dim / n_heads.

    Padding writes nothing, and a document begins with an empty memory; a data mask that hides another part of
    the past is `Unsupported`. The recurrence takes `steps_per_token` steps per token, and the memory is read
    after the last. It runs in chunks of `chunk` steps, a single token by itself, in float32 at least.
    """

    def __init__(
        self, dim: int, n_heads: int, chunk: int, steps_per_token: int = 1, head_dim: int | None = None
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim, self.chunk = n_heads, resolve_head_dim(dim, n_heads, head_dim), chunk
        self.steps_per_token = steps_per_token
        for name, number in (("chunk", chunk), ("steps_per_token", steps_per_token)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")

    @abstractmethod
    def project_tokens(self, x_BTM: Tensor, recurrent_state: RecurrentState) -> RecurrenceInputs:
        """Compute queries, keys, values, decays and write gates of the new tokens' steps, without `reset`."""

    @abstractmethod
    def project_output(self, out_BHTV: Tensor, x_BTM: Tensor, inputs: RecurrenceInputs) -> Tensor:
        """Map the memory's outputs [B, H, T, V] to [B, T, M]."""

    @abstractmethod
    def memory_size(self) -> int:
        """Numbers in the memory of all heads."""

    def forward(
        self,
        x_BTM: Tensor,
        *,
        positions: Tensor | TokenPositions | None = None,
        mask: Mask | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Map x [B, T, M] to [B, T, M]; positions only identify padding and documents."""
        B = len(x_BTM)
        positions = TokenPositions.resolve_positions(positions, cache, x_BTM)
        recurrent_state = RecurrentState(positions, mask, cache)
        sees_previous = recurrent_state.find_visible_predecessors(1, B)
        is_real = recurrent_state.find_real_tokens(B)
        recurrent_state.require_full_visibility(sees_previous, is_real, B)
        inputs = self.project_tokens(x_BTM, recurrent_state)
        steps = self.steps_per_token
        if sees_previous is not None:
            inputs = inputs._replace(reset=F.pad(~sees_previous, (0, steps - 1)).flatten(1))
        if is_real is not None:
            is_real = is_real.repeat_interleave(steps, 1)
            inputs = inputs._replace(k=inputs.k * is_real[:, None, :, None])
        out, memory = self._run_recurrence(inputs, None if cache is None else cache.carried.get("memory"))
        out = out[:, :, steps - 1 :: steps]
        if cache is not None:
            cache.append((), positions.position_ids)
            cache.carry("memory", memory)
        return self.project_output(out.to(x_BTM.dtype), x_BTM, inputs)

    def _run_recurrence(self, inputs: RecurrenceInputs, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        compute_dtype = torch.promote_types(inputs.q.dtype, torch.float32)
        inputs = inputs.convert_dtype(compute_dtype)
        memory = make_empty_memory(inputs) if memory is None else memory
        with disable_autocast(inputs.q):
            if inputs.q.shape[2] == self.steps_per_token:
                return scan_by_token(inputs, memory)
            return scan_by_chunk(inputs, memory, self.chunk)

    def state_size(self) -> int:
        """0: nothing grows with the number of tokens."""
        return 0

    def carried_size(self) -> int:
        """Bytes of the memory and of the convolutions' carried state."""
        size = max(4, next(self.parameters()).element_size())
        convolutions = (part for part in self.children() if isinstance(part, ShortConvolution))
        return self.memory_size() * size + sum(part.carried_size() for part in convolutions)
