"""One arm against another over paired seeds: the effect with its interval, equivalence, non-inferiority; and
the effect as a share of the training.

Surprising: an equivalence test at alpha uses the interval at 1 - 2 alpha (90 % for .05), whose ends are
one-sided 95 % bounds. Only `tost` and `noninferior` may call arms alike; a large p of `paired` says nothing.
A share of the training is a ratio of two estimates, so its interval is wider than that of the effect.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.stats.designs import FIXED, Design
from attnlab.stats.evidence import Differences, Ends, Values, finite, support


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
    above = sample.p_above(0)
    below = sample.p_below(0)
    p = None if above is None or below is None else min(1.0, 2 * min(above, below))
    return Paired(sample.n, _mean(sample), sample.sd, low, high, level, p, sample.tied)


def tost(differences: Values, margin: float, alpha: float = 0.05, design: Design = FIXED) -> Tested:
    """Equivalence: passed where the interval at 1 - 2 alpha lies inside +-margin."""
    _check_margin(margin)
    sample = Differences(finite(differences, "differences"), design)
    low, high = sample.interval(1 - 2 * alpha) or (None, None)
    return _tested(sample, (-margin, margin), low, high, alpha)


def noninferior(
    differences: Values, margin: float, alpha: float = 0.05, direction: str = "lower", design: Design = FIXED
) -> Tested:
    """Worse by less than the margin, by the one-sided bound on the side that hurts; the other end is None."""
    _check_margin(margin)
    if direction not in ("lower", "higher"):
        raise ValueError(f"direction={direction!r} must be 'lower' or 'higher' (which of them is better)")
    sample = Differences(finite(differences, "differences"), design)
    low, high = sample.interval(1 - 2 * alpha) or (None, None)
    if direction == "lower":
        return _tested(sample, (-math.inf, margin), None, high, alpha)
    return _tested(sample, (-margin, math.inf), low, None, alpha)


def _check_margin(margin: float) -> None:
    if not 0 < margin < math.inf:
        raise ValueError(f"margin={margin} must be positive: it is the largest cost that would be accepted")


@dataclass(frozen=True)
class Trained:
    """A loss as training: -0.05 is what 5 % less training costs, 0.07 what 7 % more gains. `low` and `high`
    go with the ends of the effect, so `low` is the larger share; None where there is no bound.
    """

    share: float
    low: float | None
    high: float | None


FAR = 10.0  # doublings: a factor of a thousand, told by runs that differ by four, is no bound


def trained(
    effect: float, interval: tuple[float, float] | None, slope: float, slopes: tuple[float, float] | None
) -> Trained | None:
    """What an effect on a loss is in training, where each doubling lowers the loss by `slope`; None where
    that is not above 0. The intervals have one level, which is that of the answer.
    """
    if not (slope > 0 and math.isfinite(effect)):
        return None
    ends = quotient(effect, interval or (-math.inf, math.inf), slope, slopes or (-math.inf, math.inf))
    low, high = (None if end is None or abs(end) > FAR else _share(end) for end in ends)
    return Trained(_share(effect / slope), low, high)


def quotient(
    a: float, a_ends: tuple[float, float], b: float, b_ends: tuple[float, float]
) -> tuple[float | None, float | None]:
    """The interval of a / b from those of a and b, two independent estimates, b > 0; None: no bound.

    MOVER-R: those ratios r for which the interval of a - r b, made of the distances between the estimates and
    their ends, has 0 in it (Donner and Zou, Stat. Methods Med. Res. 21:347, 2012; Newcombe, Stat. Methods
    Med. Res. 25:1774, 2016).
    """
    low = _least(a, a_ends[0], b, b_ends)
    high = _least(-a, -a_ends[1], b, b_ends)
    return low, None if high is None else -high


def _least(a: float, end: float, b: float, b_ends: Sequence[float]) -> float | None:
    """The r at which a - r b leaves 0 by as much as both may be off; it has the sign of `end`."""
    off = b_ends[1] - b if end > 0 else b - b_ends[0]
    if not math.isfinite(end) or (end <= 0 and off >= b):
        return None
    if math.isinf(off):  # nothing bounds b from above
        return 0.0
    rest = end * (2 * a - end)  # of a quadratic in r: (b^2 - off^2) r^2 - 2 a b r + rest = 0
    root = math.sqrt(max(0.0, (a * b) ** 2 - (b * b - off * off) * rest))
    return rest / (a * b + root) if end > 0 else (a * b - root) / (b * b - off * off)


def _share(doublings: float) -> float:
    """Of the training, that this much loss in doublings is worth: less where it is above 0."""
    return math.expm1(-doublings * math.log(2))


def _mean(sample: Differences) -> float:
    assert sample.estimate is not None, "finite() refuses an empty list"
    return sample.estimate


def _tested(
    sample: Differences, where: tuple[float, float], low: float | None, high: float | None, alpha: float
) -> Tested:
    known = sample.sd is not None and not sample.tied
    passed = known and all(end is None or where[0] < end < where[1] for end in (low, high))
    return Tested(sample.n, _mean(sample), low, high, 1 - 2 * alpha, alpha, support(sample, where), passed)
