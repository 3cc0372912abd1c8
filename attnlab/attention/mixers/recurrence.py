"""One linear recurrence, computed token by token or by chunks of tokens: the same numbers.

Per head, with queries and keys of K features and values of V, the memory S [K, V] goes

    S_t = a_t S_(t-1) + k_t u_t^T,    o_t = S_t^T q_t,

with u_t = v_t (linear attention), or u_t = b_t (v_t - a_t S_(t-1)^T k_t) (the delta rule: what the memory has
for a key is replaced). Chunks follow Dao & Gu 2024 (2405.21060, §6) and Yang et al. 2024 (2412.06464, §3.3).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Tokens(NamedTuple):
    """q, k [B, H, T, K]; v [B, H, T, V]; decay [B, H, T], ln a; write [B, H, T], b, None for no delta rule;
    reset [B or 1, T]: whether a token begins with an empty memory, None for nowhere.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    write: Tensor | None = None
    reset: Tensor | None = None

    def at(self, part: slice) -> "Tokens":
        """Those of some positions."""
        q, k, v = (each[:, :, part] for each in self[:3])
        write = None if self.write is None else self.write[:, :, part]
        reset = None if self.reset is None else self.reset[:, part]
        return Tokens(q, k, v, self.decay[:, :, part], write, reset)


def empty(tokens: Tokens) -> Tensor:
    """A memory that holds nothing, [B, H, K, V]."""
    B, H, _, K = tokens.k.shape
    return tokens.v.new_zeros(B, H, K, tokens.v.shape[-1])


def by_token(tokens: Tokens, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B, H, T, V] and the memory after them, token by token, as the recurrence is written."""
    outputs = []
    for t in range(tokens.q.shape[2]):
        q, k, v = (part[:, :, t, :, None] for part in tokens[:3])
        kept = tokens.decay[:, :, t].exp()[..., None, None]
        if tokens.reset is not None:
            kept = kept * ~tokens.reset[:, t, None, None, None]
        memory = kept * memory
        if tokens.write is not None:
            v = tokens.write[:, :, t, None, None] * (v - memory.transpose(-1, -2) @ k)
        memory = memory + k * v.transpose(-1, -2)
        outputs.append((memory.transpose(-1, -2) @ q).squeeze(-1))
    return torch.stack(outputs, 2) if outputs else tokens.v[:, :, :0], memory


def by_chunk(tokens: Tokens, memory: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The same in products of matrices, `size` tokens at a time; of all at once it is the parallel form."""
    outputs = []
    for begin in range(0, tokens.q.shape[2], size):
        output, memory = _chunk(tokens.at(slice(begin, begin + size)), memory)
        outputs.append(output)
    return torch.cat(outputs, 2) if outputs else tokens.v[:, :, :0], memory


def _chunk(tokens: Tokens, memory: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, decay, write, reset = tokens
    total = decay.cumsum(-1)  # ln of what is kept since before the chunk
    T = q.shape[2]
    within = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    since: Tensor | None = None
    if reset is not None:
        segment = reset.cumsum(-1)[:, None]
        within = within & (segment[..., :, None] == segment[..., None, :])
        since = segment == 0
    kept = (total[..., :, None] - total[..., None, :]).masked_fill(~within, -torch.inf).exp()  # from s to t
    begin = total.exp() if since is None else total.exp() * since
    if write is not None:
        erased = (write[..., None] * (k @ k.transpose(-1, -2)) * kept).tril(-1)
        fresh = write[..., None] * (v - begin[..., None] * (k @ memory))
        v = torch.linalg.solve_triangular(erased, fresh, upper=False, unitriangular=True)
    output = (q @ k.transpose(-1, -2) * kept) @ v + begin[..., None] * (q @ memory)
    memory = begin[..., -1:, None] * memory + (kept[..., -1, :, None] * k).transpose(-1, -2) @ v
    return output, memory
