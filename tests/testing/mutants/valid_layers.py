"""Unusual but valid layers: heads, kernels and mixers unlike the shipped ones that keep their contracts."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from attnlab.attention.contracts import AttentionOutput, Unsupported
from attnlab.attention.token_positions import TokenPositions

from .builders import VariantFactory, make_function_node, make_mixer_factory
from .heads import with_heads
from .kernels import compute_tiles, with_kernel
from .mixers import Convolution, UncachedMixer, Wrapper
from .parts import CustomHeads, window_of_five


class Biased(CustomHeads):
    """A learned vector added to every key, and a norm of every value."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.shift, self.norm = nn.Parameter(torch.zeros(self.head_dim)), nn.RMSNorm(self.head_dim)

    def project(self, x, rotate):
        q, k, v = self.split_projections(x)
        return rotate(q), (rotate(k + self.shift), self.norm(v))


class ThroughFloat32(CustomHeads):
    """A norm of the input in float32."""

    def project(self, x, rotate):
        return super().project(F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype), rotate)


class WideValues(CustomHeads):
    """Queries and keys of two features, values of more."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.score_dim = self.rope_dim = 2
        self.qk = nn.Linear(dim, 2 * (n_heads + n_kv_heads), bias=False)
        self.widths, self.qkv = [n_kv_heads * self.head_dim], nn.Linear(dim, n_kv_heads * self.head_dim)

    def project(self, x, rotate):
        qk = self.qk(x).unflatten(-1, (-1, 2)).transpose(1, 2)
        q, k = rotate(qk).split((self.n_heads, self.n_kv_heads), 1)
        return q, (k, next(self.split_projections(x)))

    def state_size(self):
        return self.n_kv_heads * (2 + self.head_dim) * self.qk.weight.element_size()

    def flops(self, n_queries, n_keys, absorbed=False):
        n_weights = self.qk.weight.numel() + self.qkv.weight.numel() + self.out.weight.numel()
        return 2 * (n_queries * n_weights + self.n_heads * (2 + self.head_dim) * n_queries * n_keys)

    def read_width(self, absorbed=False):
        return self.n_kv_heads * (2 + self.head_dim)


class ThreeParts(CustomHeads):
    """Caches a gate with keys and values, and counts it."""

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

    def flops(self, n_queries, n_keys, absorbed=False):
        return super().flops(n_queries, n_keys) + 2 * n_queries * self.gate.weight.numel()


class Frozen(CustomHeads):
    """Random keys and values that are not trained."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.qkv.requires_grad_(False)


