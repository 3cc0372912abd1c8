"""Residual streams other than the sum of all outputs: attention over depth and hyper-connections."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from attnlab.attention.heads.projections import FusedLinear
from attnlab.attention.kernels.autocast import disable_autocast

GATE = 0.01  # initial α
OFF_DIAGONAL = -8.0  # e^-8 = 0.0003: streams start almost unmixed


class StreamReader(Protocol):
    """Begins a stream from the embedding, and reads the last one: stream -> [B, T, M]."""

    def begin(self, x: Tensor) -> Any: ...

    def __call__(self, stream: Any, /) -> Tensor: ...

    def flops(self) -> int: ...


class Connection(Protocol):
    """Connects one part (mixer or FFN) to the stream: reads its input [B, T, M] and adds its output.

    `serves_parts`: One connection can serve both parts of a block. `flops()` counts the matrix products of
    reading and adding, per token.
    """

    serves_parts: bool

    def __call__(self, stream: Any, /) -> Tensor: ...

    def flops(self) -> int: ...

    def add(self, stream: Any, output: Tensor) -> Any: ...

    def make_last_reader(self) -> StreamReader: ...


@final
class DepthAttention(nn.Module):
    """Attention residuals (Kimi 2026, arXiv 2603.15031): a softmax over earlier outputs replaces their sum.

    The weights of the embedding and of each output v so far are softmax(w·norm(v)). Each reader learns its
    own w, which starts at 0, so that all weights are equal. The norm adds `norm_eps` to the mean square. The
    stream is the list of the embedding and all outputs.
    """

    kinds = MappingProxyType({"query": "vector"})
    serves_parts = True

    def __init__(self, dim: int, norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.norm = nn.RMSNorm(dim, norm_eps)

    def begin(self, x: Tensor) -> list[Tensor]:
        """Begin a stream with the embedding."""
        return [x]

    def forward(self, outputs: Sequence[Tensor]) -> Tensor:
        """Mix outputs of [B, T, M] each into [B, T, M]."""
        stack = torch.stack(tuple(outputs))
        weights = (self.norm(stack) @ self.query).softmax(0)
        return (weights[..., None] * stack).sum(0)

    def add(self, outputs: Sequence[Tensor], output: Tensor) -> list[Tensor]:
        """Append a part's output."""
        return [*outputs, output]

    def flops(self) -> int:
        """0: products with one query are no matrix products."""
        return 0

    def make_last_reader(self) -> "DepthAttention":
        """Make the reader of the last stream, with a query of its own."""
        assert self.norm.eps is not None
        return DepthAttention(len(self.query), self.norm.eps)


@final
class HyperConnections(nn.Module):
    """Manifold-constrained hyper-connections (mHC, Xie 2025, arXiv 2512.24880; after Zhu 2024, 2409.19606).

    The stream x [B, T, n, M] consists of n residual streams, which begin as copies of the embedding. A part F
    turns x into H_res x + H_post F(H_pre x) (mHC, eq. 3), with weights per token (eq. 7 and 8):

        H_pre = sigmoid(h_pre) [n], H_post = 2 sigmoid(h_post) [n], H_res = sinkhorn(h_res) [n, n],
        each h = α φ norm(vec(x)) + b, where norm(vec(x)) [n * M] has a root mean square of 1.

    sinkhorn(h) divides exp(h) by its column sums, then by its row sums, `n_iterations` times (eq. 9): all
    sums are then about 1, those of the rows to rounding. The last stream is read through an H_pre of its own
    (DeepSeek-V4). From the product with φ on, weights are computed in float32 at least.

    Initially α = 0.01, b_pre makes all H_pre 1/n, b_post makes H_post 1 and b_res makes H_res the identity up
    to 0.0003. Streams are then equal, and each is the residual sum, except for the share of α; φ, drawn like
    other matrices, tells them apart. While streams are almost equal, gradients of H_pre cancel, and how their
    steps scale with the width is unknown: `mup` rejects φ. AdamW trains it under Muon too.

    Raises:
        ValueError: Fewer than two streams, or no iteration.
    """

    serves_parts = False

    def __init__(self, dim: int, n_streams: int, n_iterations: int = 20, norm_eps: float = 1e-6) -> None:
        super().__init__()
        if n_streams < 2:
            raise ValueError(
                f"model.residual.n_streams must be at least 2, got {n_streams}; residual=sum has one stream"
            )
        if n_iterations < 1:
            raise ValueError(f"model.residual.n_iterations must be at least 1, got {n_iterations}")
        self.n_iterations = n_iterations
        self.reader = StreamMixture(dim, n_streams, norm_eps)
        mixing = torch.full((n_streams, n_streams), OFF_DIAGONAL).fill_diagonal_(0.0)
        self.weights = StreamWeights(
            dim, n_streams, norm_eps, {"post": torch.zeros(n_streams), "res": mixing.flatten()}
        )

    def forward(self, stream: Tensor) -> Tensor:
        """Read a part's input H_pre x: [B, T, n, M] -> [B, T, M]."""
        return self.reader(stream)

    def add(self, stream: Tensor, output: Tensor) -> Tensor:
        """Mix the streams [B, T, n, M] and add a part's output [B, T, M] to each."""
        post, mixing = self.weights(stream)
        mixing = normalize_rows_and_columns(mixing.unflatten(-1, post.shape[-1:] * 2), self.n_iterations)
        with disable_autocast(stream):
            mixed = mixing.to(stream.dtype) @ stream
        return mixed + 2 * post.sigmoid().to(stream.dtype)[..., None] * output[..., None, :]

    def flops(self) -> int:
        """Matrix products per token: both maps φ, H_pre x and H_res x."""
        weights = self.weights
        return self.reader.flops() + weights.flops() + 2 * weights.n_streams**2 * weights.dim

    def make_last_reader(self) -> "StreamMixture":
        """Make the reader of the last stream, with weights of its own."""
        weights = self.reader.weights
        return StreamMixture(weights.dim, weights.n_streams, weights.norm_eps)


