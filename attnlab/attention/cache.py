"""Caches: what a layer keeps of past tokens. They store a heads' `State` and the keys' positions, and know nothing else.

Because positions travel with the keys, left padding, packed documents and dropped keys need no special case here.
`append` returns everything that the new queries may see, the new keys included.
"""

import torch
from torch import Tensor

State = tuple[Tensor, ...]  # the sequence is dim 2 of every member; [B, heads or 1, S, width]


class Growing:
    """Concatenates: simple, exact, and copies the past at every step."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.positions: Tensor | None = None

    def append(self, state: State, positions_BT: Tensor) -> tuple[State, Tensor]:
        """Adds T new keys; returns the whole state and key positions [B or 1, S]."""
        if self.state is None:
            self.state, self.positions = state, positions_BT
        else:
            self.state = tuple(torch.cat(pair, dim=2) for pair in zip(self.state, state, strict=True))
            rows = max(len(self.positions), len(positions_BT))
            both = (self.positions.expand(rows, -1), positions_BT.expand(rows, -1))
            self.positions = torch.cat(both, dim=1)
        return self.state, self.positions

    def __len__(self) -> int:
        """Tokens seen so far: the next token's position in an unpadded sequence."""
        return 0 if self.positions is None else self.positions.shape[1]

    def live_bytes(self) -> int:
        """Bytes of the states held, positions left out (they are shared by all heads and tiny)."""
        return 0 if self.state is None else sum(part.numel() * part.element_size() for part in self.state)
