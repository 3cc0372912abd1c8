"""Evidence: an estimate with an interval at any level and one-sided p-values against any threshold.

Kinds: differences of paired seeds (t, at the boundary of the stopping rule), bootstrap draws (times), and
exact evidence (bytes, and identities in every pair). Proportions and ranks are in `evalues`.
`report.verdicts.evidence_bases` selects the kind for each claim.

Seeds are not bootstrapped: over 3 to 10 pairs a nominal 95% bootstrap interval covers 75 to 89%. Ties show
nothing: equal differences have no spread, so they have no interval and no p-value.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from scipy import special

from attnlab.stats.stopping_rules import FIXED_SAMPLE, StoppingRule

Values = Sequence[float] | np.ndarray
CONFIDENCE_LEVEL = 0.95  # of the intervals that reports show


def validate_finite(values: Values, label: str, min_count: int = 1) -> np.ndarray:
    """A flat float array of at least `min_count` finite numbers.

    Raises:
        ValueError: the shape is wrong, or a number is not finite; the message names the first such one.
    """
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size < min_count:
        raise ValueError(
            f"{label}: need a flat list of at least {min_count} numbers, got shape {array.shape}"
        )
    if not np.isfinite(array).all():
        position = int(np.argmin(np.isfinite(array)))
        raise ValueError(
            f"{label}: {array[position]} at position {position}; exclude failed runs and count them "
            "separately"
        )
    return array


def validate_fraction(value: float, name: str) -> float:
    """The value, if it lies strictly between 0 and 1; else ValueError."""
    if not 0 < value < 1:
        raise ValueError(f"{name}={value} must lie strictly between 0 and 1")
    return value


def is_rounding_error(sd: float, values: Sequence[float]) -> bool:
    """Whether a standard deviation is only the rounding error between equal values, and so no spread."""
    return sd <= 1e-12 * max(map(abs, values))


def find_first(is_reached: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest number between `low` and `high` for which a condition holds that holds beyond it too."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return high


class IntervalResult:
    """Mixin for results with `low` and `high`: both as a pair, or None where either is unknown."""

    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


class Evidence(Protocol):
    """Protocol of an estimate that can decide claims; None where the data show nothing."""

    @property
    def n(self) -> int: ...
    @property
    def estimate(self) -> float | None: ...
    def interval(self, level: float) -> tuple[float, float] | None: ...
    def p_above(self, threshold: float) -> float | None: ...  # small where the value lies above the threshold
    def p_below(self, threshold: float) -> float | None: ...


class PairedDifferences:
    """Differences of paired seeds with a t interval for their mean. An empty list is evidence of nothing."""

    def __init__(self, values: Values, stopping_rule: StoppingRule = FIXED_SAMPLE):
        self.stopping_rule = stopping_rule
        numbers: list[float] = validate_finite(values, "differences", min_count=0).tolist()
        self.n = len(numbers)
        # `statistics` sums exactly, so equal values have a standard deviation of exactly 0
        self.estimate: float | None = statistics.mean(numbers) if numbers else None
        self.sd: float | None = statistics.stdev(numbers) if self.n > 1 else None
        self.tied = self.sd is not None and is_rounding_error(self.sd, numbers)

    def interval(self, level: float) -> tuple[float, float] | None:
        if self.sd is None or self.estimate is None or self.tied:
            return None
        critical = self.stopping_rule.critical_value(self.n, (1 - validate_fraction(level, "level")) / 2)
        half = critical * self.sd / math.sqrt(self.n)
        return self.estimate - half, self.estimate + half

    def compute_tail_probability(self, level: float) -> float:
        """Tail of Student's t beyond one end of the interval at `level`: that of half of 1 - level."""
        critical = self.stopping_rule.critical_value(self.n, (1 - validate_fraction(level, "level")) / 2)
        return float(special.stdtr(self.n - 1, -critical))

    def p_above(self, threshold: float) -> float | None:
        return None if self.estimate is None else self._compute_p_value(self.estimate - threshold)

    def p_below(self, threshold: float) -> float | None:
        return None if self.estimate is None else self._compute_p_value(threshold - self.estimate)

    def _compute_p_value(self, distance: float) -> float | None:
        if self.sd is None or self.tied:
            return None
        return self.stopping_rule.p_value(self.n, distance * math.sqrt(self.n) / self.sd)


class BootstrapDraws:
    """A bootstrap over `n` blocks: percentile interval; p is the fraction of draws on the wrong side."""

    def __init__(self, n: int, estimate: float, draws: np.ndarray):
        self.n = n
        self.estimate = estimate
        self.draws = draws

    def interval(self, level: float) -> tuple[float, float] | None:
        if self.n < 2:
            return None
        tail = (1 - validate_fraction(level, "level")) / 2
        low, high = np.quantile(self.draws, [tail, 1 - tail])
        return float(low), float(high)

    def p_above(self, threshold: float) -> float | None:
        return self._compute_p_value(self.draws <= threshold)

    def p_below(self, threshold: float) -> float | None:
        return self._compute_p_value(self.draws >= threshold)

    def _compute_p_value(self, wrong: np.ndarray) -> float | None:
        return (1 + int(wrong.sum())) / (1 + wrong.size) if self.n > 1 else None


class ExactEvidence:
    """Evidence without error: a counted quantity (bytes, parameters), or an identity over all pairs.

    An identity holds in every pair or not at all. The interval goes from the smallest value to the largest;
    an infinite one is a pair of which one run diverged.
    """

    def __init__(self, *values: float):
        array = np.array(values, dtype=float)
        validate_finite(np.where(np.isinf(array), 0.0, array), "exact value")
        self.n = array.size
        self.low, self.high = float(array.min()), float(array.max())
        # for an identity: the value furthest from 0, which broke it if any did; None if it is infinite
        furthest = max(self.low, self.high, key=abs)
        self.estimate: float | None = furthest if math.isfinite(furthest) else None

    def interval(self, level: float) -> tuple[float, float]:
        return self.low, self.high

    def p_above(self, threshold: float) -> float:
        return 0.0 if self.low > threshold else 1.0

    def p_below(self, threshold: float) -> float:
        return 0.0 if self.high < threshold else 1.0


def compute_two_sided_p_value(evidence: Evidence) -> float | None:
    """p-value of "no difference": twice the smaller of the one-sided tests at 0."""
    above, below = evidence.p_above(0), evidence.p_below(0)
    return None if above is None or below is None else min(1.0, 2 * min(above, below))


def compute_region_p_value(evidence: Evidence, region: tuple[float, float]) -> float | None:
    """p-value of "the value lies outside `region`": the larger of the one-sided tests at its finite ends."""
    p_values = [evidence.p_above(region[0])] if math.isfinite(region[0]) else []
    p_values += [evidence.p_below(region[1])] if math.isfinite(region[1]) else []
    known_p_values = [p_value for p_value in p_values if p_value is not None]
    return max(known_p_values) if len(known_p_values) == len(p_values) else None
