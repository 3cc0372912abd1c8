"""Where the tokens of one forward pass are, made once: layers that rotate alike share their tables."""

from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import Tensor

from attnlab.attention.rotary import Rotate, identity


@final
class Positions:
    """`of` [B or 1, T]: absolute positions, negative for padding. `consecutive`: they simply go on from the
    cache, so keys are the past followed by the queries' own, in order.
    """

    def __init__(self, of: Tensor, consecutive: bool = False) -> None:
        self.of, self.consecutive = of, consecutive
        self.of_queries = of[:, None, :, None]  # as kernels want them
        self._rotations: dict[object, Rotate] = {}

    @classmethod
    def following(cls, past: int, count: int, device: torch.device) -> "Positions":
        """The `count` positions after `past` tokens."""
        return cls(torch.arange(past, past + count, device=device)[None], consecutive=True)

    def rotation(self, rotary: Callable[[Tensor], Rotate] | None, key: object) -> Rotate:
        """What `rotary` makes of these positions; layers that give the same `rotation_key` share it."""
        if rotary is None:
            return identity
        if key not in self._rotations:
            self._rotations[key] = rotary(self.of)
        return self._rotations[key]


def rotation_key(rotary: Callable[[Tensor], Rotate] | None) -> object:
    """Equal for equal partial applications; a layer makes it once, since decoding asks at every step."""
    if not isinstance(rotary, partial):
        return rotary
    return (rotary.func, rotary.args, tuple(sorted(rotary.keywords.items(), key=lambda item: item[0])))
