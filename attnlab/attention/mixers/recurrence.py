"""One linear recurrence, computed token by token or by chunks of tokens, with the same result.

Per head, with queries and keys of K features and values of V, the memory S [K, V] evolves as

    S_t = a_t S_(t-1) + k_t u_t^T,    o_t = S_t^T q_t,

with u_t = v_t (linear attention), or u_t = b_t (v_t - a_t S_(t-1)^T k_t) (the delta rule: the value that the
memory stores for a key is replaced). Chunks follow Dao & Gu 2024 (2405.21060, §6) and Yang et al. 2024
(2412.06464, §3.3).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class RecurrenceInputs(NamedTuple):
    """Inputs of the recurrence, per token.

    q, k [B, H, T, K]; v [B, H, T, V]; decay [B, H, T], ln a; write [B, H, T], b, None for no delta rule;
    reset [B or 1, T], True for a token that begins with an empty memory, None for none.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    write: Tensor | None = None
    reset: Tensor | None = None

    def slice_positions(self, span: slice) -> "RecurrenceInputs":
        """Return the inputs at the positions of `span`."""
        q, k, v = (each[:, :, span] for each in self[:3])
        write = None if self.write is None else self.write[:, :, span]
        reset = None if self.reset is None else self.reset[:, span]
        return RecurrenceInputs(q, k, v, self.decay[:, :, span], write, reset)


def make_empty_memory(inputs: RecurrenceInputs) -> Tensor:
    """Zeros [B, H, K, V]."""
    B, H, _, K = inputs.k.shape
    return inputs.v.new_zeros(B, H, K, inputs.v.shape[-1])


def scan_by_token(inputs: RecurrenceInputs, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Run the recurrence token by token; return outputs [B, H, T, V] and the memory after them."""
    outputs = []
    for t in range(inputs.q.shape[2]):
        q, k, v = (part[:, :, t, :, None] for part in inputs[:3])
        decay = inputs.decay[:, :, t].exp()[..., None, None]
        if inputs.reset is not None:
            decay = decay * ~inputs.reset[:, t, None, None, None]
        memory = decay * memory
        if inputs.write is not None:
            v = inputs.write[:, :, t, None, None] * (v - memory.transpose(-1, -2) @ k)
        memory = memory + k * v.transpose(-1, -2)
        outputs.append((memory.transpose(-1, -2) @ q).squeeze(-1))
    return torch.stack(outputs, 2) if outputs else inputs.v[:, :, :0], memory


def scan_by_chunk(inputs: RecurrenceInputs, memory: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Run the recurrence by matrix products over chunks of `size` tokens.

    One chunk of all tokens is the parallel form.
    """
    outputs = []
    for begin in range(0, inputs.q.shape[2], size):
        output, memory = _scan_chunk(inputs.slice_positions(slice(begin, begin + size)), memory)
        outputs.append(output)
    return torch.cat(outputs, 2) if outputs else inputs.v[:, :, :0], memory


def _scan_chunk(inputs: RecurrenceInputs, memory: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, decay, write, reset = inputs
    log_decay = decay.cumsum(-1)  # ln of the decay since the start of the chunk
    T = q.shape[2]
    visible = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    is_first_segment: Tensor | None = None
    if reset is not None:
        segment = reset.cumsum(-1)[:, None]
        visible = visible & (segment[..., :, None] == segment[..., None, :])
        is_first_segment = segment == 0
    log_decay_since = log_decay[..., :, None] - log_decay[..., None, :]  # from s to t
    decay_since = log_decay_since.masked_fill(~visible, -torch.inf).exp()
    decay_from_start = log_decay.exp() if is_first_segment is None else log_decay.exp() * is_first_segment
    if write is not None:
        overwritten = (write[..., None] * (k @ k.transpose(-1, -2)) * decay_since).tril(-1)
        updates = write[..., None] * (v - decay_from_start[..., None] * (k @ memory))
        v = torch.linalg.solve_triangular(overwritten, updates, upper=False, unitriangular=True)
    output = (q @ k.transpose(-1, -2) * decay_since) @ v + decay_from_start[..., None] * (q @ memory)
    memory = (
        decay_from_start[..., -1:, None] * memory + (decay_since[..., -1, :, None] * k).transpose(-1, -2) @ v
    )
    return output, memory
