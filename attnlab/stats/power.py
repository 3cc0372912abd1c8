"""What a number of paired seeds can show: detectable effects and seeds needed, in sd of the differences.

Surprising: it is the noncentral t throughout, written as a mixture of normals over the sample sd, which stays
finite where scipy's `nct` gives NaN. The normal approximation would promise 1.62 sd at n = 3; it takes 3.26.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from attnlab.stats.betting import capital
from attnlab.stats.difference import paired
from attnlab.stats.evidence import Values, fraction

BETS = 200  # sweeps drawn, where a chance has no formula
MOST = 10_000  # a plan with more seeds than this is no plan: the answer is None


@dataclass(frozen=True)
class Planning:
    """In the metric's own unit. The sd comes from the same few seeds, so these are planning values."""

    sd: float
    power: float
    alpha: float
    detectable: float  # the effect that this n finds with this power
    seeds_for_half: int | None  # seeds that would find half of it
    seeds_for_margin: int | None  # seeds that would show equal arms to be equivalent


def power(n: int, effect: float, alpha: float = 0.05) -> float:
    """Chance that the two-sided paired t test at alpha finds a true effect of so many sd."""
    shift = effect * math.sqrt(n)
    critical = -_quantile(n, fraction(alpha, "alpha") / 2)

    def found(s: float) -> float:
        return float(special.ndtr(shift - critical * s) + special.ndtr(-shift - critical * s))

    return _mean_over_sd(n, found)


def detectable(n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The effect, in sd, that n pairs find with this power."""
    wanted = _wanted(power, alpha)
    most = 10 * -_quantile(n, alpha / 2)
    from scipy import optimize  # takes longer to import than most reports to work out

    return float(optimize.brentq(lambda effect: _power(n, effect, alpha) - wanted, 0, most, xtol=1e-10))


def seeds_needed(effect: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """The fewest pairs that find an effect of so many sd; None where it takes more than 10 000."""
    wanted = _wanted(power, alpha)
    return _fewest(lambda n: _power(n, effect, alpha) >= wanted)


def tost_power(n: int, margin: float, alpha: float = 0.05) -> float:
    """Chance that the equivalence test passes when the true difference is 0; the margin in sd."""
    if margin <= 0:
        raise ValueError(f"margin={margin} must be positive")
    reach = margin * math.sqrt(n)
    critical = -_quantile(n, fraction(alpha, "alpha"))
    return _mean_over_sd(n, lambda s: 2 * special.ndtr(reach - critical * s) - 1, top=reach / critical)


def seeds_for_equivalence(margin: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """The fewest pairs that show equivalence within a margin of so many sd when the true difference is 0."""
    wanted = _wanted(power, alpha)
    return _fewest(lambda n: tost_power(n, margin, alpha) >= wanted)


def planning(
    differences: Values, margin: float | None = None, power: float = 0.8, alpha: float = 0.05
) -> Planning | None:
    """The power line of a report; None for one pair, or where all differences are equal."""
    estimate = paired(differences)
    if not estimate.sd:
        return None
    least = detectable(estimate.n, power, alpha)
    for_half = seeds_needed(least / 2, power, alpha)
    for_margin = None if margin is None else seeds_for_equivalence(margin / estimate.sd, power, alpha)
    return Planning(estimate.sd, power, alpha, least * estimate.sd, for_half, for_margin)


@dataclass(frozen=True)
class Deciding:
    """Seeds in all that would decide a claim with this power, if the truth is as it was seen.

    `low` and `high` come from the 90 % interval of the sd; None where it takes more than 10 000, and both of
    shares, whose spread goes with their mean.
    """

    seeds: int | None
    low: int | None
    high: int | None
    power: float
    ends: str  # "support" or "refute": what they would end in


def deciding(values: Values, where: tuple[float, float], tail: float, power: float = 0.8) -> Deciding | None:
    """For a claim that the mean lies in `where`, each of whose finite ends is tested one-sided at `tail`.

    None for one pair, or where all differences are equal. Of looks it tells what one look at so many takes.
    """
    estimate = paired(values)
    if not estimate.sd or estimate.tied:
        return None
    inside, ends = _decided_at(estimate.mean, where)
    gaps = [abs(estimate.mean - end) for end in ends]
    df = estimate.n - 1
    spread = [estimate.sd * math.sqrt(df / special.chdtri(df, q)) for q in (0.05, 0.95)]

    def seeds(sd: float) -> int | None:
        def enough(n: int) -> bool:
            return 1 - sum(1 - _power(n, gap / sd, 2 * tail) for gap in gaps) >= power

        return _fewest(enough)

    low, high = map(seeds, spread)
    return Deciding(seeds(estimate.sd), low, high, power, "support" if inside else "refute")


def deciding_shares(
    differences: Values, where: tuple[float, float], tail: float, power: float = 0.8
) -> Deciding | None:
    """The same of differences of shares, which are bet on: by sweeps that are drawn from what was seen."""
    seen = np.asarray(differences, dtype=float)
    if seen.size < 2 or np.ptp(seen) == 0:
        return None
    mean = float(seen.mean())
    inside, ends = _decided_at(mean, where)
    draws = np.random.default_rng(0).choice(seen, (BETS, MOST))
    decided = np.ones(draws.shape, dtype=bool)
    for end in ends:
        up = 1 if mean >= end else -1  # against the doubter on the end's other side
        decided &= capital((up * draws + 1) / 2, (up * end + 1) / 2) >= -math.log(tail)
    seldom = int((decided.mean(0) < power).sum())  # at so many numbers of seeds: the first ones, nearly
    seeds = seldom + 1 if seldom < MOST else None
    return Deciding(seeds, None, None, power, "support" if inside else "refute")


_power = power  # `power` is also the name of an argument


def _decided_at(mean: float, where: tuple[float, float]) -> tuple[bool, list[float]]:
    """Whether the mean lies in `where`, and the ends that it has to be told from to show so."""
    ends = [end for end in where if math.isfinite(end)]
    inside = where[0] < mean < where[1]
    return inside, ends if inside else [min(ends, key=lambda end: abs(mean - end))]


def _wanted(power: float, alpha: float) -> float:
    if not alpha < fraction(power, "power"):
        raise ValueError(f"power={power} must be above alpha={alpha}: a coin has that much")
    return power


def _quantile(n: int, tail: float) -> float:
    if n < 2:
        raise ValueError(f"n={n}: it takes at least 2 paired seeds to test anything")
    return float(special.stdtrit(n - 1, tail))


def _mean_over_sd(n: int, chance: Callable[[float], float], top: float = math.inf) -> float:
    """Mean of chance(s) over s = sample sd / true sd, a scaled chi variable; chance is 0 above `top`."""
    df = n - 1
    constant = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
    quantiles = 2 * special.gammaincinv(df / 2, 1e-16), special.chdtri(df, 1e-16)  # of chi squared
    low, high = (math.sqrt(q / df) for q in quantiles)

    def weighted(s: float) -> float:
        return chance(s) * math.exp(constant + (df - 1) * math.log(s) - df * s * s / 2)

    if top <= low:
        return 0.0
    from scipy import integrate  # takes longer to import than most reports to work out

    return float(integrate.quad(weighted, low, min(high, top), epsabs=1e-11, epsrel=1e-11, limit=200)[0])


def _fewest(enough: Callable[[int], bool]) -> int | None:
    high = 2
    while not enough(high):
        if high >= MOST:
            return None
        high = min(2 * high, MOST)
    low = high // 2  # not enough, or below the smallest n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
