"""Evidence: what has an estimate, an interval at any level, and one-sided p-values against any threshold.

Differences of paired seeds (t, at the design's boundary), bootstrap draws (times), what is exact (bytes, and
identities in every pair); shares and ranks are in `betting`. Surprising: not the bootstrap for seeds; over 3
to 10 pairs its nominal 95 % interval covers 75 to 89 %. And ties prove nothing: equal differences have no
spread to judge by, so they have no interval and no p.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from scipy import special

from attnlab.stats.designs import FIXED, Design

Values = Sequence[float] | np.ndarray


def finite(values: Values, what: str, least: int = 1) -> np.ndarray:
    """A flat float array of at least `least` finite numbers, or a ValueError that says which one is not."""
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size < least:
        raise ValueError(f"{what}: need a flat list of at least {least} numbers, got shape {array.shape}")
    if not np.isfinite(array).all():
        where = int(np.argmin(np.isfinite(array)))
        raise ValueError(f"{what}: {array[where]} at position {where}; leave a failed run out and count it")
    return array


def fraction(value: float, name: str) -> float:
    """The value, if it lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name}={value} must lie strictly between 0 and 1")
    return value


class Ends:
    """For results with `low` and `high`: the two as a pair, or None where either is unknown."""

    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


class Evidence(Protocol):
    @property
    def n(self) -> int: ...
    @property
    def estimate(self) -> float | None: ...
    def interval(self, level: float) -> tuple[float, float] | None: ...
    def p_above(self, threshold: float) -> float | None: ...  # small where the value lies above it
    def p_below(self, threshold: float) -> float | None: ...


class Differences:
    """Differences of paired seeds: t on their mean. An empty list says that nothing is known."""

    def __init__(self, values: Values, design: Design = FIXED):
        self.design = design
        numbers: list[float] = finite(values, "differences", least=0).tolist()
        self.n = len(numbers)
        # `statistics` sums exactly, so equal values have a standard deviation of exactly 0
        self.estimate: float | None = statistics.mean(numbers) if numbers else None
        self.sd: float | None = statistics.stdev(numbers) if self.n > 1 else None
        # what float arithmetic leaves between equal differences is no spread
        self.tied = self.sd is not None and self.sd <= 1e-12 * max(map(abs, numbers))

    def interval(self, level: float) -> tuple[float, float] | None:
        if self.sd is None or self.estimate is None or self.tied:
            return None
        critical = self.design.critical(self.n, (1 - fraction(level, "level")) / 2)
        half = critical * self.sd / math.sqrt(self.n)
        return self.estimate - half, self.estimate + half

    def tail(self, level: float) -> float:
        """Of Student's t beyond an end of the interval at `level`: of half of 1 - level."""
        critical = self.design.critical(self.n, (1 - fraction(level, "level")) / 2)
        return float(special.stdtr(self.n - 1, -critical))

    def p_above(self, threshold: float) -> float | None:
        return None if self.estimate is None else self._tail(self.estimate - threshold)

    def p_below(self, threshold: float) -> float | None:
        return None if self.estimate is None else self._tail(threshold - self.estimate)

    def _tail(self, distance: float) -> float | None:
        if self.sd is None or self.tied:
            return None
        return self.design.p(self.n, distance * math.sqrt(self.n) / self.sd)


class Draws:
    """A bootstrap over `n` blocks: percentile interval; p is the share of draws on the wrong side."""

    def __init__(self, n: int, estimate: float, draws: np.ndarray):
        self.n = n
        self.estimate = estimate
        self.draws = draws

    def interval(self, level: float) -> tuple[float, float] | None:
        if self.n < 2:
            return None
        tail = (1 - fraction(level, "level")) / 2
        low, high = np.quantile(self.draws, [tail, 1 - tail])
        return float(low), float(high)

    def p_above(self, threshold: float) -> float | None:
        return self._share(self.draws <= threshold)

    def p_below(self, threshold: float) -> float | None:
        return self._share(self.draws >= threshold)

    def _share(self, wrong: np.ndarray) -> float | None:
        return (1 + int(wrong.sum())) / (1 + wrong.size) if self.n > 1 else None


class Exact:
    """What cannot err: a counted quantity (bytes, parameters), or an identity, which holds in every pair or
    not at all. Its interval is from the smallest value to the largest.
    """

    def __init__(self, *values: float):
        known = finite(values, "exact value")
        self.n = known.size
        self.low, self.high = float(known.min()), float(known.max())
        # of an identity the value that is furthest from nought: what broke it, if any did
        self.estimate = max(self.low, self.high, key=abs)

    def interval(self, level: float) -> tuple[float, float]:
        return self.low, self.high

    def p_above(self, threshold: float) -> float:
        return 0.0 if self.low > threshold else 1.0

    def p_below(self, threshold: float) -> float:
        return 0.0 if self.high < threshold else 1.0


def support(evidence: Evidence, where: tuple[float, float]) -> float | None:
    """p of "the value lies outside `where`": the larger of the one-sided tests against its finite ends."""
    sides = [evidence.p_above(where[0])] if math.isfinite(where[0]) else []
    sides += [evidence.p_below(where[1])] if math.isfinite(where[1]) else []
    known = [side for side in sides if side is not None]
    return max(known) if len(known) == len(sides) else None
