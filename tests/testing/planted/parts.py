"""Sound parts, written anew as a stranger would: what the bugs are planted in."""

from dataclasses import dataclass

import torch
from torch import nn

from attnlab.attention.heads.projections import by_head, merged


class OwnHeads(nn.Module):
    """Grouped heads over one fused projection."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.score_dim = self.rope_dim = self.head_dim
        self.widths = [n * self.head_dim for n in (n_heads, n_kv_heads, n_kv_heads)]
        self.qkv = nn.Linear(dim, sum(self.widths), bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def split(self, x):
        return (by_head(part, self.head_dim) for part in self.qkv(x).split(self.widths, -1))

    def project(self, x, rotate):
        q, k, v = self.split(x)
        return rotate(q), (rotate(k), v)

    def expand(self, state):
        return state

    def merge(self, y):
        return self.out(merged(y))

    def state_size(self):
        return 2 * self.n_kv_heads * self.head_dim * self.qkv.weight.element_size()

    @property
    def projection(self):
        return self.qkv

    def flops(self, new, held, absorbed=False):
        own = self.qkv.weight.numel() + self.out.weight.numel()
        return 2 * (new * own + self.n_heads * 2 * self.head_dim * new * held)

    def read_width(self, absorbed=False):
        return 2 * self.n_kv_heads * self.head_dim


class Growing:
    """A cache of everything, in order."""

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


class Ring(Growing):
    """The last five, under a window of five; it counts all."""

    held = 5

    def __init__(self):
        super().__init__()
        self.seen, self.holds = 0, self.held

    def append(self, state, positions):
        self.seen += positions.shape[1]
        answer = super().append(state, positions)
        if self.positions.shape[1] > self.held:
            self.keep(slice(self.positions.shape[1] - self.held, None))
        return answer

    def __len__(self):
        return self.seen


@dataclass(frozen=True)
class Neighbours:
    """Rotary positions in which neighbours are pairs."""

    base: float = 100.0

    def __call__(self, positions):
        where = positions[:, None, :, None]

        def turn(x):
            steps = torch.arange(0, x.shape[-1], 2, dtype=x.dtype, device=x.device) / x.shape[-1]
            turned = self.pair(x[..., 0::2], x[..., 1::2], where * self.base**-steps, where)
            return torch.stack(turned, -1).flatten(-2)

        return turn

    def pair(self, a, b, angle, where):
        return a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()


def near(b, h, q_pos, kv_pos):
    """A window of five."""
    return (kv_pos <= q_pos) & (q_pos - kv_pos < 5)
