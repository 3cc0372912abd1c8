"""Transformer layer: a mixer, then an FFN, each added to the residual stream, with its norm placement."""

from collections.abc import Callable
from typing import Any, Literal, final

import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.contracts import Capabilities
from attnlab.model.residual import Connection


@final
class Block(nn.Module):
    """Residual layer: x + mixer(norm(x)), then x + ffn(norm(x)).

    Args:
        norms: "pre" normalizes the input of each part, "post" its output before the addition (OLMo 2, arXiv
            2501.00656, §3.1), "sandwich" both (Gemma 2, arXiv 2408.00118, §2).
        parallel: Both parts read the same x: x + mixer(norm(x)) + ffn(norm2(x)) (GPT-NeoX, arXiv 2204.06745,
            §2.1).
        shared_norm: In a parallel block, the FFN reads the mixer's normalized input.
        multiplier: Factor of each part's output.
        residual: Makes a `Connection` per part, through which the part reads the stream and adds to it. x is
            then the stream of that connection. In a parallel block the FFN reads the stream that the mixer
            read, and adds to the one after it.

    Raises:
        ValueError: `shared_norm` where a block does not have two input norms, or where the FFN needs a
            connection of its own.
    """

    def __init__(
        self,
        mixer: nn.Module,
        ffn: nn.Module,
        norm: Callable[[int], nn.Module],
        dim: int,
        dropout: float,
        residual: Callable[[int], Connection] | None = None,
        norms: Literal["pre", "post", "sandwich"] = "pre",
        parallel: bool = False,
        shared_norm: bool = False,
        multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        if shared_norm and (norms == "post" or not parallel):
            raise ValueError("shared_norm: true needs parallel: true and norms: pre or sandwich")
        self.mixer_reads = residual(dim) if residual else None
        self.ffn_reads = residual(dim) if residual and not shared_norm else None
        if shared_norm and self.mixer_reads is not None and not self.mixer_reads.serves_parts:
            raise ValueError(
                f"shared_norm: true leaves the FFN without {type(self.mixer_reads).__name__} of its own: set "
                "shared_norm: false or residual=sum"
            )
        has_input_norm = norms != "post"
        has_output_norm = norms != "pre"
        self.mixer_norm = norm(dim) if has_input_norm else None
        self.mixer = mixer
        self.ffn_norm = norm(dim) if has_input_norm and not shared_norm else None
        self.ffn = ffn
        self.mixer_after, self.ffn_after = (norm(dim) if has_output_norm else None for _ in range(2))
        self.parallel = parallel
        self.shared_norm = shared_norm
        self.dropout = dropout
        self.multiplier = multiplier
        self.is_plain = norms == "pre" and not (parallel or residual or dropout) and multiplier == 1.0
        capabilities = Capabilities.from_part(mixer)
        self.uses_shared = bool(capabilities.reads_shared or capabilities.writes_shared)
        self.has_auxiliary_losses = bool(capabilities.auxiliary_losses)

    def forward(self, x: Any, **context: Any) -> Any:
        """Pass `context` to the mixer: positions, mask, cache, and what it declares to use beyond these."""
        if self.is_plain:  # the same without branches, whose time shows in a decoding step
            assert self.mixer_norm is not None
            assert self.ffn_norm is not None
            x = x + self.mixer(self.mixer_norm(x), **context)
            return x + self.ffn(self.ffn_norm(x))
        part_input = self._prepare_input(x, self.mixer_reads, self.mixer_norm)
        mixed_x = self._add_to_residual(
            x, self.mixer(part_input, **context), self.mixer_reads, self.mixer_after
        )
        if not self.shared_norm:
            part_input = self._prepare_input(x if self.parallel else mixed_x, self.ffn_reads, self.ffn_norm)
        connection = self.mixer_reads if self.shared_norm else self.ffn_reads
        return self._add_to_residual(mixed_x, self.ffn(part_input), connection, self.ffn_after)

    @staticmethod
    def _prepare_input(x: Any, connection: Connection | None, norm: nn.Module | None) -> Tensor:
        x = x if connection is None else connection(x)
        return x if norm is None else norm(x)

    def _add_to_residual(
        self, x: Any, output: Tensor, connection: Connection | None, norm: nn.Module | None
    ) -> Any:
        if norm is not None:
            output = norm(output)
        if self.multiplier != 1.0:
            output = output * self.multiplier
        if self.dropout:
            output = F.dropout(output, self.dropout, self.training)
        return x + output if connection is None else connection.add(x, output)