@final
class StreamMixture(nn.Module):
    """Weighted sum H_pre x of n streams, which starts as their mean (see `HyperConnections`)."""

    def __init__(self, dim: int, n_streams: int, norm_eps: float) -> None:
        super().__init__()
        bias = torch.full((n_streams,), -math.log(n_streams - 1))  # sigmoid(bias) = 1 / n_streams
        self.weights = StreamWeights(dim, n_streams, norm_eps, {"pre": bias})

    def begin(self, x: Tensor) -> Tensor:
        """Copy the embedding into each stream: [B, T, M] -> [B, T, n, M]."""
        return x[..., None, :].expand(*x.shape[:-1], self.weights.n_streams, -1).contiguous()

    def flops(self) -> int:
        """Matrix products per token: the map φ and H_pre x."""
        return self.weights.flops() + 2 * self.weights.n_streams * self.weights.dim

    def forward(self, stream: Tensor) -> Tensor:
        """[B, T, n, M] -> [B, T, M]."""
        (logits,) = self.weights(stream)
        with disable_autocast(stream):
            return (logits.sigmoid().to(stream.dtype)[..., None, :] @ stream).squeeze(-2)


@final
class StreamWeights(nn.Module):
    """Logits α φ norm(vec(x)) + b of named maps, each with an α of its own (mHC, eq. 7).

    The product with φ is divided by the root mean square of vec(x), so that no normalized copy of the
    stream is kept. A gain of the norm would be a factor of φ.
    """

    kinds = MappingProxyType({"map.weight": "streams"})

    def __init__(self, dim: int, n_streams: int, norm_eps: float, biases: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.dim, self.n_streams, self.norm_eps = dim, n_streams, norm_eps
        widths = {name: len(bias) for name, bias in biases.items()}
        self.map = FusedLinear(n_streams * dim, widths, bias=False)
        self.gate = nn.Parameter(torch.full((len(biases),), GATE))
        self.bias = nn.Parameter(torch.cat(tuple(biases.values())))

    def forward(self, stream: Tensor) -> tuple[Tensor, ...]:
        """[B, T, n, M] -> logits [B, T, length of the bias] of each map, in float32 at least."""
        compute_dtype = torch.promote_types(stream.dtype, torch.float32)
        with disable_autocast(stream):
            flat = stream.flatten(-2)
            size = torch.linalg.vector_norm(flat, dim=-1, keepdim=True, dtype=compute_dtype)
            scale = torch.rsqrt(size.square() / flat.shape[-1] + self.norm_eps)
            logits = self.map(flat) * scale
            maps = zip(
                self.gate.split(1),
                logits.split(self.map.widths, -1),
                self.bias.split(self.map.widths),
                strict=True,
            )
            return tuple(gate * part + bias for gate, part, bias in maps)

    def flops(self) -> int:
        """Matrix products per token."""
        return 2 * self.map.weight.numel()


def normalize_rows_and_columns(logits: Tensor, n_iterations: int) -> Tensor:
    """Map logits [..., n, n] to an almost doubly stochastic matrix by Sinkhorn-Knopp, columns first.

    The logarithm of a normalized exponential is a log-softmax, which cannot overflow. Rows and columns come
    first, since a softmax over the last four numbers takes up to ten times as long on a CPU.
    """
    logits = logits.movedim((-2, -1), (0, 1)).contiguous()
    for _ in range(n_iterations):
        logits = logits.log_softmax(0).log_softmax(1)
    return logits.exp().movedim((0, 1), (-2, -1)).contiguous()  # halves the time of the product with streams
