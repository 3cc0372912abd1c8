"""Evidence that assumes no distribution: whoever doubts a claim is bet against, seed by seed.

The capital of a bet on values between 0 and 1 grows where their mean is above the doubter's; it passes
1 / level with a chance of at most `level` whenever one looks (Waudby-Smith & Ramdas 2023, arXiv 2010.09686).
So these hold for fixed seeds, for looks and for seeds added by hand alike. On data without exception the
first bet, which stakes all, gives the exact tests: McNemar's for pairs solved by one arm alone, Clopper and
Pearson's for failures that were never seen, the sign test for ranks.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from attnlab.stats.evidence import fraction

STAKES = np.array([1.0, 0.5, 0.25])
WEIGHTS = np.array([0.8, 0.1, 0.1])  # shares of what may be staked
_CLOSE = 1e-9


def doubt(values: Sequence[float] | np.ndarray, mean: float) -> float:
    """p of "the mean of values in [0, 1] is at most `mean`": 1 over the capital of the bets against it."""
    x = np.asarray(values, dtype=float)
    if mean <= 0:
        return 0.0 if x.size and x.max() > 0 else 1.0
    if mean >= 1 or not x.size:
        return 1.0
    with np.errstate(divide="ignore"):
        won = _together(np.log1p(STAKES[:, None] * (x[None] / mean - 1)).sum(1, keepdims=True))
    return math.exp(-won[0]) if won[0] > 0 else 1.0


def capital(values: np.ndarray, mean: float) -> np.ndarray:
    """The logarithm of what the bets against "the mean is at most `mean`" have come to after each of `values`
    [..., n]; they and the mean lie between 0 and 1.
    """
    with np.errstate(divide="ignore"):
        return _together(np.log1p(STAKES[:, None] * (values[..., None, :] / mean - 1)).cumsum(-1))


def _together(logs: np.ndarray) -> np.ndarray:
    """The logarithm of the capital of all bets, of that of each [..., bet, n]: -inf where it lost all."""
    top = logs.max(-2, keepdims=True)
    return np.asarray(top[..., 0, :] + np.log(WEIGHTS @ np.exp(logs - top)))


def seeds_without_exception(best: float, mean: float, level: float) -> int | None:
    """How many values of `best` and no other it takes to reject "the mean is at most `mean`"; None: never."""
    if best <= max(mean, 0):
        return None
    if mean <= 0:
        return 1
    enough = math.ceil(-math.log(WEIGHTS[0] * fraction(level, "level")) / math.log(best / mean))  # by bet one
    while enough > 1 and doubt([best] * (enough - 1), mean) <= level:
        enough -= 1
    return enough


class Shares:
    """Paired differences of shares, each in [-1, 1]: an interval for their mean, however they are spread."""

    def __init__(self, differences: Sequence[float] | np.ndarray):
        self.values = np.asarray(differences, dtype=float)
        if self.values.ndim != 1 or (self.values.size and not np.abs(self.values).max() <= 1):
            raise ValueError("differences of shares: each must lie in [-1, 1]")
        self.n = int(self.values.size)
        self.estimate: float | None = float(self.values.mean()) if self.n else None

    def p_above(self, threshold: float) -> float | None:
        return doubt((self.values + 1) / 2, (threshold + 1) / 2) if self.n else None

    def p_below(self, threshold: float) -> float | None:
        return doubt((1 - self.values) / 2, (1 - threshold) / 2) if self.n else None

    def interval(self, level: float) -> tuple[float, float] | None:
        if not self.n:
            return None
        tail = (1 - fraction(level, "level")) / 2
        low = _edge(lambda m: (self.p_above(m) or 0.0) <= tail, -1.0, float(self.values.mean()))
        high = -_edge(lambda m: (self.p_below(-m) or 0.0) <= tail, -1.0, -float(self.values.mean()))
        return low, high


class Ranks:
    """Paired differences by their order alone: an interval for the median. Infinity is the worst outcome that
    there is; NaN (both arms failed) is on nobody's side.
    """

    def __init__(self, differences: Sequence[float] | np.ndarray):
        self.values = np.asarray(differences, dtype=float)
        self.n = int(self.values.size)
        known = np.sort(self.values[~np.isnan(self.values)])
        low, high = (float(known[(known.size - k) // 2]) for k in (1, 0)) if known.size else (math.nan,) * 2
        self.estimate: float | None = (low + high) / 2 if math.isfinite(low + high) else None

    def p_above(self, threshold: float) -> float | None:
        return doubt(self.values > threshold, 0.5) if self.n else None

    def p_below(self, threshold: float) -> float | None:
        return doubt(self.values < threshold, 0.5) if self.n else None

    def interval(self, level: float) -> tuple[float, float] | None:
        """Between two of the differences; an end is infinite where there are too few."""
        if not self.n:
            return None
        tail = (1 - fraction(level, "level")) / 2
        needed = next((k for k in range(self.n + 1) if doubt(np.arange(self.n) < k, 0.5) <= tail), None)
        if needed is None:
            return -math.inf, math.inf
        nobodys = np.isnan(self.values)  # for either end as bad as can be
        below = np.sort(np.where(nobodys, -math.inf, self.values))
        above = np.sort(np.where(nobodys, math.inf, self.values))
        return float(below[self.n - needed]), float(above[needed - 1])


def _edge(rejected: Callable[[float], bool], low: float, high: float) -> float:
    """The largest mean that is rejected, up to `high`, where rejection ends; `low` where none is."""
    if not rejected(low + _CLOSE):
        return low
    if rejected(high):
        return high
    from scipy import optimize  # takes longer to import than most reports to work out

    return float(optimize.bisect(lambda m: 0.5 - rejected(m), low + _CLOSE, high, xtol=1e-10))
