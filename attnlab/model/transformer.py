"""Decoder-only transformer around any mixer: embedding, blocks, output head and their initialization.

The model has no access to the config. It calls `make_mixer(layer) -> module` once per layer, so layers cannot
share weights. A mixer maps x [B, T, M] to [B, T, M] and takes the keywords positions, mask and cache.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.contracts import Cache, Capabilities, Mask, SharedTensors, Unsupported
from attnlab.attention.heads.projections import FusedLinear, ResidualProjection, resolve_head_dim, split_heads
from attnlab.attention.layer import Attention
from attnlab.attention.token_positions import TokenPositions
from attnlab.model.block import Block
from attnlab.model.initialization import initialize_parameters
from attnlab.model.parametrization import Mup
from attnlab.model.residual import Connection


@final
class Mlp(nn.Module):
    """FFN down(gelu(up(x))) with 2 * dim * width weights.

    `approximate` is torch's: GPT-2 was trained with "tanh", which takes twice the time of "none" on a CPU.
    """

    def __init__(self, dim: int, width: int, bias: bool, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate
        self.up = nn.Linear(dim, width, bias=bias)
        self.down = ResidualProjection(width, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, M] -> [B, T, M]."""
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


@final
class ReluMlp(nn.Module):
    """FFN down(relu(up(x)) ** power) with 2 * dim * width weights.

    Power 1 is the FFN of Vaswani et al. 2017 (eq. 2), power 2 that of Primer (So et al. 2021, arXiv
    2109.08668, §4.1).
    """

    def __init__(self, dim: int, width: int, bias: bool, power: int = 1) -> None:
        super().__init__()
        self.power = power
        self.up = nn.Linear(dim, width, bias=bias)
        self.down = ResidualProjection(width, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, M] -> [B, T, M]."""
        return self.down(F.relu(self.up(x)) ** self.power)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


@final
class SwiGlu(nn.Module):
    """Gated FFN down(silu(gate(x)) * up(x)) with 3 * dim * width weights (Shazeer 2020, eq. 6).

    With a GELU `activation` it is GEGLU (eq. 5).
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
        self.up = FusedLinear(dim, {"gate": width, "up": width}, bias)
        self.down = ResidualProjection(width, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, M] -> [B, T, M]."""
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)


RESERVED_NAMES = ("loss", "best_loss", "lr", "accuracy")  # that runs record as train/NAME or val/NAME


@final
class LearnedPositions(nn.Module):
    """Learned vector per position (GPT-2); positions beyond the table are an error."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, dim)

    @property
    def length(self) -> int:
        """Number of positions in the table."""
        return self.table.num_embeddings

    def forward(self, positions_BT: Tensor, length: int) -> Tensor:
        """[B or 1, T] -> [B or 1, T, M]; `length` is that of the sequence, including the past.

        Raises:
            ValueError: The sequence is longer than the table.
        """
        if length > self.table.num_embeddings:
            raise ValueError(
                f"the sequence has {length} tokens, but the model has {self.table.num_embeddings} "
                "learned positions"
            )
        return self.table(positions_BT.clamp(min=0))


@final
class SinusoidalPositions(nn.Module):
    """Fixed vectors size * sin and cos of position / 10000^(2f/M) (Vaswani et al. 2017, §3.5).

    If token embeddings are much smaller than `size`, the sum is nearly all position. The paper multiplies
    embeddings by sqrt(M) for that reason (§3.4); here `size` scales the sines down instead.
    """

    def __init__(self, dim: int, base: float = 10000.0, size: float = 1.0) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"sinusoidal positions need an even model.dim, got {dim}")
        self.dim = dim
        self.base = base
        self.size = size

    def forward(self, positions_BT: Tensor, length: int) -> Tensor:
        """[B or 1, T] -> [B or 1, T, M], for any length."""
        steps = torch.arange(0, self.dim, 2, device=positions_BT.device)
        angles = positions_BT[..., None] * self.base ** (-steps / self.dim)
        return self.size * torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


