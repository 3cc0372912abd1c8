"""Mutants that are wrong under one condition only: a precision, a size, a part beside them, a second call."""

import dataclasses
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import nn

from attnlab import testing
from attnlab.attention.contracts import declare_capabilities
from attnlab.attention.scores.bias import Bias
from attnlab.model.block import Block

from .builders import VariantFactory, make_attention_factory, make_function_node, make_object_node
from .caches import with_cache
from .epilogues import with_epilogue
from .heads import with_heads
from .mixers import UncachedMixer, make_mixer_factory
from .parts import CustomHeads, InterleavedRope, UnboundedCache
from .positions import with_rotary
from .scores import with_score


class HalfAngles(InterleavedRope):
    def choose_angle_dtype(self, x):
        return x.dtype


class WideKeys(CustomHeads):
    """Caches keys in float32 at least, and counts them in the dtype of the weights."""

    def project(self, x, rotate):
        q, (k, v) = super().project(x, rotate)
        return q, (k.to(torch.promote_types(k.dtype, torch.float32)), v)

    def expand(self, state):
        return state[0].to(state[1].dtype), state[1]


class ChangesInput(CustomHeads):
    """Scales the caller's tensor in place, and back."""

    def project(self, x, rotate):
        return super().project(x.mul_(2), rotate)


class GainWithRotation(CustomHeads):
    """A gain of queries that is applied only if they are rotated."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__(dim, n_heads, n_kv_heads)
        self.gain = nn.Parameter(torch.ones(self.head_dim))

    def project(self, x, rotate):
        q, state = super().project(x, rotate)
        return (q * self.gain if hasattr(rotate, "tables") else q), state


class PromotesOutput(nn.Module):
    """Adds a float32 constant to the output."""

    def __init__(self, n_heads):
        super().__init__()
        self.shift = torch.ones(n_heads, 1, 1) / 8

    def forward(self, out, lse, x):
        return out + self.shift


class FirstEightHeads(Bias):
    """Heads beyond the eighth share the slopes of the first ones."""

    kinds = MappingProxyType({"slope": "vector"})

    def __init__(self, n_heads):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(n_heads))

    def compute_bias(self, b, h, q_idx, kv_idx):
        return -self.slope[h % 8] * (q_idx - kv_idx).abs()


class DetachedSegments(UncachedMixer):
    """A mean of the past whose gradient ends after 64 tokens."""

    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def mix(self, x):
        total, parts = torch.zeros_like(x[:, :1]), []
        for part in x.split(64, 1):
            parts.append(total + part.cumsum(1))
            total = parts[-1][:, -1:].detach()
        return self.out(torch.cat(parts, 1) / torch.arange(1, x.shape[1] + 1)[:, None])


class UnsavedFeatures(UncachedMixer):
    """Features in a random basis that is not saved with the weights."""

    def __init__(self, dim):
        super().__init__()
        self.out, self.basis = nn.Linear(dim, dim), torch.randn(dim, dim)

    def mix(self, x):
        return self.out((x @ self.basis.to(x.dtype)).tanh().cumsum(1))


class DropsEarly(UnboundedCache):
    """Drops all but 40 keys before it returns them, so that long chunks lose keys of their windows."""

    def append(self, state, positions):
        super().append(state, positions)
        self.keep(slice(max(0, self.positions.shape[1] - 40), None))
        return self.state, self.positions


@declare_capabilities(sees_future=True, prefix=4)
def blocks_beyond_prefix(b, h, q_idx, kv_idx):
    return kv_idx // 4 <= q_idx // 4


class SeedingBlock(Block):
    """Resets torch's random generator in training."""

    def forward(self, x, **context):
        if self.training:
            torch.manual_seed(0)
        return F.dropout(super().forward(x, **context), 0.1, self.training)


class DroppingBlock(Block):
    """Valid: drops the updates of some rows in training, by torch.rand."""

    def forward(self, x, **context):
        y = super().forward(x, **context)
        return x + (y - x) * (torch.rand(len(x), 1, 1) > 0.1) / 0.9 if self.training else y


class RankingBlock(Block):
    """Halves the tokens that are below the mean of the whole sequence."""

    def forward(self, x, **context):
        y = super().forward(x, **context)
        size = y.square().mean(-1, keepdim=True)
        return torch.where(size < size.mean(1, keepdim=True), y / 2, y)


