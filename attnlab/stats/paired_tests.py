"""Paired comparison of two arms: effect with interval and p-value, and its equivalent in training compute.

A large p of `estimate_paired_difference` is no evidence of equality. A change in training compute is a ratio
of two estimates, so its interval is wider than that of the effect.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.stats.evidence import (
    IntervalResult,
    PairedDifferences,
    Values,
    compute_two_sided_p_value,
    validate_finite,
)
from attnlab.stats.stopping_rules import FIXED_SAMPLE, StoppingRule


@dataclass(frozen=True)
class PairedEstimate(IntervalResult):
    """Mean difference over `n` pairs with its t interval; None where one pair or ties leave it unknown."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    level: float
    p: float | None  # two-sided, of a mean difference of 0
    tied: bool = False  # all differences are equal, so no noise is known


def estimate_paired_difference(
    differences: Values, level: float = 0.95, stopping_rule: StoppingRule = FIXED_SAMPLE
) -> PairedEstimate:
    """Mean difference, its t interval, and the two-sided p-value of "no difference"."""
    sample = PairedDifferences(validate_finite(differences, "differences"), stopping_rule)
    low, high = sample.interval(level) or (None, None)
    p = compute_two_sided_p_value(sample)
    return PairedEstimate(sample.n, _get_mean(sample), sample.sd, low, high, level, p, sample.tied)


@dataclass(frozen=True)
class ComputeEquivalent:
    """A loss difference as a change in training compute: -0.05 is equivalent to 5% less, 0.07 to 7% more.

    `low` and `high` correspond to the ends of the effect, so `low` is the larger change; None: no bound.
    """

    compute_change: float
    low: float | None
    high: float | None


MAX_DOUBLINGS = 10.0  # a factor of a thousand from runs that differ by a factor of four is no bound


def estimate_compute_equivalent(
    effect: float,
    interval: tuple[float, float] | None,
    slope: float,
    slope_interval: tuple[float, float] | None,
) -> ComputeEquivalent | None:
    """Convert a loss effect to training compute, where each doubling lowers the loss by `slope`.

    Both intervals have one confidence level, which is also that of the result. None where the slope is not
    above 0.
    """
    if not (slope > 0 and math.isfinite(effect)):
        return None
    ends = compute_ratio_interval(
        effect, interval or (-math.inf, math.inf), slope, slope_interval or (-math.inf, math.inf)
    )
    low, high = (None if end is None or abs(end) > MAX_DOUBLINGS else _convert_doublings(end) for end in ends)
    return ComputeEquivalent(_convert_doublings(effect / slope), low, high)


def compute_ratio_interval(
    a: float, a_interval: tuple[float, float], b: float, b_interval: tuple[float, float]
) -> tuple[float | None, float | None]:
    """Interval of a / b from those of two independent estimates a and b > 0; None: no bound.

    MOVER-R: the ratios r for which the interval of a - r b, built from the distances between the estimates
    and their ends, contains 0 (Donner and Zou, Stat. Methods Med. Res. 21:347, 2012; Newcombe, Stat. Methods
    Med. Res. 25:1774, 2016).
    """
    low = _find_lower_bound(a, a_interval[0], b, b_interval)
    high = _find_lower_bound(-a, -a_interval[1], b, b_interval)
    return low, None if high is None else -high


def _find_lower_bound(a: float, end: float, b: float, b_interval: Sequence[float]) -> float | None:
    """The r at which a - r b leaves 0 by as much as both may be off; it has the sign of `end`."""
    b_distance = b_interval[1] - b if end > 0 else b - b_interval[0]
    if not math.isfinite(end) or (end <= 0 and b_distance >= b):
        return None
    if math.isinf(b_distance):  # b has no upper bound
        return 0.0
    constant_term = end * (2 * a - end)  # of (b^2 - b_distance^2) r^2 - 2 a b r + constant_term = 0
    root = math.sqrt(max(0.0, (a * b) ** 2 - (b * b - b_distance * b_distance) * constant_term))
    return constant_term / (a * b + root) if end > 0 else (a * b - root) / (b * b - b_distance * b_distance)


def _convert_doublings(doublings: float) -> float:
    """Relative change in training compute equivalent to a loss effect in doublings; its sign is opposite."""
    return math.expm1(-doublings * math.log(2))


def _get_mean(sample: PairedDifferences) -> float:
    assert sample.estimate is not None, "validate_finite() rejects an empty list"
    return sample.estimate
