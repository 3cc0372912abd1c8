"""Cache size, FLOPs and memory reads of an attention layer, from those of its parts."""

from abc import ABC

from torch import nn

from attnlab.attention.contracts import Capabilities, Epilogue, Heads, Normalizer
from attnlab.attention.selection import BlockSelection
from attnlab.attention.stateful.forget_gate import ForgetGate


class LayerCosts(nn.Module, ABC):
    """Costs of a layer's parts; costs that a custom part does not declare are unknown and not counted."""

    heads: Heads
    epilogue: Epilogue | None
    forgetting: ForgetGate | None
    selection: BlockSelection | None
    normalizer: Normalizer | None

    def state_size(self) -> int:
        """Bytes cached per token in this layer."""
        return self.heads.state_size() + (0 if self.forgetting is None else self.forgetting.state_size())

    def carried_size(self) -> int:
        """Bytes carried in addition, whatever the length of the sequence."""
        parts = (self.heads, self.epilogue, self.forgetting)
        return sum(Capabilities.from_part(part).carried_size() for part in parts)

    def flops(self, n_queries: int, n_keys: int, absorbed: bool = False) -> int:
        """FLOPs of heads and scores, `n_queries` queries over `n_keys` keys; a multiplication counts two."""
        heads = self.heads
        total = heads.flops(n_queries, n_keys, absorbed)
        width = heads.score_dim
        total += Capabilities.from_part(self.normalizer).flops(heads.n_heads, n_queries, n_keys)
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
