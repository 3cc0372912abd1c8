"""Rows beside the primary result that never overrule it: sign flips, one seed left out, pairing, outliers.

Surprising: the exact permutation test cannot go below 2/2^n: with 5 seeds it never reaches .05.
"""

from dataclasses import dataclass

import numpy as np

from attnlab.stats.evidence import Values, finite

FAR = 7.0  # times the median distance from the median: the rule for a seed that is far from the others
ENUMERABLE = 40  # pairs; two tables of 2^20 sums


@dataclass(frozen=True)
class Flips:
    p: float | None  # None beyond 40 pairs, which are not enumerated
    floor: float


@dataclass(frozen=True)
class Pairing:
    n: int
    correlation: float | None  # None where an arm does not vary, or for one pair
    gain: float | None  # unpaired over paired variance of the difference; 3 saves 2/3 of the seeds


def sign_flip(differences: Values) -> Flips:
    """Exact two-sided p: the share of all 2^n sign assignments whose mean is at least as far from zero."""
    values = finite(differences, "differences")
    floor = min(1.0, 2.0 ** (1 - values.size))
    if values.size > ENUMERABLE:
        return Flips(None, floor)
    left = _sums(values[: values.size // 2])
    right = np.sort(_sums(values[values.size // 2 :]))
    # ties with the observed sum must count although float sums differ by the order of adding
    reach = abs(values.sum()) - 1e-12 * np.abs(values).sum()
    if reach <= 0:
        return Flips(1.0, floor)
    above = right.size - np.searchsorted(right, reach - left)
    below = np.searchsorted(right, -reach - left, side="right")
    return Flips(float((above.sum() + below.sum()) / 2.0**values.size), floor)


@dataclass(frozen=True)
class Flipped:
    """What sign flips say of a claim at the tail that t was given; `holds` None where they cannot tell, or
    (`able` false) so few pairs could not.
    """

    p: float
    tail: float
    able: bool
    holds: bool | None


def flipped(differences: Values, where: tuple[float, float], tail: float) -> Flipped | None:
    """Is the mean in `where`? Each end tested by sign flips around it, one-sided; None beyond 40 pairs."""
    values, low, high = finite(differences, "differences"), *where
    if values.size > ENUMERABLE:
        return None

    def above(shifted: np.ndarray) -> float:
        half = (sign_flip(shifted).p or 0.0) / 2
        return half if shifted.mean() > 0 else 1 - half

    ends = [above(values - low)] if np.isfinite(low) else []
    ends += [above(high - values)] if np.isfinite(high) else []
    outside = min(above(end - values if end == low else values - end) for end in where if np.isfinite(end))
    holds = True if max(ends) <= tail else False if outside <= tail else None
    return Flipped(max(ends), tail, 2.0**-values.size <= tail, holds)


def _sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def leave_one_out(differences: Values) -> tuple[float, float] | None:
    """Smallest and largest mean with one seed left out; None for one seed."""
    values = finite(differences, "differences")
    if values.size < 2:
        return None
    means = (values.sum() - values) / (values.size - 1)
    return float(means.min()), float(means.max())


def pairing(a: Values, b: Values) -> Pairing:
    """The correlation of two arms over seeds, and the factor in seeds that pairing by seed bought."""
    a = finite(a, "first arm")
    b = finite(b, "second arm")
    if a.size != b.size:
        raise ValueError(f"pairing: {a.size} and {b.size} values; give the complete pairs only")
    if a.size < 2:
        return Pairing(a.size, None, None)
    spread = (a - b).var(ddof=1)
    gain = float((a.var(ddof=1) + b.var(ddof=1)) / spread) if spread else None
    correlation = float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else None
    return Pairing(a.size, correlation, gain)


def outliers(differences: Values) -> list[bool]:
    """Which lie further from the median than `FAR` times the median distance from it; none of fewer than 4,
    or where more than half are equal. For a normal sample that is 4.7 sd, one seed in 400,000.
    """
    values = finite(differences, "differences")
    away = np.abs(values - np.median(values))
    spread = float(np.median(away))
    if values.size < 4 or not spread:
        return [False] * values.size
    return [bool(far) for far in away > FAR * spread]
