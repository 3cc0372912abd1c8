"""Power analysis of a number of paired seeds: detectable effects and seeds needed, in sd of the differences.

The noncentral t is written throughout as a mixture of normals over the sample sd, which stays finite where
scipy's `nct` gives NaN. The normal approximation would promise 1.62 sd at n = 3; the exact value is 3.26.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from scipy import special

from attnlab.stats.evalues import RankDifferences, compute_log_capital
from attnlab.stats.evidence import Values, find_first, validate_fraction
from attnlab.stats.paired_tests import estimate_paired_difference
from attnlab.stats.stopping_rules import FIXED_SAMPLE, GroupSequential, StoppingRule

SIMULATED_SWEEPS = 200  # where a probability has no formula
N_PANELS, N_NODES = 13, 20  # of integrals, which have 11 digits or more
MAX_SEEDS = 10_000  # more seeds than this are no plan: the result is None


def compute_power(n: int, effect: float, alpha: float = 0.05) -> float:
    """Probability that the two-sided paired t test at alpha detects a true effect of so many sd."""
    return _compute_t_power(n, effect * math.sqrt(n), _compute_critical_t(n, alpha))


def compute_group_power(n: int, effect: float, alpha: float = 0.05) -> float:
    """Power of the two-sided t test between two groups of n at a true effect of so many sd of a run."""
    if n < 2:
        raise ValueError(f"n={n}: a test needs at least 2 runs on each side")
    return _compute_t_power(2 * n - 1, effect * math.sqrt(n / 2), _compute_critical_t(2 * n - 1, alpha))


def _compute_critical_t(n: int, alpha: float) -> float:
    return -_compute_t_quantile(n, validate_fraction(alpha, "alpha") / 2)


def _compute_t_power(n: int, noncentrality: float, critical: float) -> float:
    """Probability that t, with n - 1 degrees of freedom, lies beyond the critical value on either side."""

    def compute_detection_chance(s: np.ndarray) -> np.ndarray:
        return np.asarray(
            special.ndtr(noncentrality - critical * s) + special.ndtr(-noncentrality - critical * s)
        )

    return _integrate_over_sd(n, compute_detection_chance, noncentrality / critical, 1 / critical)


def find_detectable_effect(n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The effect, in sd, that n pairs detect with this power."""
    return _find_effect(lambda effect: compute_power(n, effect, alpha), n, power, alpha)


