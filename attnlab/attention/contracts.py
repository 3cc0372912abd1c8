"""The contracts of attention's seams: what each part is given, what it answers, in which shapes.

B batch, T queries, S keys, H query heads, G key/value heads, D query/key width, V value width, M model width.
A part that cannot do what is asked raises `Unsupported`; nothing falls back to another part.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

State = tuple[
    Tensor, ...
]  # what heads cache; the sequence is dim 2 of every member: [B, heads or 1, S, width]
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Rotate = Callable[[Tensor], Tensor]
Kernel = Callable[..., "Attended"]


class Unsupported(ValueError):
    """What was asked for cannot be done by this part; the message says why and what can."""


class Attended(NamedTuple):
    """out [B, H, T, V]; lse [B, H, T] log of the softmax denominator; weights [B, H, T, S]. The last two if
    needed.
    """

    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None