class Dropping(CustomHeads):
    """Dropout in training only, and a gain that starts at zero."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.gain = nn.Parameter(torch.zeros(1))

    def merge(self, y):
        return F.dropout(super().merge(y), 0.1, self.training) * self.gain


def einsum(inputs):
    """Compute outputs only, without dropout, for the softmax only."""
    if inputs.need or inputs.dropout or inputs.normalizer:
        raise Unsupported("outputs only")
    q, k, v, q_idx, kv_idx = inputs[:5]
    B, H, G = len(q), q.shape[1], k.shape[1]
    score = torch.einsum("bgntd,bgsd->bgnts", q.unflatten(1, (G, H // G)), k).flatten(1, 2) * inputs.scale
    b, h = torch.arange(B).view(B, 1, 1, 1), torch.arange(H).view(1, H, 1, 1)
    for function in inputs.scores:
        score = function(score, b, h, q_idx, kv_idx)
    visible = inputs.mask(b, h, q_idx, kv_idx) if inputs.mask else torch.ones_like(score).bool()
    weights = torch.where(visible, score, -torch.inf).softmax(-1)
    weights = torch.where(visible.any(-1, keepdim=True), weights.nan_to_num(), 0.0)
    return AttentionOutput(torch.einsum("bgnts,bgsv->bgntv", weights.unflatten(1, (G, -1)), v).flatten(1, 2))


def join_tiles(inputs):
    """Join tiles of four keys by their denominators."""
    tiles = compute_tiles(inputs, 4)
    lses = torch.stack([tile.lse for tile in tiles])
    peak = lses.detach().amax(0).nan_to_num(neginf=0.0)
    terms = (lses - peak).exp()
    total = terms.sum(0)
    shares = terms / total.masked_fill(total == 0, 1.0)
    out = sum(share[..., None] * tile.out for share, tile in zip(shares, tiles, strict=True))
    return AttentionOutput(out.to(inputs.q.dtype), total.log() + peak if "lse" in inputs.need else None)


class Windowed(Wrapper):
    """A wrapper whose attention has a window."""

    def __init__(self, dim):
        super().__init__(dim, window_of_five)


class CausalConvolution(Convolution):
    pads = (4, 0)


class SelfAndMean(UncachedMixer):
    """A token plus a projection of the mean of its past."""

    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def mix(self, x):
        return x + self.out(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])


class FourierMean(SelfAndMean):
    """The same sum by a Fourier transform: gradients of later tokens are rounding."""

    def mix(self, x):
        T = x.shape[1]
        parts = (torch.fft.rfft(part, n=2 * T, dim=1) for part in (x, torch.ones_like(x)))
        return self.out(torch.fft.irfft(math.prod(parts), n=2 * T, dim=1)[:, :T])


class Recomputed(SelfAndMean):
    """Activations that are computed again in the backward pass."""

    def mix(self, x):
        return checkpoint(super().mix, x, use_reentrant=True)


class ParallelGru(Wrapper):
    """Attention and a GRU in parallel, without a cache."""

    def __init__(self, dim):
        super().__init__(dim)
        self.cell = nn.GRU(dim, dim, batch_first=True)

    def forward(self, x, *, positions=None, mask=None, cache=None):
        if cache is not None or mask is not None:
            raise Unsupported("no place for a mask or a cache")
        return super().forward(x, positions=positions) + self.cell(x)[0]


class ByDistance(nn.Module):
    """A convolution over the last four positions, read from a cache, under the data mask."""

    def __init__(self, dim):
        super().__init__()
        self.taps, self.out = nn.Parameter(torch.ones(4, dim)), nn.Linear(dim, dim)

    def forward(self, x, *, positions=None, mask=None, cache=None):
        if positions is None:
            positions = TokenPositions.continue_from(0 if cache is None else len(cache), x.shape[1], x.device)
        position_ids = positions.position_ids if isinstance(positions, TokenPositions) else positions
        (cached_x,), key_positions = (
            ((x[:, None],), position_ids) if cache is None else cache.append((x[:, None],), position_ids)
        )
        distance = position_ids[:, :, None] - key_positions[:, None, :]
        visible = (distance >= 0) & (distance < 4)
        if mask is not None:
            rows = torch.arange(len(x))[:, None, None, None]
            visible = (
                visible
                & mask(rows, rows[:1], position_ids[:, None, :, None], key_positions[:, None, None, :])[:, 0]
            )
        weights = self.taps[distance.clamp(0, 3)] * visible[..., None]
        return self.out((weights * cached_x[:, 0, None]).sum(2))

    def state_size(self):
        return self.taps.shape[1] * self.taps.element_size()


VALID_VARIANTS: dict[str, VariantFactory] = {
    "a vector on keys, a norm on values": with_heads(Biased),
    "a norm through float32": with_heads(ThroughFloat32),
    "queries of two features, values of six": with_heads(WideValues, 4, 2),
    "a state of three parts": with_heads(ThreeParts, 6, 2),
    "keys and values that are not learned": with_heads(Frozen),
    "dropout and a gain that begins at zero": with_heads(Dropping, 3, 1),
    "a kernel by einsum": with_kernel(
        make_function_node(einsum), heads="gqa", position="alibi", mask="window"
    ),
    "a kernel in tiles": with_kernel(make_function_node(join_tiles), heads="mla", epilogue="sinks"),
    "windowed attention within a mixer": make_mixer_factory(Windowed, dim=32),
    "a causal convolution": make_mixer_factory(CausalConvolution, dim=20),
    "a token and the mean of its past": make_mixer_factory(SelfAndMean, dim=16),
    "a sum by a Fourier transform": make_mixer_factory(FourierMean, dim=16),
    "activations that are computed again": make_mixer_factory(Recomputed, dim=16),
    "attention beside a GRU": make_mixer_factory(ParallelGru, dim=32),
    "a convolution by distance": make_mixer_factory(ByDistance, dim=12),
}
