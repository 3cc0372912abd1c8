"""Steps to a threshold, right-censored at the budget, and the fraction of runs that reach it.

All runs are censored at one budget, so min(steps, budget) is fully observed and its paired difference has an
ordinary t interval. The mean over successful runs alone would reward an arm for failing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnlab.stats.evidence import validate_fraction
from attnlab.stats.paired_tests import PairedEstimate, estimate_paired_difference
from attnlab.stats.sensitivity import SignFlipResult, run_sign_flip_test

Steps = Sequence[float | None]


@dataclass(frozen=True)
class BinomialProportion:
    """Fraction `count` / `n` with its Clopper-Pearson interval."""

    count: int
    n: int
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class StepsComparison:
    """Arms a and b over `n` seeds: fractions, medians and paired tests.

    Attributes:
        a_median: steps by which half of the runs reached the threshold; None where fewer did. Likewise b.
        steps_saved: a - b in min(steps, budget); negative where a is earlier.
        sign_flip: exact paired test on log-rank scores.
        logrank_p: the usual unpaired, asymptotic test; None where no run reached the threshold, or all did at
            one step.
    """

    n: int
    a: BinomialProportion
    b: BinomialProportion
    a_median: float | None
    b_median: float | None
    steps_saved: PairedEstimate
    sign_flip: SignFlipResult
    logrank_p: float | None


def estimate_proportion(count: int, n: int, level: float = 0.95) -> BinomialProportion:
    """Exact (Clopper-Pearson) interval of a proportion.

    Raises:
        ValueError: `count` of `n` is not a fraction.
    """
    if not 0 <= count <= n or n < 1:
        raise ValueError(f"solved: {count} of {n} runs is not a proportion")
    from scipy import stats  # imported here: takes a second, which planning does not need

    interval = stats.binomtest(count, n).proportion_ci(validate_fraction(level, "level"), method="exact")
    return BinomialProportion(count, n, float(interval.low), float(interval.high), level)


def compare_steps(a: Steps, b: Steps, budget: float, level: float = 0.95) -> StepsComparison:
    """Compare two arms, paired by seed, by their steps to the threshold.

    None, a number beyond the budget, and a run that diverged or crashed all mean "not reached".

    Raises:
        ValueError: the arms have different or no seeds, or a number of steps is not positive.
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(
            f"steps to threshold: {len(a)} and {len(b)} runs; both arms need the same seeds, at least one"
        )
    for steps in (*a, *b):
        if steps is not None and not steps > 0:  # NaN too
            raise ValueError(
                f"steps to threshold: {steps} must be positive, or None if the threshold was not reached"
            )
    times = np.array([budget if steps is None else min(steps, budget) for steps in (*a, *b)])
    reached = np.array([steps is not None and steps <= budget for steps in (*a, *b)])
    n, (a_times, b_times) = len(a), np.split(times, 2)
    from scipy import stats  # imported here, as above

    scores = _compute_logrank_scores(times, reached)
    sides = [
        stats.CensoredData(uncensored=t[r], right=t[~r])
        for t, r in zip(np.split(times, 2), np.split(reached, 2), strict=True)
    ]
    unequal = len(set(times[reached])) > 1 or not reached.all()  # else its variance is 0
    logrank_p = float(stats.logrank(*sides).pvalue) if reached.any() and unequal else None
    return StepsComparison(
        n,
        estimate_proportion(int(reached[:n].sum()), n, level),
        estimate_proportion(int(reached[n:].sum()), n, level),
        _compute_median_steps(a_times, reached[:n]),
        _compute_median_steps(b_times, reached[n:]),
        estimate_paired_difference(a_times - b_times, level),
        run_sign_flip_test(scores[:n] - scores[n:]),
        logrank_p,
    )


def _compute_logrank_scores(times: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """Log-rank score of each run: 1 if it reached, less the pooled Nelson-Aalen hazard at its time."""
    events = np.unique(times[reached])
    hazard = np.array([(reached & (times == t)).sum() / (times >= t).sum() for t in events])
    return np.asarray(reached - (hazard[None] * (events[None] <= times[:, None])).sum(axis=1))


def _compute_median_steps(times: np.ndarray, reached: np.ndarray) -> float | None:
    """Kaplan-Meier median: as all runs are censored at one time, the step by which half had reached it."""
    needed = (len(times) + 1) // 2
    return float(np.sort(times[reached])[needed - 1]) if reached.sum() >= needed else None
