"""Largest relative difference between outputs, its place in the output, and the errors of a check."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST_SCALE = 1e-6  # smaller expected values count as this: rounding of a zero is no deviation
AXES = {
    2: ("token", "channel"),
    3: ("row", "token", "channel"),
    4: ("row", "token", "head", "channel"),
}


class Measured(NamedTuple):
    """The number that a passed check measured, and its description."""

    value: float
    detail: str


class CheckSkipped(Exception):
    """The check cannot apply to the module; the message is the reason."""


class CheckFailed(AssertionError):
    """An output differs from the expected one by more than the tolerance."""

    def __init__(self, case: str, position: str = "", largest_difference: float | None = None) -> None:
        size = "" if largest_difference is None else f", relative difference {largest_difference:.2g}"
        super().__init__(f"{case}{f' ({position}{size})' if position else size}")
        self.case, self.position, self.largest_difference = case, position, largest_difference


@dataclass
class Deviation:
    """Largest difference over the comparisons of one check, relative to the largest expected value.

    Smaller expected values than `smallest_scale` count as that.
    """

    tolerance: float
    smallest_scale: float = SMALLEST_SCALE
    largest: float = 0.0

    def compare(
        self, actual: Tensor, expected: Tensor, case: str, first_token: int = 0, whole: Tensor | None = None
    ) -> None:
        """Compare two outputs; a part begins at `first_token`, and differences are relative to the whole.

        Raises:
            CheckFailed: shapes differ, a value is not finite, or the difference exceeds the tolerance.
        """
        if actual.shape != expected.shape:
            raise CheckFailed(f"{case}: shape {[*actual.shape]}, expected {[*expected.shape]}")
        if expected.numel() == 0:
            return
        difference = (actual.double() - expected.double()).abs()
        scale = (expected if whole is None else whole).double().abs().max().item()
        is_finite = difference.isfinite()
        ranked = difference.masked_fill(~is_finite, torch.inf)
        position = _describe_position(ranked, first_token)
        if not bool(is_finite.all()):
            raise CheckFailed(f"{case}: NaN or infinity", position)
        self.add(difference.max().item() / max(scale, self.smallest_scale), case, position)

    def add(self, difference: float, case: str, position: str = "") -> None:
        """Add a relative difference that was computed elsewhere."""
        if not difference <= self.tolerance:
            raise CheckFailed(case, position, difference)
        self.largest = max(self.largest, difference)

    def report(self) -> Measured:
        """Return the largest difference with its description."""
        text = f"largest relative difference {self.largest:.1e} (tolerance {self.tolerance:.0e})"
        return Measured(self.largest, text)


def _describe_position(difference: Tensor, first_token: int) -> str:
    """Describe the place of the largest value, as in `row 0, token 2, channel 5`."""
    indices = [int(index) for index in torch.unravel_index(difference.argmax(), difference.shape)]
    axes = AXES.get(len(indices), tuple(f"axis {axis}" for axis in range(len(indices))))
    return ", ".join(
        f"{axis} {index + (first_token if axis == 'token' else 0)}"
        for axis, index in zip(axes, indices, strict=True)
    )
