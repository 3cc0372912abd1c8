"""Distribution-free evidence: e-values from bets against the null hypothesis, seed by seed.

The capital of a bet on values between 0 and 1 grows where their mean is above the hypothesized mean. It
exceeds 1 / level with probability at most `level`, whenever one stops (Waudby-Smith & Ramdas 2023, arXiv
2010.09686). So these intervals are valid for fixed samples, for interim analyses and for seeds added by hand.

On data without exception the first bet, which stakes everything, gives the exact tests: McNemar's for pairs
solved by one arm alone, Clopper-Pearson for failures that were never observed, the sign test for ranks.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from attnlab.stats.evidence import validate_fraction

STAKES = np.array([1.0, 0.5, 0.25])
WEIGHTS = np.array([0.8, 0.1, 0.1])  # fractions of the capital that each bet gets
_TOLERANCE = 1e-9


def compute_betting_p_value(values: Sequence[float] | np.ndarray, mean: float) -> float:
    """p-value of "the mean of values in [0, 1] is at most `mean`": 1 over the capital of the bets."""
    x = np.asarray(values, dtype=float)
    if mean <= 0:
        return 0.0 if x.size and x.max() > 0 else 1.0
    if mean >= 1 or not x.size:
        return 1.0
    with np.errstate(divide="ignore"):
        log_capital = _combine_bets(np.log1p(STAKES[:, None] * (x[None] / mean - 1)).sum(1, keepdims=True))
    return math.exp(-log_capital[0]) if log_capital[0] > 0 else 1.0


def compute_log_capital(values: np.ndarray, mean: float) -> np.ndarray:
    """Log capital of the bets against "the mean is at most `mean`" after each of `values` [..., n].

    The values and the mean lie between 0 and 1.
    """
    with np.errstate(divide="ignore"):
        return _combine_bets(np.log1p(STAKES[:, None] * (values[..., None, :] / mean - 1)).cumsum(-1))


def _combine_bets(logs: np.ndarray) -> np.ndarray:
    """Log capital of all bets from that of each [..., bet, n]; -inf where a bet lost everything."""
    largest = logs.max(-2, keepdims=True)
    return np.asarray(largest[..., 0, :] + np.log(WEIGHTS @ np.exp(logs - largest)))


def count_unanimous_seeds(best: float, mean: float, level: float) -> int | None:
    """How many values all equal to `best` reject "the mean is at most `mean`"; None: no number does."""
    if best <= max(mean, 0):
        return None
    if mean <= 0:
        return 1
    count = math.ceil(
        -math.log(WEIGHTS[0] * validate_fraction(level, "level")) / math.log(best / mean)
    )  # by the first bet
    while count > 1 and compute_betting_p_value([best] * (count - 1), mean) <= level:
        count -= 1
    return count


class ProportionDifferences:
    """Paired differences of proportions, each in [-1, 1]: an interval for their mean.

    It is valid under any distribution.
    """

    def __init__(self, differences: Sequence[float] | np.ndarray):
        self.values = np.asarray(differences, dtype=float)
        if self.values.ndim != 1 or (self.values.size and not np.abs(self.values).max() <= 1):
            raise ValueError("differences of proportions: each must lie in [-1, 1]")
        self.n = int(self.values.size)
        self.estimate: float | None = float(self.values.mean()) if self.n else None

    def p_above(self, threshold: float) -> float | None:
        return compute_betting_p_value((self.values + 1) / 2, (threshold + 1) / 2) if self.n else None

    def p_below(self, threshold: float) -> float | None:
        return compute_betting_p_value((1 - self.values) / 2, (1 - threshold) / 2) if self.n else None

    def interval(self, level: float) -> tuple[float, float] | None:
        if not self.n:
            return None
        tail = (1 - validate_fraction(level, "level")) / 2
        low = _find_rejection_edge(
            lambda mean: (self.p_above(mean) or 0.0) <= tail, -1.0, float(self.values.mean())
        )
        high = -_find_rejection_edge(
            lambda mean: (self.p_below(-mean) or 0.0) <= tail, -1.0, -float(self.values.mean())
        )
        return low, high


class RankDifferences:
    """Paired differences by their order alone: an interval for the median.

    Infinity is the worst possible outcome; NaN (both arms failed) counts for neither side.

    Args:
        differences: Observed values [n]; the estimate is their median.
        bounds: Lower and upper bounds [2, n] of censored values. A value lies above a threshold if its lower
            bound does, and below one if its upper bound does.
    """

    def __init__(
        self,
        differences: Sequence[float] | np.ndarray,
        bounds: tuple[Sequence[float], Sequence[float]] | None = None,
    ):
        self.values = np.asarray(differences, dtype=float)
        self.n = int(self.values.size)
        lower, upper = np.array((self.values, self.values) if bounds is None else bounds, dtype=float)
        self.lower = np.where(np.isnan(lower), -math.inf, lower)
        self.upper = np.where(np.isnan(upper), math.inf, upper)
        ordered = np.sort(self.values[~np.isnan(self.values)])
        low, high = (
            (float(ordered[(ordered.size - k) // 2]) for k in (1, 0)) if ordered.size else (math.nan,) * 2
        )
        self.estimate: float | None = (low + high) / 2 if math.isfinite(low + high) else None

    def p_above(self, threshold: float) -> float | None:
        return compute_betting_p_value(self.lower > threshold, 0.5) if self.n else None

    def p_below(self, threshold: float) -> float | None:
        return compute_betting_p_value(self.upper < threshold, 0.5) if self.n else None

    def interval(self, level: float) -> tuple[float, float] | None:
        """Order-statistic interval; an end is infinite where there are too few differences."""
        if not self.n:
            return None
        tail = (1 - validate_fraction(level, "level")) / 2
        needed = next(
            (k for k in range(self.n + 1) if compute_betting_p_value(np.arange(self.n) < k, 0.5) <= tail),
            None,
        )
        if needed is None:
            return -math.inf, math.inf
        return float(np.sort(self.lower)[self.n - needed]), float(np.sort(self.upper)[needed - 1])


def _find_rejection_edge(is_rejected: Callable[[float], bool], low: float, high: float) -> float:
    """The largest rejected mean, up to `high`, where rejection ends; `low` where none is rejected."""
    if not is_rejected(low + _TOLERANCE):
        return low
    if is_rejected(high):
        return high
    from scipy import optimize  # imported here: takes longer than computing most reports

    return float(optimize.bisect(lambda m: 0.5 - is_rejected(m), low + _TOLERANCE, high, xtol=1e-10))
