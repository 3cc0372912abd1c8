"""Odd and right, as layers: heads, kernels and whole mixers that keep their contracts in a way that the
shipped ones do not.
"""

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.attention.contracts import Attended, Unsupported
from attnlab.attention.positions import Positions

from .heads import headed
from .kernels import attending, tiled
from .making import Make, found, mixer
from .mixers import Bare, Convolution, Wrapper
from .parts import OwnHeads, near


class Biased(OwnHeads):
    """A learned vector on every key, a norm on every value."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.shift, self.norm = nn.Parameter(torch.zeros(self.head_dim)), nn.RMSNorm(self.head_dim)

    def project(self, x, rotate):
        q, k, v = self.split(x)
        return rotate(q), (rotate(k + self.shift), self.norm(v))


class ThroughFloat32(OwnHeads):
    """A norm of the input in the precision that it has in training."""

    def project(self, x, rotate):
        return super().project(F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype), rotate)


class WideValues(OwnHeads):
    """Queries and keys of two features, values of eight."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.score_dim = self.rope_dim = 2
        self.qk = nn.Linear(dim, 2 * (n_heads + n_kv_heads), bias=False)
        self.widths, self.qkv = [n_kv_heads * self.head_dim], nn.Linear(dim, n_kv_heads * self.head_dim)

    def project(self, x, rotate):
        qk = self.qk(x).unflatten(-1, (-1, 2)).transpose(1, 2)
        q, k = rotate(qk).split((self.n_heads, self.n_kv_heads), 1)
        return q, (k, next(self.split(x)))

    def state_size(self):
        return self.n_kv_heads * (2 + self.head_dim) * self.qk.weight.element_size()

    def flops(self, new, held, absorbed=False):
        own = self.qk.weight.numel() + self.qkv.weight.numel() + self.out.weight.numel()
        return 2 * (new * own + self.n_heads * (2 + self.head_dim) * new * held)

    def read_width(self, absorbed=False):
        return self.n_kv_heads * (2 + self.head_dim)


class ThreeParts(OwnHeads):
    """It caches a gate beside keys and values, and counts it."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.gate = nn.Linear(dim, n_kv_heads)

    def project(self, x, rotate):
        q, state = super().project(x, rotate)
        return q, (*state, self.gate(x).mT[..., None])

    def expand(self, state):
        return state[0], state[1] * state[2].sigmoid()

    def state_size(self):
        return super().state_size() + self.n_kv_heads * self.gate.weight.element_size()

    def flops(self, new, held, absorbed=False):
        return super().flops(new, held) + 2 * new * self.gate.weight.numel()


class Frozen(OwnHeads):
    """Random keys and values, of which nothing is learned."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.qkv.requires_grad_(False)


class Dropping(OwnHeads):
    """Dropout in training alone, and a gain that begins at zero."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.gain = nn.Parameter(torch.zeros(1))

    def merge(self, y):
        return F.dropout(super().merge(y), 0.1, self.training) * self.gain


def einsum(inputs):
    """With nothing beside the output, no dropout, and the softmax alone."""
    if inputs.need or inputs.dropout or inputs.normalizer:
        raise Unsupported("outputs only")
    q, k, v, q_pos, kv_pos = inputs[:5]
    B, H, G = len(q), q.shape[1], k.shape[1]
    score = torch.einsum("bgntd,bgsd->bgnts", q.unflatten(1, (G, H // G)), k).flatten(1, 2) * inputs.scale
    b, h = torch.arange(B).view(B, 1, 1, 1), torch.arange(H).view(1, H, 1, 1)
    for function in inputs.scores:
        score = function(score, b, h, q_pos, kv_pos)
    visible = inputs.mask(b, h, q_pos, kv_pos) if inputs.mask else torch.ones_like(score).bool()
    weights = torch.where(visible, score, -torch.inf).softmax(-1)
    weights = torch.where(visible.any(-1, keepdim=True), weights.nan_to_num(), 0.0)
    return Attended(torch.einsum("bgnts,bgsv->bgntv", weights.unflatten(1, (G, -1)), v).flatten(1, 2))


def tiles(inputs):
    """Tiles of four keys, joined by their denominators."""
    done = tiled(inputs, 4)
    each = torch.stack([tile.lse for tile in done])
    top = each.detach().amax(0).nan_to_num(neginf=0.0)
    parts = (each - top).exp()
    total = parts.sum(0)
    shares = parts / total.masked_fill(total == 0, 1.0)
    out = sum(share[..., None] * tile.out for share, tile in zip(shares, done, strict=True))
    return Attended(out, total.log() + top if "lse" in inputs.need else None)


class Windowed(Wrapper):
    """A window of its own within."""

    def __init__(self, dim):
        super().__init__(dim, near)


class CausalConvolution(Convolution):
    pads = (4, 0)


class SelfAndMean(Bare):
    """What a token is, and the mean of the past."""

    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def mix(self, x):
        return x + self.out(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])


class Beside(Wrapper):
    """Attention and a GRU side by side; the GRU has nothing to cache."""

    def __init__(self, dim):
        super().__init__(dim)
        self.cell = nn.GRU(dim, dim, batch_first=True)

    def forward(self, x, *, positions=None, mask=None, cache=None):
        if cache is not None or mask is not None:
            raise Unsupported("no place for a mask or a cache")
        return super().forward(x, positions=positions) + self.cell(x)[0]


class ByDistance(nn.Module):
    """A convolution over the last four positions, wherever they are cached, under the data's mask."""

    def __init__(self, dim):
        super().__init__()
        self.taps, self.out = nn.Parameter(torch.ones(4, dim)), nn.Linear(dim, dim)

    def forward(self, x, *, positions=None, mask=None, cache=None):
        if positions is None:
            positions = Positions.following(0 if cache is None else len(cache), x.shape[1], x.device)
        where = positions.of if isinstance(positions, Positions) else positions
        (kept,), keys = ((x[:, None],), where) if cache is None else cache.append((x[:, None],), where)
        distance = where[:, :, None] - keys[:, None, :]
        seen = (distance >= 0) & (distance < 4)
        if mask is not None:
            rows = torch.arange(len(x))[:, None, None, None]
            seen = seen & mask(rows, rows[:1], where[:, None, :, None], keys[:, None, None, :])[:, 0]
        weights = self.taps[distance.clamp(0, 3)] * seen[..., None]
        return self.out((weights * kept[:, 0, None]).sum(2))

    def state_size(self):
        return self.taps.shape[1] * self.taps.element_size()


SOUND: dict[str, Make] = {
    "a vector on keys, a norm on values": headed(Biased),
    "a norm through float32": headed(ThroughFloat32),
    "queries of two features, values of six": headed(WideValues, 4, 2),
    "a state of three parts": headed(ThreeParts, 6, 2),
    "keys and values that are not learned": headed(Frozen),
    "dropout and a gain that begins at zero": headed(Dropping, 3, 1),
    "a kernel by einsum": attending(found(einsum), heads="gqa", position="alibi", mask="window"),
    "a kernel in tiles": attending(found(tiles), heads="mla", epilogue="sinks"),
    "windowed attention within a mixer": mixer(Windowed, dim=32),
    "a causal convolution": mixer(CausalConvolution, dim=20),
    "a token and the mean of its past": mixer(SelfAndMean, dim=16),
    "attention beside a GRU": mixer(Beside, dim=32),
    "a convolution by distance": mixer(ByDistance, dim=12),
}
