"""Scalings of rotary frequencies for contexts beyond the training length: parts of `Rope`, compared by value.

Each maps (frequencies [R / 2], base, positions) to (frequencies, magnitude), fastest feature first.
"""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Interpolation:
    """Position interpolation by `factor` (PI, Chen et al. 2023, arXiv 2306.15595, eq. 3)."""

    factor: float

    def __post_init__(self) -> None:
        _require_factor(self.factor)

    def __call__(self, frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        """Divide all frequencies by `factor`."""
        return frequencies / self.factor, 1.0


@final
@dataclass(frozen=True)
class Ntk:
    """base * factor^(R / (R - 2)): slow features stretched by `factor`, fast ones unchanged.

    Source: NTK-aware scaling, YaRN paper eq. 16.
    """

    factor: float

    def __post_init__(self) -> None:
        _require_factor(self.factor)

    def __call__(self, frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        """Stretch each frequency, slower ones more."""
        return _stretch_frequencies(frequencies, float(self.factor)), 1.0


@final
@dataclass(frozen=True)
class DynamicNtk:
    """NTK with factor = longest current position / training length, at least 1 (YaRN paper §3.3).

    The factor changes with the length, so keys rotated earlier would be wrong later: no cache may hold them.
    All rows of a batch have the factor of the longest: a model accepts no padded or packed rows.
    """

    trained: int
    changes_with_length = True

    def __post_init__(self) -> None:
        if self.trained < 1:
            raise ValueError(f"dynamic_ntk needs trained >= 1, got {self.trained}")

    def __call__(self, frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        """Stretch as `Ntk`, by the longest of these positions."""
        longest = positions.amax() + 1 if positions.numel() else positions.new_zeros(())
        factor = (longest / self.trained).clamp(min=1).to(frequencies.dtype)
        return _stretch_frequencies(frequencies, factor), 1.0


@final
@dataclass(frozen=True)
class Yarn:
    """YaRN: features above `fast` turns over the training length stay, those below `slow` are interpolated.

    A ramp blends the features in between; `magnitude` None is 0.1 ln(factor) + 1. The paper's ramp is linear
    in the "turns". Released models compute it by the "index" of the feature, where `truncate` widens it to
    whole features: frequencies then differ by up to three quarters.

    Source: Peng et al. 2023, arXiv 2309.00071, eq. 22-23.
    """

    factor: float
    trained: int
    fast: float = 32.0
    slow: float = 1.0
    ramp: Literal["turns", "index"] = "turns"
    truncate: bool = True
    magnitude: float | None = None

    def __post_init__(self) -> None:
        if self.trained < 1 or not self.fast > self.slow > 0:
            raise ValueError(
                f"yarn needs trained >= 1 and fast > slow > 0, got {self.trained}, {self.fast}, {self.slow}"
            )
        _require_factor(self.factor)

    def __call__(self, frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        """Blend the frequencies; the magnitude enlarges q and k."""
        magnitude = 0.1 * math.log(self.factor) + 1.0 if self.magnitude is None else self.magnitude
        if self.ramp == "turns":
            return _blend_frequencies(frequencies, self.factor, self.trained, self.slow, self.fast), magnitude
        return self._blend_by_index(frequencies, base), magnitude

    def _blend_by_index(self, frequencies: Tensor, base: float) -> Tensor:
        """Blend with a ramp between the features whose turns are `fast` and `slow`."""
        if not base > 1:
            raise ValueError(f"yarn by index needs a RoPE base above 1, got {base}")
        count = len(frequencies)
        width = 2 * len(frequencies)
        first, last = (
            width * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.fast, self.slow)
        )
        if self.truncate:
            first = math.floor(first)
            last = math.ceil(last)
        first = max(first, 0)
        last = min(last, width - 1)
        span = last - first if last != first else 0.001
        steps = torch.arange(count, device=frequencies.device, dtype=frequencies.dtype)
        ramp = ((steps - first) / span).clamp(0, 1)
        return frequencies * (1 - ramp + ramp / self.factor)


@final
@dataclass(frozen=True)
class Llama3:
    """Llama 3.1: features above `high` turns over the training length stay, those below `low` are divided.

    The divisor is `factor`. In between, the frequency is blended linearly in the number of turns.
    """

    factor: float
    trained: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        if self.trained < 1 or not self.high > self.low > 0:
            raise ValueError(
                f"llama3 needs trained >= 1 and high > low > 0, got {self.trained}, {self.high}, {self.low}"
            )
        _require_factor(self.factor)

    def __call__(self, frequencies: Tensor, base: float, positions: Tensor) -> tuple[Tensor, float]:
        """Blend the frequencies, with magnitude 1."""
        return _blend_frequencies(frequencies, self.factor, self.trained, self.low, self.high), 1.0


def _stretch_frequencies(frequencies: Tensor, factor: float | Tensor) -> Tensor:
    """Divide the slowest by `factor`, leave the fastest, stretch geometrically in between."""
    width = 2 * len(frequencies)
    power = torch.arange(0, width, 2, device=frequencies.device, dtype=frequencies.dtype) / max(width - 2, 1)
    return frequencies * factor**-power


def _blend_frequencies(frequencies: Tensor, factor: float, trained: int, slow: float, fast: float) -> Tensor:
    """Divide by `factor` below `slow` turns over the training length, leave those above `fast`.

    A ramp blends the frequencies in between.
    """
    turns = trained * frequencies / (2 * math.pi)
    ramp = ((turns - slow) / (fast - slow)).clamp(0, 1)
    return frequencies * (ramp + (1 - ramp) / factor)


def _require_factor(factor: float) -> None:
    if not factor >= 1:
        raise ValueError(f"RoPE scaling needs factor >= 1, got {factor}")
