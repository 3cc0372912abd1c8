"""Steps to a threshold, right-censored at the budget, and the fraction of runs that reach it.

All runs are censored at one budget, so min(steps, budget) is fully observed and its paired difference has an
ordinary t interval. The mean over successful runs alone would reward an arm for failing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnlab.stats.evidence import CONFIDENCE_LEVEL
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
class StepsSummary:
    """The runs of one arm: the fraction that reached the threshold, and the steps by which half of them did.

    `median` is None where fewer than half did.
    """

    reached: BinomialProportion
    median: float | None


@dataclass(frozen=True)
class StepsComparison:
    """Paired tests of arms a and b over `n` seeds.

    Attributes:
        steps_saved: a - b in min(steps, budget); negative where a is earlier.
        sign_flip: exact paired test on log-rank scores.
        logrank_p: the usual unpaired, asymptotic test; None where no run reached the threshold, or all did at
            one step.
    """

    n: int
    steps_saved: PairedEstimate
    sign_flip: SignFlipResult
    logrank_p: float | None


def estimate_proportion(count: int, n: int) -> BinomialProportion:
    """Exact (Clopper-Pearson) 95% interval of a proportion.

    Raises:
        ValueError: `count` of `n` is not a fraction.
    """
    if not 0 <= count <= n or n < 1:
        raise ValueError(f"solved: {count} of {n} runs is not a proportion")
    from scipy import stats  # imported here: takes a second, which planning does not need

    interval = stats.binomtest(count, n).proportion_ci(CONFIDENCE_LEVEL, method="exact")
    return BinomialProportion(count, n, float(interval.low), float(interval.high), CONFIDENCE_LEVEL)


def summarize_steps(steps: Steps, budget: float) -> StepsSummary:
    """Summarize one arm by its steps to the threshold; None and errors as of `compare_steps`."""
    times, reached = _censor_steps(steps, budget)
    needed = (len(times) + 1) // 2
    # Kaplan-Meier median: as all runs are censored at one time, the step by which half had reached it
    median = float(np.sort(times[reached])[needed - 1]) if reached.sum() >= needed else None
    return StepsSummary(estimate_proportion(int(reached.sum()), len(times)), median)


def compare_steps(a: Steps, b: Steps, budget: float) -> StepsComparison:
    """Compare two arms, paired by seed, by their steps to the threshold.

    None, a number beyond the budget, and a run that diverged or crashed all mean "not reached".

    Raises:
        ValueError: the arms have different or no seeds, or a number of steps is not positive.
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(
            f"steps to threshold: {len(a)} and {len(b)} runs; both arms need the same seeds, at least one"
        )
    times, reached = _censor_steps([*a, *b], budget)
    (a_times, b_times), (a_reached, b_reached) = np.split(times, 2), np.split(reached, 2)
    from scipy import stats  # imported here, as above

    a_scores, b_scores = np.split(_compute_logrank_scores(times, reached), 2)
    sides = [
        stats.CensoredData(uncensored=t[r], right=t[~r])
        for t, r in ((a_times, a_reached), (b_times, b_reached))
    ]
    unequal = len(set(times[reached])) > 1 or not reached.all()  # else its variance is 0
    logrank_p = float(stats.logrank(*sides).pvalue) if reached.any() and unequal else None
    return StepsComparison(
        len(a),
        estimate_paired_difference(a_times - b_times, CONFIDENCE_LEVEL),
        run_sign_flip_test(a_scores - b_scores),
        logrank_p,
    )


def _censor_steps(steps: Steps, budget: float) -> tuple[np.ndarray, np.ndarray]:
    """min(steps, budget) and whether the threshold was reached, of each run."""
    for run_steps in steps:
        if run_steps is not None and not run_steps > 0:  # NaN too
            raise ValueError(
                f"steps to threshold: {run_steps} must be positive, or None if the threshold was not reached"
            )
    times = np.array([budget if run_steps is None else min(run_steps, budget) for run_steps in steps])
    return times, np.array([run_steps is not None and run_steps <= budget for run_steps in steps])


def _compute_logrank_scores(times: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """Log-rank score of each run: 1 if it reached, less the pooled Nelson-Aalen hazard at its time."""
    events = np.unique(times[reached])
    hazard = np.array([(reached & (times == t)).sum() / (times >= t).sum() for t in events])
    return np.asarray(reached - (hazard[None] * (events[None] <= times[:, None])).sum(axis=1))