class LostDepth(nn.Module):
    """A mixture over depth whose weights have no gradient."""

    def __init__(self, dim):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))

    def forward(self, outputs):
        stack = torch.stack(tuple(outputs))
        return ((stack @ self.query.detach()).softmax(0)[..., None] * stack).sum(0)

    def begin(self, x):
        return [x]

    def add(self, outputs, output):
        return [*outputs, output]

    def flops(self):
        return 0

    def make_last_reader(self):
        return LostDepth(len(self.query))


class RandomHeadDepth(nn.Module):
    """Valid: drops heads in training, by torch.rand."""

    def forward(self, out, lse, x):
        if not self.training:
            return out
        return out * (torch.rand(*out.shape[:2], 1, 1) > 0.1).to(out.dtype) / 0.9


class LowRank(Bias):
    """Valid: a bias by a matrix product."""

    def __init__(self, n_heads):
        super().__init__()
        self.left, self.right = nn.Parameter(torch.ones(8, 2)), nn.Parameter(torch.zeros(2, n_heads))

    def compute_bias(self, b, h, q_idx, kv_idx):
        return (self.left @ self.right)[(q_idx - kv_idx).clamp(0, 7), h]


class TokensFirst(UnboundedCache):
    """Valid: stores [S, B, G, width]."""

    def append(self, state, positions):
        old = None if self.state is None else tuple(part.permute(1, 2, 0, 3) for part in self.state)
        self.state = old
        state, positions = super().append(state, positions)
        self.state = tuple(part.permute(2, 0, 1, 3).contiguous() for part in state)
        return state, positions


HEADS = {
    "_target_": "attnlab.attention.heads.grouped.GroupedHeads",
    "head_dim": None,
    "bias": False,
    "out_bias": False,
}


def with_model(**parts) -> VariantFactory:
    """Make a factory of shipped attention in a model with this block or residual."""

    return lambda: dataclasses.replace(make_attention_factory()(), **parts)


def make_few_slopes() -> testing.Variant:
    """Make a variant of 6 heads, which are right, and its larger one of 20, which are not."""
    small, larger = (
        make_attention_factory(
            {"position": "none"},
            heads={**HEADS, "dim": dim, "n_heads": n_heads, "n_kv_heads": n_heads},
            scores={"own": make_object_node(FirstEightHeads, n_heads=n_heads)},
        )()
        for dim, n_heads in ((48, 6), (160, 20))
    )
    return dataclasses.replace(small, make_larger=lambda: larger)


def make_partial(maker) -> dict:
    return make_object_node(maker, _partial_=True)


MUTANTS: dict[str, VariantFactory] = {
    "angles in the dtype of features": with_rotary(HalfAngles),
    "keys cached wider than counted": with_heads(WideKeys),
    "heads that change their input": with_heads(ChangesInput),
    "a gain without effect unless rotated": with_heads(GainWithRotation),
    "an epilogue that promotes 16-bit outputs": with_epilogue(PromotesOutput, n_heads=6),
    "slopes of the first eight heads": make_few_slopes,
    "a mean detached every 64 tokens": make_mixer_factory(DetachedSegments, cached=False, dim=16),
    "features that are not saved": make_mixer_factory(UnsavedFeatures, cached=False, dim=16),
    "a cache that drops keys before long chunks see them": with_cache(DropsEarly, {"mask": "window"}),
    "blocks beyond a declared prefix": make_attention_factory(
        masks={"own": make_function_node(blocks_beyond_prefix)}
    ),
    "a block that resets the random state": with_model(block=make_partial(SeedingBlock)),
    "a block that ranks all tokens": with_model(block=make_partial(RankingBlock)),
    "a mixture over depth without gradient": with_model(residual=make_partial(LostDepth)),
}
VALID_VARIANTS: dict[str, VariantFactory] = {
    "a block that drops rows by torch.rand": with_model(block=make_partial(DroppingBlock)),
    "heads that are dropped by torch.rand": with_epilogue(RandomHeadDepth),
    "a bias by a matrix product": with_score(make_object_node(LowRank, n_heads=6)),
    "a cache that stores tokens first": with_cache(TokensFirst),
}
