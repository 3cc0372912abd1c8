"""A decoder-only transformer around any mixer: embedding, blocks, head, and one function that initialises
all of it.

The model never sees a config: it is handed `make_mixer(layer) -> module`, called once per layer, so layers
cannot share weights. A mixer maps x [B, T, M] to [B, T, M] and takes the keywords positions, mask and
cache.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.contracts import Cache, Capabilities, Channel, Mask
from attnlab.attention.heads.projections import Fused, IntoResidual, by_head, head_width
from attnlab.attention.layer import Attention
from attnlab.attention.positions import Positions
from attnlab.model.block import Block
from attnlab.model.initial import initialise
from attnlab.model.parametrization import Mup
from attnlab.model.residual import DepthAttention


@final
class Mlp(nn.Module):
    """down(gelu(up(x))): 2 * dim * width weights. `approximate` is torch's: GPT-2 was trained with "tanh",
    which takes twice the time of "none" on a CPU.
    """

    def __init__(self, dim: int, width: int, bias: bool, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate
        self.up = nn.Linear(dim, width, bias=bias)
        self.down = IntoResidual(width, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, M] -> [B, T, M]."""
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


@final
class SwiGlu(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, eq. 6): 3 * dim * width weights. With another `activation`
    it is GEGLU (eq. 5).
    """

    def __init__(
        self,
        dim: int,
        width: int,
        bias: bool,
        activation: Literal["silu", "gelu", "gelu_tanh"] = "silu",
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = Fused(dim, {"gate": width, "up": width}, bias)
        self.down = IntoResidual(width, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, M] -> [B, T, M]."""
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)


@final
class LearnedPositions(nn.Module):
    """A learned vector per position (GPT-2). Past its table there is nothing to add, so it says so."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, dim)

    @property
    def length(self) -> int:
        """The positions that there are."""
        return self.table.num_embeddings

    def forward(self, positions_BT: Tensor, length: int) -> Tensor:
        """[B or 1, T] -> [B or 1, T, M]; `length` is the sequence's, past included. ValueError beyond the
        table.
        """
        if length > self.table.num_embeddings:
            raise ValueError(
                f"learned positions end at {self.table.num_embeddings}: the sequence has {length} tokens"
            )
        return self.table(positions_BT.clamp(min=0))


@final
class SinusoidalPositions(nn.Module):
    """size * sin and cos of position / 10000^(2f/M), not learned (Vaswani et al. 2017, §3.5).

    Beside token embeddings much smaller than `size` the sum is nearly all position. There (§3.4) embeddings
    are multiplied by sqrt(M) for that; here the sines are made as small as they.
    """

    def __init__(self, dim: int, base: float = 10000.0, size: float = 1.0) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"sinusoidal positions need an even width, got {dim}: change model.dim")
        self.dim = dim
        self.base = base
        self.size = size

    def forward(self, positions_BT: Tensor, length: int) -> Tensor:
        """[B or 1, T] -> [B or 1, T, M]; any length will do."""
        steps = torch.arange(0, self.dim, 2, device=positions_BT.device)
        angles = positions_BT[..., None] * self.base ** (-steps / self.dim)
        return self.size * torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


@final
class ValueEmbedding(nn.Module):
    """A learned value for each token of the vocabulary, which heads with `value_residual` mix into their
    own in the place of the first layer's (modded-nanogpt, Jordan et al. 2024; after Zhou et al. 2024, arXiv
    2410.17897). One table for all layers.
    """

    def __init__(
        self, vocab_size: int, dim: int, n_heads: int, n_kv_heads: int, head_dim: int | None
    ) -> None:
        super().__init__()
        self.width = head_width(dim, n_heads, head_dim)
        self.table = nn.Embedding(vocab_size, n_kv_heads * self.width)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] -> [B, G, T, D]."""
        return by_head(self.table(tokens_BT), self.width)


