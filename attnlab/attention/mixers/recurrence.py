"""One linear recurrence, computed token by token or by chunks of tokens, with the same result.

Per head, with queries and keys of K features and values of V, the memory S [K, V] evolves as

    S_t = a_t S_(t-1) + k_t u_t^T,    o_t = S_t^T q_t,

with u_t = v_t (linear attention), or u_t = b_t (v_t - a_t S_(t-1)^T k_t) (the delta rule: the value that the
memory stores for a key is replaced), or u_t = v_t - a_t S_(t-1)^T e_t (the value for another key is erased).
The decay a_t is a number, or a diagonal matrix with a number per feature of the keys. Chunks follow Dao & Gu
2024 (2405.21060, §6) and Yang et al. 2024 (2412.06464, §3.3).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class RecurrenceInputs(NamedTuple):
    """Inputs of the recurrence, per step: one token, or one of several writes of a token.

    q, k [B, H, T, K]; v [B, H, T, V]; decay [B, H, T] or [B, H, T, K], ln a; write [B, H, T], b, None for no
    delta rule; reset [B or 1, T], True for a step that begins with an empty memory, None for none; erase
    [B, H, T, K], e, in place of `write`.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    write: Tensor | None = None
    reset: Tensor | None = None
    erase: Tensor | None = None

    def slice_positions(self, span: slice) -> "RecurrenceInputs":
        """Return the inputs at the positions of `span`."""
        q, k, v = (each[:, :, span] for each in self[:3])
        write = None if self.write is None else self.write[:, :, span]
        reset = None if self.reset is None else self.reset[:, span]
        erase = None if self.erase is None else self.erase[:, :, span]
        return RecurrenceInputs(q, k, v, self.decay[:, :, span], write, reset, erase)

    def convert_dtype(self, dtype: torch.dtype) -> "RecurrenceInputs":
        """Return the inputs with all numbers in `dtype`."""
        q, k, v, decay = (each.to(dtype) for each in self[:4])
        write, erase = (None if each is None else each.to(dtype) for each in (self.write, self.erase))
        return RecurrenceInputs(q, k, v, decay, write, self.reset, erase)


def make_empty_memory(inputs: RecurrenceInputs) -> Tensor:
    """Zeros [B, H, K, V]."""
    B, H, _, K = inputs.k.shape
    return inputs.v.new_zeros(B, H, K, inputs.v.shape[-1])


def scan_by_token(inputs: RecurrenceInputs, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Run the recurrence token by token; return outputs [B, H, T, V] and the memory after them."""
    outputs = []
    for t in range(inputs.q.shape[2]):
        q, k, v = (part[:, :, t, :, None] for part in inputs[:3])
        decay = inputs.decay[:, :, t].exp()[..., None]
        if inputs.decay.ndim == 3:
            decay = decay[..., None]
        if inputs.reset is not None:
            decay = decay * ~inputs.reset[:, t, None, None, None]
        memory = decay * memory
        if inputs.write is not None:
            v = inputs.write[:, :, t, None, None] * (v - memory.transpose(-1, -2) @ k)
        elif inputs.erase is not None:
            v = v - memory.transpose(-1, -2) @ inputs.erase[:, :, t, :, None]
        memory = memory + k * v.transpose(-1, -2)
        outputs.append((memory.transpose(-1, -2) @ q).squeeze(-1))
    return torch.stack(outputs, 2) if outputs else inputs.v[:, :, :0], memory


def scan_by_chunk(inputs: RecurrenceInputs, memory: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Run the recurrence by matrix products over chunks of `size` tokens.

    One chunk of all tokens is the parallel form.
    """
    outputs = []
    scan_chunk = _scan_chunk if inputs.decay.ndim == 3 and inputs.erase is None else _scan_chunk_by_feature
    for begin in range(0, inputs.q.shape[2], size):
        output, memory = scan_chunk(inputs.slice_positions(slice(begin, begin + size)), memory)
        outputs.append(output)
    return torch.cat(outputs, 2) if outputs else inputs.v[:, :, :0], memory


def _scan_chunk(inputs: RecurrenceInputs, memory: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, decay, write, reset, _ = inputs
    log_decay = decay.cumsum(-1)  # ln of the decay since the start of the chunk
    visible, is_first_segment = _find_visible(q, reset)
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


def _scan_chunk_by_feature(inputs: RecurrenceInputs, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Scan a chunk with a decay per feature, which no product of queries and keys can be multiplied by.

    Keys are decayed once per pair of steps. Dividing them by the decay since the start would overflow.
    """
    q, k, v, decay, write, reset, erase = inputs
    log_decay = (decay[..., None] if decay.ndim == 3 else decay).cumsum(2)
    visible, is_first_segment = _find_visible(q, reset)
    log_decay_since = log_decay[..., :, None, :] - log_decay[..., None, :, :]  # [B, H, T, S, K or 1]
    decayed_k = log_decay_since.masked_fill(~visible[..., None], -torch.inf).exp() * k[..., None, :, :]
    decay_from_start = log_decay.exp()
    if is_first_segment is not None:
        decay_from_start = decay_from_start * is_first_segment[..., None]
    if write is not None:
        erase, v = write[..., None] * k, write[..., None] * v
    if erase is not None:
        overwritten = (decayed_k @ erase[..., None]).squeeze(-1).tril(-1)
        updates = v - (decay_from_start * erase) @ memory
        v = torch.linalg.solve_triangular(overwritten, updates, upper=False, unitriangular=True)
    output = (decayed_k @ q[..., None]).squeeze(-1) @ v + (decay_from_start * q) @ memory
    memory = decay_from_start[..., -1, :, None] * memory + decayed_k[..., -1, :, :].transpose(-1, -2) @ v
    return output, memory


def _find_visible(q: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Mark the steps that each step reads, [T, T] or [B or 1, 1, T, T], and those before the first reset."""
    T = q.shape[2]
    visible = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    if reset is None:
        return visible, None
    segment = reset.cumsum(-1)[:, None]
    return visible & (segment[..., :, None] == segment[..., None, :]), segment == 0
