"""False discoveries among many claims, tested one after another or in a batch, by e-values.

An e-value is a nonnegative number whose expectation is at most 1 where the claim is false. Both procedures
bound the expected proportion of false claims among the accepted ones, whatever the dependence between the
e-values: candidates may share a champion.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from attnlab.stats.evalues import compute_log_capital
from attnlab.stats.evidence import Values, validate_finite, validate_fraction
from attnlab.stats.stopping_rules import PRIOR_VARIANCE

LARGEST_LOG = 600.0  # of an e-value: beyond any threshold, and finite as a float


def compute_t_evalue(differences: Values) -> float:
    """E-value of "the mean difference is above 0": a t test over a half-normal prior of positive effects.

    The likelihood ratio of t averages over effects in standard deviations with twice the positive half of
    N(0, `PRIOR_VARIANCE`) (Gönen et al. 2005, closed form; Wang & Ramdas 2023, arXiv 2310.03722). It is a
    martingale at an effect of 0 for observers of t alone, and smaller for every negative effect, as t is; so
    the number of differences may depend on earlier t.

    Raises:
        ValueError: a difference is not finite, or there is none.
    """
    x = validate_finite(differences, "differences")
    n, mean = x.size, float(x.mean())
    total = float(np.square(x).sum())
    if not total:
        return 1.0
    precision = n + 1 / PRIOR_VARIANCE
    location = n * mean / precision
    residual = total - location**2 * precision
    log_ratio = (n / 2) * math.log(total / residual) - math.log(1 + n * PRIOR_VARIANCE) / 2
    positive = float(special.stdtr(n, location / math.sqrt(residual / (n * precision))))
    return 2 * math.exp(min(log_ratio, LARGEST_LOG)) * positive


def find_largest_evalue(count: int) -> float:
    """The e-value that so many differences cannot exceed, however large and equal they are."""
    prior_ratio = 1 + count * PRIOR_VARIANCE
    return 2 * math.exp(min((count - 1) / 2 * math.log(prior_ratio), LARGEST_LOG))


def compute_sign_evalue(signs: Sequence[bool]) -> float:
    """E-value of "more than half of all pairs are true": the capital of bets on the next pair."""
    if not len(signs):
        return 1.0
    return float(np.exp(min(compute_log_capital(np.asarray(signs, float), 0.5)[-1], LARGEST_LOG)))


def compute_online_level(test: int, discoveries: int, rate: float) -> float:
    """Level of test number `test`, from 1, after so many discoveries: it accepts if e >= 1 / level.

    e-LOND (Xu & Ramdas 2024, arXiv 2311.06412): the proportions 1 / (t (t + 1)) of the rate sum to 1 over
    all tests, and each discovery adds a multiple.
    """
    if test < 1 or not 0 <= discoveries < test:
        raise ValueError(f"test {test} after {discoveries} discoveries: count tests from 1")
    return validate_fraction(rate, "rate") * (discoveries + 1) / (test * (test + 1))


def select_discoveries(e_values: Sequence[float], rate: float) -> list[bool]:
    """Which claims of a batch to accept: e-BH (Wang & Ramdas 2022, arXiv 2009.02824)."""
    validate_fraction(rate, "rate")
    ordered = sorted(e_values, reverse=True)
    count = max((k for k, e in enumerate(ordered, 1) if e >= len(ordered) / (rate * k)), default=0)
    return [count > 0 and e >= ordered[count - 1] for e in e_values]
