"""What an attention layer caches, computes and reads, of what its parts do."""

from abc import ABC

from torch import nn

from attnlab.attention.contracts import Capabilities, Epilogue, Heads, Normaliser
from attnlab.attention.past.forgetting import Forgetting
from attnlab.attention.selection import Blocks


class Costs(nn.Module, ABC):
    """Of the parts of a layer; none is known for those that a user wrote and that say nothing."""

    heads: Heads
    epilogue: Epilogue | None
    forgetting: Forgetting | None
    selection: Blocks | None
    normaliser: Normaliser | None

    def state_size(self) -> int:
        """Bytes cached per token in this layer."""
        return self.heads.state_size() + (0 if self.forgetting is None else self.forgetting.state_size())

    def carried_size(self) -> int:
        """Bytes carried beside them, however long the text."""
        parts = (self.heads, self.epilogue, self.forgetting)
        return sum(Capabilities.of(part).carried_size() for part in parts)

    def flops(self, new: int, held: int, absorbed: bool = False) -> int:
        """Of heads and scores: `new` queries over `held` keys, two a multiplication."""
        heads = self.heads
        own = heads.flops(new, held, absorbed)
        width = heads.score_dim
        own += Capabilities.of(self.normaliser).flops(heads.n_heads, new, held)
        if self.forgetting is not None:
            own += self.forgetting.flops(new, held, 1 if absorbed else heads.n_kv_heads)
            width += 2 * (heads.n_heads // heads.n_kv_heads)  # features of a key, two for each query head
        if self.selection is not None:
            own += self.selection.flops(new, held, heads.n_heads, width)
        return own

    def read_width(self, absorbed: bool = False) -> int:
        """Numbers that attention reads per key."""
        own = self.heads.read_width(absorbed)
        return own if self.forgetting is None else own + 2 * self.heads.n_heads
