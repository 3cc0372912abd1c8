"""Sensitivity analyses, which never overrule the primary result: sign flips, jackknife, pairing, outliers.

The exact permutation test cannot go below 2/2^n: with 5 seeds it never reaches .05.
"""

from dataclasses import dataclass

import numpy as np

from attnlab.stats.evidence import Values, validate_finite

OUTLIER_DISTANCE = 7.0  # times the median distance from the median
MAX_ENUMERATED_PAIRS = 40  # two tables of 2^20 sums


@dataclass(frozen=True)
class SignFlipResult:
    """Two-sided p-value of the sign-flip test and the smallest value that it can take."""

    p: float | None  # None beyond 40 pairs, whose signs are not enumerated
    floor: float


@dataclass(frozen=True)
class PairingGain:
    """Correlation of two arms over `n` seeds, and how many times fewer seeds pairing needs."""

    n: int
    correlation: float | None  # None where an arm does not vary, or for one pair
    gain: float | None  # unpaired over paired variance of the difference; 3 saves 2/3 of the seeds


def run_sign_flip_test(differences: Values) -> SignFlipResult:
    """Exact two-sided p: the fraction of all 2^n sign assignments whose mean is at least as far from 0."""
    values = validate_finite(differences, "differences")
    floor = min(1.0, 2.0 ** (1 - values.size))
    if values.size > MAX_ENUMERATED_PAIRS:
        return SignFlipResult(None, floor)
    left_sums = _enumerate_signed_sums(values[: values.size // 2])
    right_sums = np.sort(_enumerate_signed_sums(values[values.size // 2 :]))
    # ties with the observed sum must count, although float sums depend on the order of addition
    observed_sum = abs(values.sum()) - 1e-12 * np.abs(values).sum()
    if observed_sum <= 0:
        return SignFlipResult(1.0, floor)
    above = right_sums.size - np.searchsorted(right_sums, observed_sum - left_sums)
    below = np.searchsorted(right_sums, -observed_sum - left_sums, side="right")
    return SignFlipResult(float((above.sum() + below.sum()) / 2.0**values.size), floor)


@dataclass(frozen=True)
class ThresholdSignFlip:
    """Sign-flip test of a claim at the tail that the t test uses.

    Attributes:
        able: whether so few pairs can reach the tail at all.
        holds: None where the test is inconclusive.
    """

    p: float
    tail: float
    able: bool
    holds: bool | None


def decide_by_sign_flips(
    differences: Values, region: tuple[float, float], tail: float
) -> ThresholdSignFlip | None:
    """Test whether the mean lies in `region`, each end by one-sided sign flips; None beyond 40 pairs."""
    values, low, high = validate_finite(differences, "differences"), *region
    if values.size > MAX_ENUMERATED_PAIRS:
        return None

    def compute_tail(shifted: np.ndarray) -> float:
        half = (run_sign_flip_test(shifted).p or 0.0) / 2
        return half if shifted.mean() > 0 else 1 - half

    tails = [compute_tail(values - low)] if np.isfinite(low) else []
    tails += [compute_tail(high - values)] if np.isfinite(high) else []
    outside_tail = min(
        compute_tail(end - values if end == low else values - end) for end in region if np.isfinite(end)
    )
    holds = True if max(tails) <= tail else False if outside_tail <= tail else None
    return ThresholdSignFlip(max(tails), tail, 2.0**-values.size <= tail, holds)


def _enumerate_signed_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def compute_leave_one_out_range(differences: Values) -> tuple[float, float] | None:
    """Smallest and largest mean with one seed left out; None for one seed."""
    values = validate_finite(differences, "differences")
    if values.size < 2:
        return None
    means = (values.sum() - values) / (values.size - 1)
    return float(means.min()), float(means.max())


def measure_pairing_gain(a: Values, b: Values) -> PairingGain:
    """Correlation of two arms over seeds, and the factor in seeds that pairing by seed saves."""
    a = validate_finite(a, "first arm")
    b = validate_finite(b, "second arm")
    if a.size != b.size:
        raise ValueError(f"pairing: {a.size} and {b.size} values; pass only complete pairs")
    if a.size < 2:
        return PairingGain(a.size, None, None)
    spread = (a - b).var(ddof=1)
    gain = float((a.var(ddof=1) + b.var(ddof=1)) / spread) if spread else None
    correlation = float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else None
    return PairingGain(a.size, correlation, gain)


def flag_outliers(differences: Values) -> list[bool]:
    """Which differences lie further from the median than `OUTLIER_DISTANCE` median distances from it.

    None of fewer than 4, or where more than half are equal. Normal noise has an outlier in 10% of samples of
    4 seeds, 13% of 5, 6% of 8 and 2.5% of 16, because the median distance of few seeds is uncertain.
    """
    values = validate_finite(differences, "differences")
    distances = np.abs(values - np.median(values))
    spread = float(np.median(distances))
    if values.size < 4 or not spread:
        return [False] * values.size
    return [bool(distance) for distance in distances > OUTLIER_DISTANCE * spread]
