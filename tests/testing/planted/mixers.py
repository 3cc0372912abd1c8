"""Whole mixers with a bug: recurrences, convolutions, linear attention, and wrappers of attention."""

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.attention.contracts import Unsupported
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.positions import Positions
from attnlab.attention.rotary import Rope

from .making import Make, mixer
from .parts import OwnHeads, near


class Bare(nn.Module):
    """What has no place for a mask or a cache."""

    def forward(self, x, *, positions=None, mask=None, cache=None):
        if cache is not None or mask is not None:
            raise Unsupported("no place for a mask or a cache")
        return self.mix(x)

    def state_size(self):
        return 0


class BothWays(Bare):
    def __init__(self, dim):
        super().__init__()
        self.cell = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)

    def mix(self, x):
        return self.cell(x)[0]


class Convolution(Bare):
    """Padded on both sides."""

    pads = (2, 2)

    def __init__(self, dim):
        super().__init__()
        self.kernel = nn.Conv1d(dim, dim, 5, groups=dim)
        self.out = nn.Linear(dim, dim)

    def mix(self, x):
        return self.out(self.kernel(F.pad(x.mT, self.pads)).mT)


class WithoutItsTail(Convolution):
    """It fills a cache, and convolves every chunk as though it were the first."""

    pads = (4, 0)

    def forward(self, x, *, positions=None, mask=None, cache=None):
        if mask is not None:
            raise Unsupported("no place for a mask")
        if cache is not None:
            where = positions or Positions.following(len(cache), x.shape[1], x.device)
            cache.append((x[:, None],), where.of)
        return self.mix(x)

    def state_size(self):
        return self.out.in_features * self.out.weight.element_size()


class Circular(Bare):
    """A long convolution through a Fourier transform that is not padded: the end wraps to the beginning."""

    def __init__(self, dim):
        super().__init__()
        self.decay, self.out = nn.Parameter(torch.ones(dim)), nn.Linear(dim, dim)

    def mix(self, x):
        T = x.shape[1]
        kernel = torch.exp(-torch.arange(T)[:, None] * self.decay.abs() / 9)
        return self.out(torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(kernel, dim=0), n=T, dim=1))


class Shifted(Bare):
    """A token's neighbour by a roll: the first one's is the last."""

    def __init__(self, dim):
        super().__init__()
        self.here, self.before = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def mix(self, x):
        return self.here(x) + self.before(x.roll(1, 1))


class Linear(Bare):
    """Causal linear attention; what it is divided by is of all keys."""

    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def mix(self, x):
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        return (q @ k.mT).tril() @ self.v(x) / (q @ self.total(k).mT).diagonal(dim1=1, dim2=2)[..., None]

    def total(self, k):
        return k.sum(1, keepdim=True).expand_as(k)


class LinearWithMemory(Linear):
    """Right alone; what it was last given is added to what it is given now."""

    last = None

    def mix(self, x):
        before, self.last = self.last, x.detach().mean((0, 1))
        return super().mix(x if before is None else x + before)

    def total(self, k):
        return k.cumsum(1)


class MeanOfThePast(Bare):
    """Divided by the length of the text, where it should be by the number of tokens so far."""

    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def mix(self, x):
        return self.out(x.cumsum(1) / x.shape[1])


class Chunks(MeanOfThePast):
    """A summary of every sixteen tokens, for those within too once the chunk is full."""

    def mix(self, x):
        full = x.shape[1] // 16 * 16
        means = x[:, :full].unflatten(1, (-1, 16)).mean(2) if full else x[:, :0]
        return self.out(x + F.pad(means.repeat_interleave(16, 1), (0, 0, 0, x.shape[1] - full)))


class OpenChunks(MeanOfThePast):
    """Attention within chunks of sixteen, open both ways."""

    def mix(self, x):
        where = torch.arange(x.shape[1]) // 16
        weights = (x @ x.mT).masked_fill(where[:, None] != where, -torch.inf).softmax(-1)
        return self.out(weights @ x)


class NormedOverTime(MeanOfThePast):
    def mix(self, x):
        return self.out(x.cumsum(1).softmax(1))


class TokenMlp(Bare):
    """A learned matrix over the slots; it begins as a triangle, and nothing keeps it one."""

    def __init__(self, dim, length):
        super().__init__()
        self.slots, self.out = nn.Parameter(torch.ones(length, length).tril() / 9), nn.Linear(dim, dim)

    def mix(self, x):
        T = x.shape[1]
        return self.out(self.slots[:T, :T] @ x)


class OnesForAMask(Bare):
    """torch's own attention adds a mask of numbers to the scores: a one hides nothing."""

    def __init__(self, dim):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)

    def mix(self, x):
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).triu(1)
        return self.attention(x, x, x, attn_mask=ahead, need_weights=False)[0]


class Wrapper(nn.Module):
    """A mixer around attention that forgets one of what it is given."""

    forgets = ""

    def __init__(self, dim, mask=causal):
        super().__init__()
        heads = OwnHeads(dim, 4, 2)
        self.attention = Attention(heads, eager, {"causal": mask}, rotary=Rope(base=100.0))

    def forward(self, x, *, positions=None, mask=None, cache=None):
        given = {"positions": positions, "mask": mask, "cache": cache}
        return self.attention(x, **{key: value for key, value in given.items() if key != self.forgets})

    def state_size(self):
        return self.attention.state_size()


class ForgetsPositions(Wrapper):
    forgets = "positions"


class ForgetsTheMask(Wrapper):
    forgets = "mask"


class ForgetsTheCache(Wrapper):
    forgets = "cache"


class Uncounted(Wrapper):
    def state_size(self):
        return 0


class Twice(Wrapper):
    """Far and near attention, one cache for both."""

    def __init__(self, dim):
        super().__init__(dim)
        self.near = Wrapper(dim, near)

    def forward(self, x, **context):
        return super().forward(x, **context) + self.near(x, **context)


PLANTED: dict[str, Make] = {
    "a GRU that reads both ways": mixer(BothWays, dim=24),
    "a convolution padded on both sides": mixer(Convolution, dim=20),
    "a convolution that caches and does not read": mixer(WithoutItsTail, dim=20),
    "a convolution that wraps": mixer(Circular, cached=False, dim=24),
    "a shift that wraps": mixer(Shifted, dim=12),
    "linear attention divided by all keys": mixer(Linear, dim=16),
    "linear attention that remembers": mixer(LinearWithMemory, dim=16),
    "a mean divided by the length of the text": mixer(MeanOfThePast, dim=16),
    "chunks of sixteen that see their own summary": mixer(Chunks, dim=16),
    "chunks of sixteen open both ways": mixer(OpenChunks, dim=16),
    "a softmax over the time": mixer(NormedOverTime, dim=16),
    "a matrix over slots that was a triangle": mixer(TokenMlp, dim=24, length=200),
    "a triangle of ones for a mask": mixer(OnesForAMask, dim=24),
    "a wrapper that forgets positions": mixer(ForgetsPositions, dim=32),
    "a wrapper that forgets the mask": mixer(ForgetsTheMask, dim=32),
    "a wrapper that forgets the cache": mixer(ForgetsTheCache, dim=32),
    "a wrapper that counts no state": mixer(Uncounted, dim=32),
    "two attentions in one cache": mixer(Twice, dim=32),
}
