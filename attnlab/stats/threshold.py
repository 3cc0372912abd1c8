"""Phase-change tasks: steps until a threshold is reached, right-censored at the budget, and who solved it.

Surprising: all runs are censored at one budget, so min(steps, budget) is fully observed and its paired
difference has an ordinary t interval; the mean over the solved runs alone would reward an arm for failing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnlab.stats.difference import Paired, paired
from attnlab.stats.evidence import fraction
from attnlab.stats.sensitivity import Flips, sign_flip

Steps = Sequence[float | None]


@dataclass(frozen=True)
class Solved:
    count: int
    n: int
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Race:
    n: int
    a: Solved
    b: Solved
    a_median: float | None  # steps by which half of the runs had solved it; None where fewer did
    b_median: float | None
    saved: Paired  # a - b in min(steps, budget): negative where a is earlier
    flips: Flips  # exact paired test on log-rank scores
    # the usual unpaired, asymptotic test; None where no run solved it, or all did at one step
    logrank_p: float | None


def solved(count: int, n: int, level: float = 0.95) -> Solved:
    """The solved fraction's exact (Clopper-Pearson) interval."""
    if not 0 <= count <= n or n < 1:
        raise ValueError(f"solved: {count} of {n} runs is not a fraction")
    from scipy import stats  # takes a second to import, which a plan does not need

    interval = stats.binomtest(count, n).proportion_ci(fraction(level, "level"), method="exact")
    return Solved(count, n, float(interval.low), float(interval.high), level)


def race(a: Steps, b: Steps, budget: float, level: float = 0.95) -> Race:
    """Two arms, paired by seed, by their steps to the threshold; None, or beyond the budget, is not reached.

    A run that diverged or crashed did not reach it either.
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"race: {len(a)} and {len(b)} runs; need the same seeds in both arms, at least one")
    for steps in (*a, *b):
        if steps is not None and not steps > 0:  # NaN too
            raise ValueError(f"race: {steps} steps; give a positive number, or None where it was not reached")
    times = np.array([budget if steps is None else min(steps, budget) for steps in (*a, *b)])
    reached = np.array([steps is not None and steps <= budget for steps in (*a, *b)])
    n, (first, second) = len(a), np.split(times, 2)
    from scipy import stats  # as above

    scores = _scores(times, reached)
    sides = [
        stats.CensoredData(uncensored=t[r], right=t[~r])
        for t, r in zip(np.split(times, 2), np.split(reached, 2), strict=True)
    ]
    unequal = len(set(times[reached])) > 1 or not reached.all()  # else its variance is nought
    logrank_p = float(stats.logrank(*sides).pvalue) if reached.any() and unequal else None
    return Race(
        n,
        solved(int(reached[:n].sum()), n, level),
        solved(int(reached[n:].sum()), n, level),
        _median(first, reached[:n]),
        _median(second, reached[n:]),
        paired(first - second, level),
        sign_flip(scores[:n] - scores[n:]),
        logrank_p,
    )


def _scores(times: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """Log-rank score of each run: 1 if it reached, less the pooled Nelson-Aalen hazard at its time."""
    events = np.unique(times[reached])
    hazard = np.array([(reached & (times == t)).sum() / (times >= t).sum() for t in events])
    return np.asarray(reached - (hazard[None] * (events[None] <= times[:, None])).sum(axis=1))


def _median(times: np.ndarray, reached: np.ndarray) -> float | None:
    """All are censored at one time, so the Kaplan-Meier median is the step by which half had reached it."""
    needed = (len(times) + 1) // 2
    return float(np.sort(times[reached])[needed - 1]) if reached.sum() >= needed else None
