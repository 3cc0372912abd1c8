"""Mutant mixers: recurrences, convolutions, linear attention, and wrappers of attention."""

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.attention.contracts import Unsupported
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.attention.masks.causal import causal
from attnlab.attention.rotary import Rope
from attnlab.attention.token_positions import TokenPositions

from .builders import VariantFactory, make_mixer_factory
from .parts import CustomHeads, window_of_five


class UncachedMixer(nn.Module):
    """Base of mixers that support neither a mask nor a cache."""

    def forward(self, x, *, positions=None, mask=None, cache=None):
        if cache is not None or mask is not None:
            raise Unsupported("no place for a mask or a cache")
        return self.mix(x)

    def state_size(self):
        return 0


class Convolution(UncachedMixer):
    """A convolution padded on both sides."""

    pads = (2, 2)

    def __init__(self, dim):
        super().__init__()
        self.kernel = nn.Conv1d(dim, dim, 5, groups=dim)
        self.out = nn.Linear(dim, dim)

    def mix(self, x):
        return self.out(self.kernel(F.pad(x.mT, self.pads)).mT)


class WithoutItsTail(Convolution):
    """Fills a cache, but convolves every chunk as though it were the first."""

    pads = (4, 0)

    def forward(self, x, *, positions=None, mask=None, cache=None):
        if mask is not None:
            raise Unsupported("no place for a mask")
        if cache is not None:
            token_positions = positions or TokenPositions.continue_from(len(cache), x.shape[1], x.device)
            cache.append((x[:, None],), token_positions.position_ids)
        return self.mix(x)

    def state_size(self):
        return self.out.in_features * self.out.weight.element_size()


class Circular(UncachedMixer):
    """A long convolution by an unpadded Fourier transform: the end wraps to the beginning."""

    def __init__(self, dim):
        super().__init__()
        self.decay, self.out = nn.Parameter(torch.ones(dim)), nn.Linear(dim, dim)

    def mix(self, x):
        T = x.shape[1]
        kernel = torch.exp(-torch.arange(T)[:, None] * self.decay.abs() / 9)
        return self.out(torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(kernel, dim=0), n=T, dim=1))


class Linear(UncachedMixer):
    """Causal linear attention whose denominator sums over all keys."""

    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def mix(self, x):
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        return (
            (q @ k.mT).tril()
            @ self.v(x)
            / (q @ self.compute_denominator(k).mT).diagonal(dim1=1, dim2=2)[..., None]
        )

    def compute_denominator(self, k):
        return k.sum(1, keepdim=True).expand_as(k)


class LinearWithMemory(Linear):
    """Correct linear attention that adds the mean of its previous input."""

    last = None

    def mix(self, x):
        previous, self.last = self.last, x.detach().mean((0, 1))
        return super().mix(x if previous is None else x + previous)

    def compute_denominator(self, k):
        return k.cumsum(1)


class MeanOfThePast(UncachedMixer):
    """Divides by the sequence length instead of the number of tokens so far."""

    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def mix(self, x):
        return self.out(x.cumsum(1) / x.shape[1])


class Chunks(MeanOfThePast):
    """Adds the mean of every full chunk of sixteen tokens, also to the tokens within it."""

    def mix(self, x):
        full = x.shape[1] // 16 * 16
        means = x[:, :full].unflatten(1, (-1, 16)).mean(2) if full else x[:, :0]
        return self.out(x + F.pad(means.repeat_interleave(16, 1), (0, 0, 0, x.shape[1] - full)))


class OpenChunks(MeanOfThePast):
    """Attention within chunks of sixteen, in both directions."""

    def mix(self, x):
        chunk_indices = torch.arange(x.shape[1]) // 16
        weights = (x @ x.mT).masked_fill(chunk_indices[:, None] != chunk_indices, -torch.inf).softmax(-1)
        return self.out(weights @ x)


class OnesForAMask(UncachedMixer):
    """Passes ones as a float mask, which torch adds to the scores: they hide nothing."""

    def __init__(self, dim):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)

    def mix(self, x):
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).triu(1)
        return self.attention(x, x, x, attn_mask=ahead, need_weights=False)[0]


class Wrapper(nn.Module):
    """A mixer around attention that drops one of its arguments."""

    forgets = ""

    def __init__(self, dim, mask=causal):
        super().__init__()
        heads = CustomHeads(dim, 4, 2)
        self.attention = Attention(heads, eager, {"causal": mask}, rotary=Rope(base=100.0))

    def forward(self, x, *, positions=None, mask=None, cache=None):
        arguments = {"positions": positions, "mask": mask, "cache": cache}
        return self.attention(x, **{key: value for key, value in arguments.items() if key != self.forgets})

    def state_size(self):
        return self.attention.state_size()


class ForgetsPositions(Wrapper):
    forgets = "positions"


class ForgetsTheMask(Wrapper):
    forgets = "mask"


class ForgetsTheCache(Wrapper):
    forgets = "cache"


class UncountedState(Wrapper):
    def state_size(self):
        return 0


class SharedCacheAttentions(Wrapper):
    """Global and local attention that share one cache."""

    def __init__(self, dim):
        super().__init__(dim)
        self.near = Wrapper(dim, window_of_five)

    def forward(self, x, **context):
        return super().forward(x, **context) + self.near(x, **context)


MUTANTS: dict[str, VariantFactory] = {
    "a convolution padded on both sides": make_mixer_factory(Convolution, dim=20),
    "a convolution that caches and does not read": make_mixer_factory(WithoutItsTail, dim=20),
    "a convolution that wraps": make_mixer_factory(Circular, cached=False, dim=24),
    "linear attention divided by all keys": make_mixer_factory(Linear, dim=16),
    "linear attention that remembers": make_mixer_factory(LinearWithMemory, dim=16),
    "a mean divided by the length of the text": make_mixer_factory(MeanOfThePast, dim=16),
    "chunks of sixteen that see their own summary": make_mixer_factory(Chunks, dim=16),
    "chunks of sixteen open both ways": make_mixer_factory(OpenChunks, dim=16),
    "a triangle of ones for a mask": make_mixer_factory(OnesForAMask, dim=24),
    "a wrapper that forgets positions": make_mixer_factory(ForgetsPositions, dim=32),
    "a wrapper that forgets the mask": make_mixer_factory(ForgetsTheMask, dim=32),
    "a wrapper that forgets the cache": make_mixer_factory(ForgetsTheCache, dim=32),
    "a wrapper that counts no state": make_mixer_factory(UncountedState, dim=32),
    "two attentions in one cache": make_mixer_factory(SharedCacheAttentions, dim=32),
}
