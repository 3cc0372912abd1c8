"""Where the tokens of one forward pass are, made once: layers that rotate alike share their tables."""

from typing import Any, final

import torch
from torch import Tensor

from attnlab.attention.contracts import Cache, Rotary, Rotate
from attnlab.attention.rotary import Turn, identity


@final
class Positions:
    """`of` [B or 1, T]: absolute positions, negative for padding. `consecutive`: they simply go on from the
    cache, so keys are the past followed by the queries' own, in order.
    """

    def __init__(self, of: Tensor, consecutive: bool = False, end: int | None = None) -> None:
        self.of = of
        self.consecutive = consecutive
        self._end = end
        self.of_queries = of[:, None, :, None]  # as kernels want them
        self._rotations: dict[Any, Rotate] = {}
        self._among: tuple[Positions, int] | None = None

    @classmethod
    def following(cls, past: int, count: int, device: torch.device) -> "Positions":
        """The `count` positions after `past` tokens."""
        return cls(torch.arange(past, past + count, device=device)[None], consecutive=True, end=past + count)

    @classmethod
    def of_pass(
        cls, positions: "Tensor | Positions | None", cache: Cache | None, x_BTM: Tensor
    ) -> "Positions":
        """Those that were given, or the ones that go on from the cache."""
        if positions is None:
            past = len(cache) if cache is not None else 0
            return cls.following(past, x_BTM.shape[1], x_BTM.device)
        return cls(positions) if isinstance(positions, Tensor) else positions

    def rotation(self, rotary: Rotary | None) -> Rotate:
        """What `rotary` makes of these positions; layers whose rotaries are equal share it."""
        if rotary is None:
            return identity
        key: Any = rotary
        try:
            rotate = self._rotations.get(key)
        except TypeError:  # it holds a list, say: layers that have the very same one share it
            key = id(rotary)
            rotate = self._rotations.get(key)
        if rotate is None:
            rotate = self._rotations[key] = self._rotation(rotary)
        return rotate

    @property
    def end(self) -> int:
        """One more than the last position."""
        if self._end is None:
            self._end = int(self.of.max()) + 1 if self.of.numel() else 0
        return self._end

    def at(self, n: int) -> "Positions":
        """Position number n alone; its rotations are cut out of these, so a step need not make any."""
        alone = Positions(self.of.narrow(1, n, 1), self.consecutive)
        alone._among = self, n
        return alone

    def _rotation(self, rotary: Rotary) -> Rotate:
        if self._among is None:
            return rotary(self.of)
        whole, n = self._among
        turn = whole.rotation(rotary)
        return turn.at(n) if isinstance(turn, Turn) else rotary(self.of)
