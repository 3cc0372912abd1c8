"""Sample of a ladder: paired differences by compute, and any weighted sum of their means with its noise.

The arrays may hold thousands of simulated ladders in front of the axis of sizes, so the code that decides a
real ladder is the one measured in `docs/calibration_ladders.md`.

Three or four seeds estimate their spread badly. So weights come from a smoothed noise, in which the variance
is a power of compute (fitted to all sizes, shrunk towards "equal everywhere"). The variance of a result comes
from each size's own spread with Satterthwaite's degrees of freedom (Biometrics Bulletin 2:110, 1946), and is
never below that of the smoothed noise. Weights from each size's own spread would make the 95% interval of a
slope miss in 7 to 14% of ladders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy import special

from attnlab.stats.evidence import (
    CONFIDENCE_LEVEL,
    IntervalResult,
    PairedDifferences,
    validate_finite,
    validate_fraction,
)

PRIOR_PRECISION = 4.0  # inverse prior variance of the exponent by which the log of the noise changes


@dataclass(frozen=True)
class SizeSample:
    """`x`: log10 of the training FLOPs of a run; `differences`: arm - baseline in nats, one per seed."""

    x: float
    differences: Sequence[float]


@dataclass(frozen=True)
class Estimate(IntervalResult):
    """Estimate with its t interval, whose ends are None where no noise is known."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class WeightedSum:
    """Weighted sums of size means: estimate, standard error, degrees of freedom; NaN without any noise."""

    estimate: np.ndarray
    se: np.ndarray
    df: np.ndarray

    def compute_half_width(self, tail: float) -> np.ndarray:
        """Half the width of the interval that leaves `tail` beyond each end."""
        return np.asarray(-special.stdtrit(self.df, tail) * self.se)

    def scale_by(self, factor: float) -> "WeightedSum":
        return WeightedSum(factor * self.estimate, abs(factor) * self.se, self.df)

    def to_estimate(self, level: float = CONFIDENCE_LEVEL) -> Estimate:
        """The estimate of a single ladder with its interval at `level`."""
        tail = (1 - validate_fraction(level, "level")) / 2
        estimate = float(self.estimate)
        half_width = float(self.compute_half_width(tail))
        if not np.isfinite(half_width):
            return Estimate(estimate, None, None)
        return Estimate(estimate, estimate - half_width, estimate + half_width)


@dataclass(frozen=True)
class LadderSample:
    """`x`, `n` [sizes], ascending; `means`, `variances` [..., sizes].

    An unknown variance is NaN: that of one seed, or of equal differences. The smoothed noise of the other
    sizes then replaces it.
    """

    x: np.ndarray
    n: np.ndarray
    means: np.ndarray
    variances: np.ndarray

    @cached_property
    def smoothed_variances(self) -> np.ndarray:
        """The variance of one seed's difference at each size, as a power of compute."""
        known = np.isfinite(self.variances)
        half_df = np.where(known, self.n - 1, 2) / 2
        logs = np.log(np.where(known, self.variances, 1)) - special.digamma(half_df) + np.log(half_df)
        precision = known / special.polygamma(1, half_df)
        with np.errstate(invalid="ignore"):  # no size has a known noise
            weights = precision / precision.sum(-1, keepdims=True)
            x = self.x - (weights * self.x).sum(-1, keepdims=True)
            power = (precision * x * logs).sum(-1, keepdims=True)
            power /= (precision * x * x).sum(-1, keepdims=True) + PRIOR_PRECISION
            shape = np.exp(power * x)
            scale = np.where(known, 2 * half_df * self.variances / shape, 0).sum(-1, keepdims=True)
            return np.asarray(scale / (known * 2 * half_df).sum(-1, keepdims=True) * shape)

    def compute_weighted_sum(self, weights: np.ndarray) -> WeightedSum:
        """Weighted sum of the sizes' means, with weights [sizes] or [..., sizes]."""
        known = np.isfinite(self.variances)
        variance_parts = weights**2 * np.where(known, self.variances, self.smoothed_variances) / self.n
        df = np.where(known, self.n - 1, (known * (self.n - 1)).sum(-1, keepdims=True))
        variance = variance_parts.sum(-1)
        min_variance = (weights**2 * self.smoothed_variances / self.n).sum(-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            effective_df = variance**2 / (variance_parts**2 / df).sum(-1)
        return WeightedSum(
            (weights * self.means).sum(-1), np.sqrt(np.maximum(variance, min_variance)), effective_df
        )

    def compute_slope_weights(self, sizes: slice = slice(None)) -> np.ndarray:
        """Weights of the slope of the line through these sizes, per unit of x, by all seeds."""
        weights, x = self._compute_fit_weights(sizes)
        return np.asarray(weights * x / (weights * x * x).sum(-1, keepdims=True))

    def compute_line_weights(self, x: float, sizes: slice = slice(None)) -> np.ndarray:
        """Weights of the value of that line at x."""
        weights, centered_x = self._compute_fit_weights(sizes)
        center = self.x[:1] - centered_x[..., :1]
        return np.asarray(
            weights / weights.sum(-1, keepdims=True) + (x - center) * self.compute_slope_weights(sizes)
        )

    def select_size_weights(self, index: int) -> np.ndarray:
        """Weights of one size by itself."""
        return np.asarray(np.eye(len(self.x))[index])

    def _compute_fit_weights(self, sizes: slice) -> tuple[np.ndarray, np.ndarray]:
        is_used = np.zeros(len(self.x))
        is_used[sizes] = 1
        weights = is_used * self.n / self.smoothed_variances
        return weights, self.x - (weights * self.x).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)


def estimate_size_effects(sizes: Sequence[SizeSample]) -> list[Estimate]:
    """Estimate the effect at each size by its own seeds, from the smallest size on; [] without a size.

    Raises:
        ValueError: as `build_ladder_sample`.
    """
    if not sizes:
        return []
    sample = build_ladder_sample(sizes)
    return [
        sample.compute_weighted_sum(sample.select_size_weights(index)).to_estimate()
        for index in range(len(sizes))
    ]


def build_ladder_sample(sizes: Sequence[SizeSample]) -> LadderSample:
    """Sort the sizes by compute.

    Raises:
        ValueError: no size, no seed, a number that is not finite, or one x twice.
    """
    validate_finite([size.x for size in sizes], "log10 of the compute")
    sizes = sorted(sizes, key=lambda size: size.x)
    for below, above in pairwise(sizes):
        if below.x == above.x:
            raise ValueError(
                f"two ladder sizes at log10 of the compute = {above.x:g}; pass their seeds as one size"
            )
    samples = [
        PairedDifferences(validate_finite(size.differences, f"ladder size at {size.x:g}")) for size in sizes
    ]
    sds = [None if sample.tied else sample.sd for sample in samples]
    return LadderSample(
        np.array([size.x for size in sizes], float),
        np.array([sample.n for sample in samples]),
        np.array([sample.estimate for sample in samples], float),
        np.array([np.nan if sd is None else sd**2 for sd in sds]),
    )
