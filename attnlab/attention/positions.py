"""Where the tokens of one forward pass are, made once: layers that rotate alike share their tables."""

from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import Tensor

from attnlab.attention.contracts import Rotate
from attnlab.attention.rotary import Turn, identity


@final
class Positions:
    """`of` [B or 1, T]: absolute positions, negative for padding. `consecutive`: they simply go on from the
    cache, so keys are the past followed by the queries' own, in order.
    """

    def __init__(self, of: Tensor, consecutive: bool = False) -> None:
        self.of, self.consecutive = of, consecutive
        self.of_queries = of[:, None, :, None]  # as kernels want them
        self._rotations: dict[object, Rotate] = {}
        self._among: tuple[Positions, int] | None = None

    @classmethod
    def following(cls, past: int, count: int, device: torch.device) -> "Positions":
        """The `count` positions after `past` tokens."""
        return cls(torch.arange(past, past + count, device=device)[None], consecutive=True)

    def rotation(self, rotary: Callable[[Tensor], Rotate] | None, key: object) -> Rotate:
        """What `rotary` makes of these positions; layers that give the same `rotation_key` share it."""
        if rotary is None:
            return identity
        if key not in self._rotations:
            self._rotations[key] = self._made(rotary, key)
        return self._rotations[key]

    def one(self, n: int) -> "Positions":
        """Position number n alone; its rotations are cut out of these, so a step need not make any."""
        alone = Positions(self.of.narrow(1, n, 1), self.consecutive)
        alone._among = self, n
        return alone

    def _made(self, rotary: Callable[[Tensor], Rotate], key: object) -> Rotate:
        if self._among is None:
            return rotary(self.of)
        those, n = self._among
        turn = those.rotation(rotary, key)
        return turn.one(n) if isinstance(turn, Turn) else rotary(self.of)


def rotation_key(rotary: Callable[[Tensor], Rotate] | None) -> object:
    """Equal for equal partial applications; a layer makes it once, since decoding asks at every step."""
    if not isinstance(rotary, partial):
        return rotary
    return (rotary.func, rotary.args, tuple(sorted(rotary.keywords.items(), key=lambda item: item[0])))
