"""Rungs of a ladder of sizes: paired differences by compute, and any weighted sum of their means, with its
noise.

Surprising: the arrays may hold thousands of drawn ladders in front of the axis of rungs, so what decides a
real ladder is what is counted in `docs/calibration_ladders.md`, not a copy. Three or four seeds know their
spread badly, so weights come from a smooth noise, in which the variance is a power of compute (fitted to all
rungs, drawn towards "alike everywhere"), while the variance of an answer comes from each rung's own spread
with Satterthwaite's degrees of freedom (Biometrics Bulletin 2:110, 1946), and is never below that of the
smooth noise. Weights from each rung's own spread would make the 95 % interval of a slope miss in 7 to 14 % of
ladders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy import special

from attnlab.stats.evidence import Differences, Ends, finite, fraction

DRAWN = (
    4.0  # how well, as an inverse variance, it is known beforehand that the log of the noise does not change
)


@dataclass(frozen=True)
class Rung:
    """`x`: log10 of the training FLOPs of a run; `differences`: arm - baseline in nats, one per seed."""

    x: float
    differences: Sequence[float]


@dataclass(frozen=True)
class Estimate(Ends):
    """With its interval at `level` by t with `df`; all three None where no noise is known."""

    estimate: float
    low: float | None
    high: float | None
    df: float | None
    level: float


@dataclass(frozen=True)
class Sums:
    """Weighted sums of rung means: estimate, standard error, degrees of freedom; NaN without any noise."""

    estimate: np.ndarray
    se: np.ndarray
    df: np.ndarray

    def half(self, tail: float) -> np.ndarray:
        """Half of the interval that leaves `tail` beyond each end."""
        return np.asarray(-special.stdtrit(self.df, tail) * self.se)

    def times(self, factor: float) -> "Sums":
        return Sums(factor * self.estimate, abs(factor) * self.se, self.df)

    def single(self, level: float) -> Estimate:
        """Of one ladder."""
        tail = (1 - fraction(level, "level")) / 2
        estimate = float(self.estimate)
        half = float(self.half(tail))
        if not np.isfinite(half):
            return Estimate(estimate, None, None, None, level)
        return Estimate(estimate, estimate - half, estimate + half, float(self.df), level)


@dataclass(frozen=True)
class Ladder:
    """`x`, `n` [rungs], ascending; `means`, `variances` [..., rungs]. A variance that is unknown is NaN: that
    of one seed, or of equal differences. It is then taken from the smooth noise of the other rungs.
    """

    x: np.ndarray
    n: np.ndarray
    means: np.ndarray
    variances: np.ndarray

    @cached_property
    def smooth(self) -> np.ndarray:
        """The variance of one seed's difference at each rung, as a power of compute."""
        known = np.isfinite(self.variances)
        half = np.where(known, self.n - 1, 2) / 2
        logs = np.log(np.where(known, self.variances, 1)) - special.digamma(half) + np.log(half)
        sure = known / special.polygamma(1, half)
        with np.errstate(invalid="ignore"):  # no rung knows its noise
            weights = sure / sure.sum(-1, keepdims=True)
            x = self.x - (weights * self.x).sum(-1, keepdims=True)
            power = (sure * x * logs).sum(-1, keepdims=True)
            power /= (sure * x * x).sum(-1, keepdims=True) + DRAWN
            shape = np.exp(power * x)
            scale = np.where(known, 2 * half * self.variances / shape, 0).sum(-1, keepdims=True)
            return np.asarray(scale / (known * 2 * half).sum(-1, keepdims=True) * shape)

    def sums(self, weights: np.ndarray) -> Sums:
        """Of the rungs' means, with weights [rungs] or [..., rungs]."""
        known = np.isfinite(self.variances)
        own = weights**2 * np.where(known, self.variances, self.smooth) / self.n
        df = np.where(known, self.n - 1, (known * (self.n - 1)).sum(-1, keepdims=True))
        variance = own.sum(-1)
        least = (weights**2 * self.smooth / self.n).sum(-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            freedom = variance**2 / (own**2 / df).sum(-1)
        return Sums((weights * self.means).sum(-1), np.sqrt(np.maximum(variance, least)), freedom)

    def slope(self, rungs: slice = slice(None)) -> np.ndarray:
        """Weights of the slope of the line through these rungs, per unit of x, by all seeds."""
        weights, x = self._weights(rungs)
        return np.asarray(weights * x / (weights * x * x).sum(-1, keepdims=True))

    def at(self, x: float, rungs: slice = slice(None)) -> np.ndarray:
        """Weights of the value of that line at x."""
        weights, around = self._weights(rungs)
        centre = self.x[:1] - around[..., :1]
        return np.asarray(weights / weights.sum(-1, keepdims=True) + (x - centre) * self.slope(rungs))

    def only(self, rung: int) -> np.ndarray:
        """Weights of one rung by itself."""
        return np.asarray(np.eye(len(self.x))[rung])

    def _weights(self, rungs: slice) -> tuple[np.ndarray, np.ndarray]:
        used = np.zeros(len(self.x))
        used[rungs] = 1
        weights = used * self.n / self.smooth
        return weights, self.x - (weights * self.x).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)


def ladder(rungs: Sequence[Rung]) -> Ladder:
    """The rungs in ascending order. ValueError: no rung, no seed, what is not finite, or one x twice."""
    finite([rung.x for rung in rungs], "log10 of the compute")
    rungs = sorted(rungs, key=lambda rung: rung.x)
    for below, above in pairwise(rungs):
        if below.x == above.x:
            raise ValueError(f"two rungs at log10 of the compute = {above.x:g}; give their seeds as one rung")
    samples = [Differences(finite(rung.differences, f"rung at {rung.x:g}")) for rung in rungs]
    known = [None if sample.tied else sample.sd for sample in samples]
    return Ladder(
        np.array([rung.x for rung in rungs], float),
        np.array([sample.n for sample in samples]),
        np.array([sample.estimate for sample in samples], float),
        np.array([np.nan if sd is None else sd**2 for sd in known]),
    )