@final
class Transformer(nn.Module):
    """Token ids [B, T] to logits [B, T, vocabulary].

    `qk_gain` sets the initial standard deviation of q's and k's entries for an input of unit RMS; None
    leaves their weights at `init_std` like all others. `tie` shares the embedding with the output head.
    `parametrization` scales all of it with the width; None is `standard`, which does nothing. `residual`
    makes what a layer reads of all that earlier ones wrote; None is their sum. `values` makes a table of
    values by token, which layers read as those of the first one. `block` is made around each mixer; None is
    a plain `Block`. Embeddings are multiplied by `embedding_scale`, logits by `logit_scale`; then cap *
    tanh(logit / cap) keeps them within ±`logit_cap` (Gemma 2). Every parameter is drawn from a generator of
    its own, keyed by (seed, name), so models that share a tensor's name and shape start with the same
    numbers in it.
    """

    def __init__(
        self,
        make_mixer: Callable[[int], nn.Module],
        vocab_size: int,
        dim: int,
        n_layers: int,
        ffn_width: int,
        ffn: Callable[..., nn.Module],
        norm: Callable[[int], nn.Module],
        bias: bool,
        tie: bool,
        dropout: float,
        init_std: float,
        qk_gain: float | None,
        seed: int,
        positions: nn.Module | None = None,
        parametrization: Mup | None = None,
        residual: Callable[[int], DepthAttention] | None = None,
        values: Callable[..., ValueEmbedding] | None = None,
        block: Callable[..., Block] | None = None,
        embedding_scale: float = 1.0,
        logit_scale: float = 1.0,
        logit_cap: float | None = None,
    ) -> None:
        super().__init__()
        if min(vocab_size, dim, n_layers, ffn_width) < 1:
            raise ValueError(
                f"model sizes must be positive: vocab_size {vocab_size}, dim {dim}, n_layers {n_layers}, "
                f"ffn_width {ffn_width}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"model.dropout must lie in [0, 1), got {dropout}")
        if logit_cap is not None and not logit_cap > 0:
            raise ValueError(f"model.logit_cap must be more than 0, got {logit_cap}")
        self.embedding_scale = embedding_scale
        self.logit_scale = logit_scale
        self.logit_cap = logit_cap
        self.embedding = nn.Embedding(vocab_size, dim)
        self.positions = positions
        self.values = values(vocab_size=vocab_size, dim=dim) if values else None
        self.blocks: Any = nn.ModuleList(  # of Block: a ModuleList does not say what it holds
            (block or Block)(make_mixer(layer), ffn(dim, ffn_width, bias), norm, dim, dropout, residual)
            for layer in range(n_layers)
        )
        _require_published([block.mixer for block in self.blocks])
        _require_masks([block.mixer for block in self.blocks])
        self.reads = residual(dim) if residual else None
        self.norm = norm(dim)
        self.parametrization = parametrization
        if parametrization is None:
            self.head = nn.Linear(dim, vocab_size, bias=False)
        else:
            self.head = parametrization.readout(dim, vocab_size)
            for block in self.blocks:
                parametrization.rescale(block.mixer, dim)
        if tie:
            self.head.weight = self.embedding.weight
        self.dropout = dropout
        initialise(self, seed, init_std, qk_gain)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        positions: Tensor | Positions | None = None,
        mask: Mask | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """Logits. `positions` default to 0..T-1, or go on from the caches (one a layer)."""
        return self.logits(self.hidden(tokens_BT, positions=positions, mask=mask, caches=caches))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., M] of `hidden` to [..., vocabulary]."""
        logits = self.head(hidden)
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        return logits if self.logit_cap is None else self.logit_cap * torch.tanh(logits / self.logit_cap)

    def hidden(
        self,
        tokens_BT: Tensor,
        *,
        positions: Tensor | Positions | None = None,
        mask: Mask | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """The normalised last hidden states [B, T, M], before the output head."""
        x = self.embedding(tokens_BT)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        past = len(caches[0]) if caches else 0
        count = tokens_BT.shape[1]
        where = Positions.following(past, count, x.device) if positions is None else positions
        where = Positions(where) if isinstance(where, Tensor) else where
        if self.positions is not None:
            x = x + self.positions(where.of, past + count).to(x.dtype)
        if self.dropout:
            x = F.dropout(x, self.dropout, self.training)
        channel: Channel = {} if self.values is None else {"values": self.values(tokens_BT)}
        stream: Any = x if self.reads is None else [x]
        for layer, block in enumerate(self.blocks):
            shared = {"channel": channel} if block.shares else {}
            cache = caches[layer] if caches else None
            stream = block(stream, positions=where, mask=mask, cache=cache, **shared)
        return self.norm(stream if self.reads is None else self.reads(stream))

    def state_size(self) -> int:
        """Bytes cached per token, all layers."""
        return sum(block.mixer.state_size() for block in self.blocks)

    def carried_size(self) -> int:
        """Bytes cached beside them at a fixed size, all layers."""
        return sum(Capabilities.of(block.mixer).carried_size() for block in self.blocks)


def _require_masks(mixers: Sequence[Any]) -> None:
    """ValueError where attention has no mask: a decoder that sees the future says so with mask=full."""
    for layer, mixer in enumerate(mixers):
        if isinstance(mixer, Attention) and mixer.mask is None:
            raise ValueError(
                f"model.attention.masks of layer {layer} is empty, so every token would see the tokens that "
                "it predicts: add a mask, as in mask=causal, or say so with mask=full"
            )


def _require_published(mixers: Sequence[Any]) -> None:
    published: set[str] = set()
    for layer, mixer in enumerate(mixers):
        declared = Capabilities.of(mixer)
        published.update(declared.publishes)
        missing = [name for name in declared.reads if name not in published]
        if missing:
            raise ValueError(
                f"layer {layer} reads {' and '.join(missing)}, which no earlier layer publishes: change "
                "model.layers (lends_keys: true publishes keys)"
            )
