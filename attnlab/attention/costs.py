"""Cache size, FLOPs and memory reads of an attention layer, from those of its parts."""

from abc import ABC
from typing import Any

from torch import nn

from attnlab.attention.contracts import Capabilities, Epilogue, Heads, Normalizer, ScoreMap
from attnlab.attention.selection import BlockSelection
from attnlab.attention.stateful.forget_gate import ForgetGate


class LayerCosts(nn.Module, ABC):
    """Costs of a layer's parts; costs that a custom part does not declare are unknown and not counted."""

    heads: Heads
    epilogue: Epilogue | None
    forgetting: ForgetGate | None
    selection: BlockSelection | None
    score_map: ScoreMap | None
    query_lookback: int
    token_state_parts: tuple[Any, ...]
    normalizer: Normalizer | None

    def state_size(self) -> int:
        """Bytes cached per token in this layer."""
        return self.heads.state_size() + sum(part.state_size() for part in self.token_state_parts)

    def carried_size(self) -> int:
        """Bytes carried in addition, whatever the length of the sequence."""
        parts = (self.heads, self.epilogue, self.forgetting, self.score_map)
        size = sum(Capabilities.from_part(part).carried_size() for part in parts)
        if self.query_lookback:
            width = self.heads.n_heads * self.heads.score_dim
            size += self.query_lookback * width * next(self.heads.projection.parameters()).element_size()
        return size

    def flops(self, n_queries: int, n_keys: int, absorbed: bool = False) -> int:
        """FLOPs of heads and scores, `n_queries` queries over `n_keys` keys; a multiplication counts two."""
        heads = self.heads
        total = heads.flops(n_queries, n_keys, absorbed)
        width = heads.score_dim
        for part in (self.normalizer, self.score_map):
            total += Capabilities.from_part(part).flops(heads.n_heads, n_queries, n_keys)
        total += 2 * heads.n_heads * self.query_lookback * n_keys * heads.score_dim
        if self.forgetting is not None:
            total += self.forgetting.flops(n_queries, n_keys, 1 if absorbed else heads.n_kv_heads)
            width += 2 * (heads.n_heads // heads.n_kv_heads)  # features of a key, two for each query head
        if self.selection is not None:
            total += self.selection.flops(n_queries, n_keys, heads.n_heads, width)
        return total

    def read_width(self, absorbed: bool = False) -> int:
        """Numbers that attention reads per key."""
        width = self.heads.read_width(absorbed)
        return width if self.forgetting is None else width + 2 * self.heads.n_heads