def find_detectable_group_effect(n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The effect, in sd of a run, that two independent groups of n detect with this power."""
    return _find_effect(lambda effect: compute_group_power(n, effect, alpha), n, power, alpha)


def _find_effect(compute: Callable[[float], float], n: int, power: float, alpha: float) -> float:
    target = _validate_power(power, alpha)
    upper_bound = 10 * -_compute_t_quantile(n, alpha / 2)
    return find_first(lambda effect: compute(effect) >= target, 0.0, upper_bound)


def find_group_seeds_needed(effect: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """The fewest runs per side that detect an effect of so many sd; None where it takes more than 10 000."""
    target = _validate_power(power, alpha)
    return _find_fewest_seeds(lambda n: compute_group_power(n, effect, alpha) >= target)


def estimate_sd_bounds(sd: float, n: int, level: float = 0.9) -> tuple[float, float]:
    """Interval of a normal distribution's standard deviation, from the sample's of n values."""
    if n < 2:
        raise ValueError(f"n={n}: a standard deviation needs at least 2 values")
    tail = (1 - validate_fraction(level, "level")) / 2
    low, high = (sd * math.sqrt((n - 1) / special.chdtri(n - 1, q)) for q in (tail, 1 - tail))
    return low, high


def compute_tost_power(n: int, margin: float, alpha: float = 0.05) -> float:
    """Probability that the equivalence test passes when the true difference is 0; the margin in sd."""
    if margin <= 0:
        raise ValueError(f"margin={margin} must be positive")
    standardized_margin = margin * math.sqrt(n)
    critical = -_compute_t_quantile(n, validate_fraction(alpha, "alpha"))
    return _integrate_over_sd(
        n,
        lambda s: 2 * special.ndtr(standardized_margin - critical * s) - 1,
        standardized_margin / critical,
        1 / critical,
        is_zero_beyond=True,
    )


def find_seeds_for_equivalence(margin: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """The fewest pairs that show equivalence within a margin of so many sd when the true difference is 0."""
    target = _validate_power(power, alpha)
    return _find_fewest_seeds(lambda n: compute_tost_power(n, margin, alpha) >= target)


@dataclass(frozen=True)
class SeedsToDecide:
    """Total seeds that would decide a claim with this power at the observed effect.

    `low` and `high` come from the 90% interval of the sd. Each is None where it takes more than 10 000 seeds;
    both are None where sweeps are resampled: for proportions, and for medians.
    """

    seeds: int | None
    low: int | None
    high: int | None
    power: float
    ends: Literal["support", "refute"]  # the expected decision


def estimate_seeds_to_decide(
    values: Values,
    region: tuple[float, float],
    tail: float,
    power: float = 0.8,
    stopping_rule: StoppingRule = FIXED_SAMPLE,
) -> SeedsToDecide | None:
    """Seeds needed to decide whether the mean lies in `region`, each finite end tested at `tail`.

    The tests are one-sided. None for one pair, or where all differences are equal. For group-sequential
    designs this is the number of fresh seeds that a single analysis would need.
    """
    rule = FIXED_SAMPLE if isinstance(stopping_rule, GroupSequential) else stopping_rule
    estimate = estimate_paired_difference(values)
    if not estimate.sd or estimate.tied:
        return None
    inside, ends = _find_deciding_bounds(estimate.mean, region)
    gaps = [abs(estimate.mean - end) for end in ends]
    sd_bounds = estimate_sd_bounds(estimate.sd, estimate.n)

    def count_seeds(sd: float) -> int | None:
        def has_enough_power(n: int) -> bool:
            critical = rule.critical_value(n, tail)
            misses = [1 - _compute_t_power(n, gap / sd * math.sqrt(n), critical) for gap in gaps]
            return 1 - sum(misses) >= power

        return _find_fewest_seeds(has_enough_power)

    low, high = map(count_seeds, sd_bounds)
    return SeedsToDecide(count_seeds(estimate.sd), low, high, power, "support" if inside else "refute")


def simulate_seeds_to_decide(
    differences: Values, region: tuple[float, float], tail: float, power: float = 0.8
) -> SeedsToDecide | None:
    """`estimate_seeds_to_decide` for differences of proportions, whose e-values are simulated.

    The sweeps are resampled from the observed differences.
    """
    observed = np.asarray(differences, dtype=float)
    if observed.size < 2 or np.ptp(observed) == 0:
        return None
    mean = float(observed.mean())
    inside, ends = _find_deciding_bounds(mean, region)
    signs = [1 if mean >= end else -1 for end in ends]  # bet against a mean on the other side of the end
    bets = [((sign * observed + 1) / 2, (sign * end + 1) / 2) for sign, end in zip(signs, ends, strict=True)]
    return _simulate_bets(bets, inside, tail, power)


def simulate_seeds_to_decide_median(
    evidence: RankDifferences, region: tuple[float, float], tail: float, power: float = 0.8
) -> SeedsToDecide | None:
    """`estimate_seeds_to_decide` for the median of outcomes by their order alone.

    The sweeps are resampled from the observed outcomes, which may be infinite, or NaN where they count for
    neither side.
    """
    ordered = np.sort(evidence.values[~np.isnan(evidence.values)])
    if ordered.size < 2 or ordered[0] == ordered[-1]:
        return None
    middle = float(ordered[(ordered.size - 1) // 2]), float(ordered[ordered.size // 2])
    median = sum(middle) / 2 if math.isfinite(sum(middle)) else middle[0]
    inside, ends = _find_deciding_bounds(median, region)
    bets = [
        ((evidence.lower > end if median >= end else evidence.upper < end).astype(float), 0.5) for end in ends
    ]
    return _simulate_bets(bets, inside, tail, power)


def _simulate_bets(
    bets: Sequence[tuple[np.ndarray, float]], inside: bool, tail: float, power: float
) -> SeedsToDecide:
    """The fewest resampled seeds with which all bets, pairs of values in [0, 1] and a mean, reject."""
    [count] = {values.size for values, _ in bets}
    seeds = np.random.default_rng(0).choice(count, (SIMULATED_SWEEPS, MAX_SEEDS))
    is_decided = np.ones(seeds.shape, dtype=bool)
    for values, mean in bets:
        is_decided &= compute_log_capital(values[seeds], mean) >= -math.log(tail)
    undecided_count = int(
        (is_decided.mean(0) < power).sum()
    )  # numbers of seeds with too little power, which are nearly the first ones
    count_needed = undecided_count + 1 if undecided_count < MAX_SEEDS else None
    return SeedsToDecide(count_needed, None, None, power, "support" if inside else "refute")


def _find_deciding_bounds(mean: float, region: tuple[float, float]) -> tuple[bool, list[float]]:
    """Whether the mean lies in `region`, and the ends that it must be distinguished from to show so."""
    ends = [end for end in region if math.isfinite(end)]
    inside = region[0] < mean < region[1]
    return inside, ends if inside else [min(ends, key=lambda end: abs(mean - end))]


def _validate_power(power: float, alpha: float) -> float:
    if not alpha < validate_fraction(power, "power"):
        raise ValueError(f"power={power} must be above alpha={alpha}: a random decision has that power")
    return power


def _compute_t_quantile(n: int, tail: float) -> float:
    if n < 2:
        raise ValueError(f"n={n}: a test needs at least 2 paired seeds")
    return float(special.stdtrit(n - 1, tail))


def _integrate_over_sd(
    n: int,
    chance: Callable[[np.ndarray], np.ndarray],
    edge: float,
    width: float,
    *,
    is_zero_beyond: bool = False,
) -> float:
    """Mean of chance(s) over s = sample sd / true sd, a scaled chi.

    Gauss-Legendre on panels: scipy's `integrate` takes longer to import than most reports to work out.

    Args:
        edge, width: The chance changes at `edge`, within a few times `width`.
        is_zero_beyond: Whether it is 0 above `edge`.
    """
    df = n - 1
    constant = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
    quantiles = 2 * special.gammaincinv(df / 2, 1e-16), special.chdtri(df, 1e-16)  # of chi squared
    low, high = (math.sqrt(q / df) for q in quantiles)
    if is_zero_beyond:
        high = min(high, edge)
    if high <= low:
        return 0.0
    panels = [*np.linspace(low, high, N_PANELS), *(edge + width * np.arange(-9, 10, 3))]
    ends = np.unique(np.clip(panels, low, high))
    nodes, weights = _compute_nodes()
    half = np.diff(ends)[:, None] / 2
    s = (ends[:-1, None] + half + half * nodes).ravel()
    density = np.exp(constant + (df - 1) * np.log(s) - df * s * s / 2)
    return float(np.sum((half * weights).ravel() * density * chance(s)))


@cache
def _compute_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(N_NODES)
    return nodes, weights


def _find_fewest_seeds(is_enough: Callable[[int], bool]) -> int | None:
    high = 2
    while not is_enough(high):
        if high >= MAX_SEEDS:
            return None
        high = min(2 * high, MAX_SEEDS)
    low = high // 2  # not enough, or below the smallest n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