@final
class ValueEmbedding(nn.Module):
    """Learned value vectors per token of the vocabulary, in one table for all layers.

    Heads with `value_residual` mix them into their own values, in place of the first layer's values
    (modded-nanogpt, Jordan et al. 2024; after Zhou et al. 2024, arXiv 2410.17897).
    """

    def __init__(
        self, vocab_size: int, dim: int, n_heads: int, n_kv_heads: int, head_dim: int | None
    ) -> None:
        super().__init__()
        self.width = resolve_head_dim(dim, n_heads, head_dim)
        self.table = nn.Embedding(vocab_size, n_kv_heads * self.width)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] -> [B, G, T, D]."""
        return split_heads(self.table(tokens_BT), self.width)


@final
class Transformer(nn.Module):
    """Token ids [B, T] to logits [B, T, vocabulary].

    Each parameter is drawn from its own generator, keyed by (seed, name). Two models with a tensor of the
    same name and shape therefore start with the same values in it.

    Args:
        tie: The output head shares the embedding's weights.
        qk_gain: Initial standard deviation of the entries of q and k for an input of unit RMS; None: their
            weights start with `init_std` like all others, as do keys that heads share for RoPE and queries
            from a latent (`q_rank`) in any case.
        parametrization: Scaling with the width; None is `standard`, which changes nothing.
        residual: Makes the `Connection` of a part to the residual stream; None: the sum of all outputs.
        values: Makes a table of values per token, which layers read like the values of the first layer.
        block: Wraps each mixer; None is a plain `Block`.
        embedding_scale: Factor of the embeddings.
        logit_scale: Factor of the logits.
        logit_cap: Limits logits to ±cap by cap * tanh(logit / cap), after their scaling (Gemma 2).
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
        residual: Callable[[int], Connection] | None = None,
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
        blocks = [
            (block or Block)(make_mixer(layer), ffn(dim, ffn_width, bias), norm, dim, dropout, residual)
            for layer in range(n_layers)
        ]
        self.blocks: Any = nn.ModuleList(blocks)  # of Block; a ModuleList has no element type
        mixers = [block.mixer for block in blocks]
        _require_shared_writers(mixers)
        _require_masks(mixers)
        self.auxiliary_weights = _collect_auxiliary_weights(mixers)
        self.changes_with_length = any(Capabilities.from_part(mixer).changes_with_length for mixer in mixers)
        connection = blocks[0].mixer_reads
        self.reads = None if connection is None else connection.make_last_reader()
        self.norm = norm(dim)
        self.parametrization = parametrization
        if parametrization is None:
            self.head = nn.Linear(dim, vocab_size, bias=False)
        else:
            self.head = parametrization.make_readout(dim, vocab_size)
            for block in self.blocks:
                parametrization.rescale_scores(block.mixer, dim)
        if tie:
            self.head.weight = self.embedding.weight
        self.dropout = dropout
        initialize_parameters(self, seed, init_std, qk_gain)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        positions: Tensor | TokenPositions | None = None,
        mask: Mask | None = None,
        caches: Sequence[Cache] | None = None,
        auxiliary_losses: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Compute logits. `positions` default to 0..T-1, or continue from the caches (one per layer).

        Layers add the losses of `auxiliary_weights` to `auxiliary_losses`; None computes none.
        """
        return self.compute_logits(
            self.compute_hidden(
                tokens_BT, positions=positions, mask=mask, caches=caches, auxiliary_losses=auxiliary_losses
            )
        )

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., M] to logits [..., vocabulary]."""
        logits = self.head(hidden)
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        return logits if self.logit_cap is None else self.logit_cap * torch.tanh(logits / self.logit_cap)

    def compute_hidden(
        self,
        tokens_BT: Tensor,
        *,
        positions: Tensor | TokenPositions | None = None,
        mask: Mask | None = None,
        caches: Sequence[Cache] | None = None,
        auxiliary_losses: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Compute the normalized last hidden states [B, T, M], the input of the output head."""
        x = self.embedding(tokens_BT)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        n_past = len(caches[0]) if caches else 0
        n_new = tokens_BT.shape[1]
        token_positions = (
            TokenPositions.continue_from(n_past, n_new, x.device) if positions is None else positions
        )
        token_positions = (
            TokenPositions(token_positions) if isinstance(token_positions, Tensor) else token_positions
        )
        self.require_equal_rows(mask, token_positions)
        if self.positions is not None:
            x = x + self.positions(token_positions.position_ids, n_past + n_new).to(x.dtype)
        if self.dropout:
            x = F.dropout(x, self.dropout, self.training)
        shared_tensors: SharedTensors = {} if self.values is None else {"values": self.values(tokens_BT)}
        stream: Any = x if self.reads is None else self.reads.begin(x)
        for layer, block in enumerate(self.blocks):
            optional: dict[str, Any] = {"shared_tensors": shared_tensors} if block.uses_shared else {}
            if block.has_auxiliary_losses:
                optional["auxiliary_losses"] = auxiliary_losses
            cache = caches[layer] if caches else None
            stream = block(stream, positions=token_positions, mask=mask, cache=cache, **optional)
        return self.norm(stream if self.reads is None else self.reads(stream))

    def require_equal_rows(self, mask: Mask | None, positions: TokenPositions | None = None) -> None:
        """Check that no row of a batch depends on the length of another.

        Raises:
            Unsupported: A data mask, or rows with positions of their own, if a layer changes with the length.
        """
        if self.changes_with_length and (
            mask is not None or (positions is not None and len(positions.position_ids) > 1)
        ):
            raise Unsupported(
                "position=rope_dynamic_ntk, like any layer that changes with the sequence length, reads that "
                "of the longest row, so padded and packed rows would change with their batch: use rows of "
                "equal length without documents, or another position"
            )

    def state_size(self) -> int:
        """Bytes cached per token, summed over layers."""
        return sum(block.mixer.state_size() for block in self.blocks)

    def carried_size(self) -> int:
        """Bytes cached at a fixed size, in addition to the per-token states, summed over layers."""
        return sum(Capabilities.from_part(block.mixer).carried_size() for block in self.blocks)


def _require_masks(mixers: Sequence[Any]) -> None:
    """Raise ValueError for attention without a mask; mask=full is the explicit choice of future leakage."""
    for layer, mixer in enumerate(mixers):
        if isinstance(mixer, Attention) and mixer.mask is None:
            raise ValueError(
                f"model.attention.masks of layer {layer} is empty, so every token would see the tokens that "
                "it predicts: add a mask, as in mask=causal, or set mask=full if that is intended"
            )


def _collect_auxiliary_weights(mixers: Sequence[Any]) -> dict[str, float]:
    """Map each auxiliary loss, summed over layers, to its weight in training."""
    weights: dict[str, float] = {}
    for mixer in mixers:
        for name, weight in Capabilities.from_part(mixer).auxiliary_losses.items():
            if name in RESERVED_NAMES:
                raise ValueError(f"an auxiliary loss cannot be named {name}: runs record another value by it")
            if weights.setdefault(name, weight) != weight:
                raise ValueError(f"layers weight {name} by {weights[name]} and by {weight}: use one weight")
    return weights


def _require_shared_writers(mixers: Sequence[Any]) -> None:
    available: set[str] = set()
    for layer, mixer in enumerate(mixers):
        capabilities = Capabilities.from_part(mixer)
        available.update(capabilities.writes_shared)
        missing = [name for name in capabilities.reads_shared if name not in available]
        if missing:
            raise ValueError(
                f"layer {layer} reads {' and '.join(missing)}, which no earlier layer writes: change "
                "model.layers (writes_shared_kv: true writes keys)"
            )
