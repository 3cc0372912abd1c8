"""Rotary positions (RoFormer, Su et al. 2021, arXiv 2104.09864, eq. 15), in the split-halves pairing of
Llama checkpoints.

Feature f of the first half is paired with feature f of the second, not with its neighbour: weights made for
the interleaved pairing need a permutation. Long-context variants change the frequencies through `scaling`;
YaRN's magnitude sits in cos and sin, so the softmax scale belongs to the score axis alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from attnlab.attention.contracts import Capabilities

Table = tuple[Tensor, Tensor]


class Scaling(Protocol):
    """(frequencies [R / 2], base, positions) -> (frequencies, magnitude); hashable, like what it is part of.
    One that looks at the positions declares `changes_with_length` (`contracts.Capabilities`).
    """

    def __call__(self, frequencies: Tensor, base: float, positions: Tensor, /) -> tuple[Tensor, float]: ...


def identity(x_BHTD: Tensor) -> Tensor:
    """No rotation."""
    return x_BHTD


@final
@dataclass(frozen=True)
class Rope:
    """Rotation by position * base^(-2f/R) of the first R = fraction * D features; the others stay."""

    base: float = 10000.0
    fraction: float = 1.0
    scaling: Scaling | None = None

    @property
    def changes_with_length(self) -> bool:
        """As the scaling does."""
        return Capabilities.of(self.scaling).changes_with_length

    def __call__(self, positions_BT: Tensor) -> "Turn":
        """positions [B or 1, T] integers. Angles are computed in float32 (float64 for float64 input):
        bfloat16 would lose whole turns. ValueError, when it turns, where R is odd or zero.
        """

        def table(width: int, dtype: torch.dtype) -> Table:
            exact = torch.promote_types(dtype, torch.float32)
            steps = torch.arange(0, width, 2, device=positions_BT.device, dtype=exact)
            frequencies = self.base ** (-steps / width)
            magnitude = 1.0
            if self.scaling is not None:
                frequencies, magnitude = self.scaling(frequencies, self.base, positions_BT)
            angles = positions_BT[:, None, :, None].to(exact) * frequencies
            cos = angles.cos() * magnitude
            sin = angles.sin() * magnitude
            return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)

        return Turn(self.fraction, table)


@final
class Turn:
    """What `Rope` makes: a function of x that keeps its tables, one per width and dtype."""

    def __init__(self, fraction: float, table: Callable[[int, torch.dtype], Table]) -> None:
        self.fraction = fraction
        self.table = table
        self.tables: dict[tuple[int, torch.dtype], Table] = {}

    def __call__(self, x_BHTD: Tensor) -> Tensor:
        """x, turned."""
        width = round(x_BHTD.shape[-1] * self.fraction)
        if width < 2 or width % 2:
            raise ValueError(
                f"rotary needs an even number of features to turn, got {width} "
                f"(fraction {self.fraction} of a head width of {x_BHTD.shape[-1]}): "
                "change the head width or model.attention.rotary.fraction"
            )
        cos, sin = self.of(width, x_BHTD.dtype)
        turning = x_BHTD if self.fraction == 1.0 else x_BHTD[..., :width]
        halves = turning.roll(width // 2, dims=-1)
        turned = torch.addcmul(turning * cos, halves, sin)  # first half: the other with a minus
        return turned if self.fraction == 1.0 else torch.cat((turned, x_BHTD[..., width:]), dim=-1)

    def of(self, width: int, dtype: torch.dtype) -> Table:
        """Cosines, and sines with a minus in the first half: each [B or 1, 1, T, width]."""
        if (width, dtype) not in self.tables:
            self.tables[width, dtype] = self.table(width, dtype)
        return self.tables[width, dtype]

    def at(self, n: int) -> "Turn":
        """That of position number n alone, cut out of these tables."""

        def cut(width: int, dtype: torch.dtype) -> Table:
            cos, sin = self.of(width, dtype)
            return cos.narrow(2, n, 1), sin.narrow(2, n, 1)

        return Turn(self.fraction, cut)
