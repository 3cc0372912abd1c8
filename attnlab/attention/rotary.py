"""Rotary positions (RoFormer, Su et al. 2021, arXiv 2104.09864, eq. 15), in the split-halves pairing of
Llama checkpoints.

`rotary(positions, ...)` returns a function that turns q or k. Feature f of the first half is paired with
feature f of the second, not with its neighbour: weights made for the interleaved pairing need a
permutation. Long-context variants change the frequencies through `scaling`; YaRN's magnitude sits in cos
and sin, so the softmax scale belongs to the score axis alone.
"""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

Table = tuple[Tensor, Tensor]
Scaling = Callable[
    [Tensor, float, Tensor], tuple[Tensor, float]
]  # (frequencies, base, positions) -> (frequencies, magnitude)


def identity(x_BHTD: Tensor) -> Tensor:
    """No rotation."""
    return x_BHTD


def rotary(
    positions_BT: Tensor, base: float = 10000.0, fraction: float = 1.0, scaling: Scaling | None = None
) -> "Turn":
    """Rotation by position * base^(-2f/R) of the first R = fraction * D features; the others stay.

    positions [B or 1, T] integers. Angles are computed in float32 (float64 for float64 input): bfloat16
    would lose whole turns. ValueError where R is odd or zero.
    """

    def table(width: int, dtype: torch.dtype) -> Table:
        exact = torch.promote_types(dtype, torch.float32)
        steps = torch.arange(0, width, 2, device=positions_BT.device, dtype=exact)
        frequencies, magnitude = base ** (-steps / width), 1.0
        if scaling is not None:
            frequencies, magnitude = scaling(frequencies, base, positions_BT)
        angles = positions_BT[:, None, :, None].to(exact) * frequencies
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)

    return Turn(fraction, table)


@final
class Turn:
    """What `rotary` makes: a function of x that keeps its tables, one per width and dtype."""

    def __init__(self, fraction: float, table: Callable[[int, torch.dtype], Table]) -> None:
        self.fraction, self.table = fraction, table
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

    def one(self, n: int) -> "Turn":
        """That of position number n alone, cut out of these tables."""

        def cut(width: int, dtype: torch.dtype) -> Table:
            cos, sin = self.of(width, dtype)
            return cos.narrow(2, n, 1), sin.narrow(2, n, 1)

        return Turn(self.fraction, cut)


def interpolation(factor: float) -> Scaling:
    """Positions squeezed by `factor` (PI, Chen et al. 2023, arXiv 2306.15595, eq. 3)."""

    def interpolate(frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        return frequencies / factor, 1.0

    return _checked(factor, interpolate)


def ntk(factor: float) -> Scaling:
    """base * factor^(R / (R - 2)): slow features stretched by `factor`, fast ones left (NTK-aware, YaRN
    paper eq. 16).
    """

    def stretch(frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        width = 2 * len(frequencies)
        power = torch.arange(0, width, 2, device=frequencies.device, dtype=frequencies.dtype) / max(
            width - 2, 1
        )
        return frequencies * float(factor) ** -power, 1.0

    return _checked(factor, stretch)


def dynamic_ntk(trained: int) -> Scaling:
    """NTK with factor = longest position now / trained length, at least 1 (YaRN paper §3.3).

    The factor changes with the length, so keys rotated earlier would be wrong later: a cache refuses it
    (`changes_with_length`).
    """
    if trained < 1:
        raise ValueError(f"dynamic_ntk needs trained >= 1, got {trained}")

    def stretch(frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        factor = ((positions.amax() + 1) / trained).clamp(min=1).to(frequencies.dtype)
        width = 2 * len(frequencies)
        power = torch.arange(0, width, 2, device=frequencies.device, dtype=frequencies.dtype) / max(
            width - 2, 1
        )
        return frequencies * factor**-power, 1.0

    stretch.changes_with_length = True
    return stretch


def yarn(factor: float, trained: int, fast: float = 32.0, slow: float = 1.0) -> Scaling:
    """Features that turn more than `fast` times over the trained length stay, those below `slow` are
    interpolated, a ramp between; magnitude 0.1 ln(factor) + 1 (YaRN, Peng et al. 2023, arXiv 2309.00071,
    eq. 22-23).
    """
    if trained < 1 or not fast > slow > 0:
        raise ValueError(f"yarn needs trained >= 1 and fast > slow > 0, got {trained}, {fast}, {slow}")

    def blend(frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        turns = trained * frequencies / (2 * math.pi)
        keep = ((turns - slow) / (fast - slow)).clamp(0, 1)
        return frequencies * (keep + (1 - keep) / factor), 0.1 * math.log(factor) + 1.0

    return _checked(factor, blend)


def llama3(factor: float, trained: int, low: float = 1.0, high: float = 4.0) -> Scaling:
    """As in Llama 3.1: features that turn more than `high` times over the trained length stay, those below
    `low` are interpolated, and between them the frequency is blended linearly in the number of turns.
    """
    if trained < 1 or not high > low > 0:
        raise ValueError(f"llama3 needs trained >= 1 and high > low > 0, got {trained}, {high}, {low}")

    def blend(frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        turns = trained * frequencies / (2 * math.pi)
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return frequencies * (keep + (1 - keep) / factor), 1.0

    return _checked(factor, blend)


def _checked(factor: float, scaling: Scaling) -> Scaling:
    if not factor >= 1:
        raise ValueError(f"rotary scaling needs factor >= 1, got {factor}")
    return scaling
