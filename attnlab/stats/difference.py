"""One arm against another over paired seeds: the effect with its interval, equivalence, non-inferiority.

Surprising: an equivalence test at alpha uses the interval at 1 - 2 alpha (90 % for .05), whose ends are
one-sided 95 % bounds. Only `tost` and `noninferior` may call arms alike; a large p of `paired` says nothing.
"""

from dataclasses import dataclass

from attnlab.stats.designs import FIXED, Design
from attnlab.stats.evidence import Differences, Ends, Values, finite, region, support


@dataclass(frozen=True)
class Paired(Ends):
    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    level: float
    p: float | None  # two-sided, of a mean difference of zero
    tied: bool = False  # all are equal, which leaves nothing to judge by


@dataclass(frozen=True)
class Tested(Ends):
    n: int
    mean: float
    low: float | None  # None also at the open side of a one-sided bound
    high: float | None
    level: float  # of the two-sided interval that the ends belong to: 1 - 2 alpha
    alpha: float
    p: float | None
    passed: bool


def paired(differences: Values, level: float = 0.95, design: Design = FIXED) -> Paired:
    """Mean difference, its t interval, and the two-sided p of "no difference"."""
    sample = Differences(finite(differences, "differences"), design)
    low, high = sample.interval(level) or (None, None)
    above, below = sample.p_above(0), sample.p_below(0)
    p = None if above is None or below is None else min(1.0, 2 * min(above, below))
    return Paired(sample.n, _mean(sample), sample.sd, low, high, level, p, sample.tied)


def tost(differences: Values, margin: float, alpha: float = 0.05, design: Design = FIXED) -> Tested:
    """Equivalence: passed where the interval at 1 - 2 alpha lies inside +-margin."""
    sample = Differences(finite(differences, "differences"), design)
    low, high = sample.interval(1 - 2 * alpha) or (None, None)
    return _tested(sample, region("within", margin), low, high, alpha)


def noninferior(
    differences: Values, margin: float, alpha: float = 0.05, direction: str = "lower", design: Design = FIXED
) -> Tested:
    """Worse by less than the margin, by the one-sided bound on the side that hurts; the other end is None."""
    if margin <= 0:
        raise ValueError(f"margin={margin} must be positive: it is the largest cost that would be accepted")
    if direction not in ("lower", "higher"):
        raise ValueError(f"direction={direction!r} must be 'lower' or 'higher' (which of them is better)")
    sample = Differences(finite(differences, "differences"), design)
    low, high = sample.interval(1 - 2 * alpha) or (None, None)
    if direction == "lower":
        return _tested(sample, region("below", margin), None, high, alpha)
    return _tested(sample, region("above", -margin), low, None, alpha)


def _mean(sample: Differences) -> float:
    assert sample.estimate is not None, "finite() refuses an empty list"
    return sample.estimate


def _tested(
    sample: Differences, where: tuple[float, float], low: float | None, high: float | None, alpha: float
) -> Tested:
    known = sample.sd is not None and not sample.tied
    passed = known and all(end is None or where[0] < end < where[1] for end in (low, high))
    return Tested(sample.n, _mean(sample), low, high, 1 - 2 * alpha, alpha, support(sample, where), passed)
