"""One layer of a model: a mixer, then an FFN, each written into the residual stream; where norms stand."""

from collections.abc import Callable
from typing import Any, Literal, final

import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention.contracts import Capabilities
from attnlab.model.residual import DepthAttention


@final
class Block(nn.Module):
    """x + mixer(norm(x)), then x + ffn(norm(x)).

    `norms`: "pre" is of what a part reads, "post" of what it writes before that is added (OLMo 2, arXiv
    2501.00656, §3.1), "sandwich" of both (Gemma 2, arXiv 2408.00118, §2). `parallel`: the FFN reads what the
    mixer reads, x + mixer(norm(x)) + ffn(norm2(x)) (GPT-NeoX, arXiv 2204.06745, §2.1); with `shared_norm`
    the same norm of it. What is written is multiplied by `multiplier`. With `residual` each part reads what
    that makes of all that was written before, and x is a list of it. ValueError for a norm that is shared
    where there are no two of it.
    """

    def __init__(
        self,
        mixer: nn.Module,
        ffn: nn.Module,
        norm: Callable[[int], nn.Module],
        dim: int,
        dropout: float,
        residual: Callable[[int], DepthAttention] | None = None,
        norms: Literal["pre", "post", "sandwich"] = "pre",
        parallel: bool = False,
        shared_norm: bool = False,
        multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        if shared_norm and (norms == "post" or not parallel):
            raise ValueError("shared_norm needs parallel: true, and norms of what is read: pre or sandwich")
        self.mixer_reads = residual(dim) if residual else None
        self.ffn_reads = residual(dim) if residual and not shared_norm else None
        before = norms != "post"
        after = norms != "pre"
        self.mixer_norm = norm(dim) if before else None
        self.mixer = mixer
        self.ffn_norm = norm(dim) if before and not shared_norm else None
        self.ffn = ffn
        self.mixer_after, self.ffn_after = (norm(dim) if after else None for _ in range(2))
        self.parallel = parallel
        self.shared_norm = shared_norm
        self.dropout = dropout
        self.multiplier = multiplier
        self.plain = norms == "pre" and not (parallel or residual or dropout) and multiplier == 1.0
        declared = Capabilities.of(mixer)
        self.shares = bool(declared.reads or declared.publishes)

    def forward(self, x: Any, **context: Any) -> Any:
        """`context` is the mixer's: positions, mask, cache, and where it shares something, the channel."""
        if self.plain:  # as below, without its questions, which a decoding step would feel
            assert self.mixer_norm is not None
            assert self.ffn_norm is not None
            x = x + self.mixer(self.mixer_norm(x), **context)
            return x + self.ffn(self.ffn_norm(x))
        read = self._read(x, self.mixer_reads, self.mixer_norm)
        after = self._written(x, self.mixer(read, **context), self.mixer_after)
        if not self.shared_norm:
            read = self._read(x if self.parallel else after, self.ffn_reads, self.ffn_norm)
        return self._written(after, self.ffn(read), self.ffn_after)

    @staticmethod
    def _read(x: Any, reads: DepthAttention | None, norm: nn.Module | None) -> Tensor:
        x = x if reads is None else reads(x)
        return x if norm is None else norm(x)

    def _written(self, x: Any, written: Tensor, norm: nn.Module | None) -> Any:
        if norm is not None:
            written = norm(written)
        if self.multiplier != 1.0:
            written = written * self.multiplier
        if self.dropout:
            written = F.dropout(written, self.dropout, self.training)
        return x + written if self.mixer_reads is None else [*x, written]
