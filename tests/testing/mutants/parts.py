"""Correct custom parts, from which mutants are derived."""

from dataclasses import dataclass

import torch
from torch import nn

from attnlab.attention.heads.projections import merge_heads, split_heads


class CustomHeads(nn.Module):
    """Grouped heads over one fused projection."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.score_dim = self.rope_dim = self.head_dim
        self.widths = [n * self.head_dim for n in (n_heads, n_kv_heads, n_kv_heads)]
        self.qkv = nn.Linear(dim, sum(self.widths), bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def split_projections(self, x):
        return (split_heads(part, self.head_dim) for part in self.qkv(x).split(self.widths, -1))

    def project(self, x, rotate):
        q, k, v = self.split_projections(x)
        return rotate(q), (rotate(k), v)

    def expand(self, state):
        return state

    def merge(self, y):
        return self.out(merge_heads(y))

    def state_size(self):
        return 2 * self.n_kv_heads * self.head_dim * self.qkv.weight.element_size()

    @property
    def projection(self):
        return self.qkv

    def flops(self, n_queries, n_keys, absorbed=False):
        n_weights = self.qkv.weight.numel() + self.out.weight.numel()
        return 2 * (n_queries * n_weights + self.n_heads * 2 * self.head_dim * n_queries * n_keys)

    def read_width(self, absorbed=False):
        return 2 * self.n_kv_heads * self.head_dim


class UnboundedCache:
    """A cache of all tokens, in order."""

    def __init__(self):
        self.state, self.positions = None, None

    def append(self, state, positions):
        if self.state is not None:
            rows = max(len(self.positions), len(positions))
            positions = torch.cat((self.positions.expand(rows, -1), positions.expand(rows, -1)), 1)
            state = tuple(torch.cat(parts, 2) for parts in zip(self.state, state, strict=True))
        self.state, self.positions = state, positions
        return state, positions

    def __len__(self):
        return 0 if self.positions is None else self.positions.shape[1]

    def live_bytes(self):
        return sum(part.numel() * part.element_size() for part in self.state or ())

    def keep(self, which):
        self.state = tuple(part[:, :, which] for part in self.state)
        self.positions = self.positions[:, which]


class RingCache(UnboundedCache):
    """A cache of the last five tokens, for a window of five; its length counts all."""

    size = 5

    def __init__(self):
        super().__init__()
        self.n_appended, self.max_cached_tokens = 0, self.size

    def append(self, state, positions):
        self.n_appended += positions.shape[1]
        outputs = super().append(state, positions)
        if self.positions.shape[1] > self.size:
            self.keep(slice(self.positions.shape[1] - self.size, None))
        return outputs

    def __len__(self):
        return self.n_appended


@dataclass(frozen=True)
class InterleavedRope:
    """RoPE that rotates pairs of neighboring features."""

    base: float = 100.0

    def __call__(self, positions):
        positions_B1T1 = positions[:, None, :, None]

        def rotate(x):
            dtype = self.choose_angle_dtype(x)
            steps = torch.arange(0, x.shape[-1], 2, dtype=dtype, device=x.device) / x.shape[-1]
            turned = self.pair(x[..., 0::2], x[..., 1::2], positions_B1T1 * self.base**-steps, positions_B1T1)
            return torch.stack(turned, -1).flatten(-2).to(x.dtype)

        return rotate

    def choose_angle_dtype(self, x):
        return torch.promote_types(x.dtype, torch.float32)

    def pair(self, a, b, angle, positions_B1T1):
        return a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()


def window_of_five(b, h, q_idx, kv_idx):
    """Sliding window of five tokens."""
    return (kv_idx <= q_idx) & (q_idx - kv_idx < 5)
