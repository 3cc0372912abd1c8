"""Stopping rules: a fixed sample, a group-sequential schedule, or anytime-valid. They set the critical t.

Intervals of a group-sequential or anytime-valid rule are repeated confidence intervals: those of all interim
analyses hold simultaneously, so the interval at any stopping point may be read as it stands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol, final

from scipy import special

from attnlab.stats import boundaries

PRIOR_VARIANCE = 4.0  # of an effect in sd, for `AnytimeValid`: effects of a few sd are found early


class StoppingRule(Protocol):
    """One-sided: a test at `level` rejects where t, of n values, reaches the critical value."""

    def critical_value(self, n: int, level: float) -> float: ...  # infinite where no t is large enough
    def p_value(self, n: int, t: float) -> float: ...  # the smallest level at which this t rejects


@final
class FixedSample:
    """All seeds, analyzed once: Student's t."""

    def critical_value(self, n: int, level: float) -> float:
        return -_compute_t_quantile(n, level)

    def p_value(self, n: int, t: float) -> float:
        return _compute_t_tail(n, t)

    def compute_tail(self, level: float) -> float:
        """Tail of t, with any degrees of freedom, beyond which a test at `level` rejects."""
        return level

    def find_level(self, tail: float) -> float:
        """The smallest level at which a t with this tail is rejected."""
        return tail


FIXED_SAMPLE = FixedSample()


@final
@dataclass(frozen=True)
class GroupSequential:
    """Interim analysis number `index` (from 0) of a group-sequential schedule, `analyses` in seeds."""

    analyses: tuple[int, ...]
    index: int

    def critical_value(self, n: int, level: float) -> float:
        return -_compute_t_quantile(n, self.compute_tail(level))

    def p_value(self, n: int, t: float) -> float:
        return self.find_level(_compute_t_tail(n, t))

    def compute_tail(self, level: float) -> float:
        return boundaries.compute_tails(self.analyses, level)[self.index]

    def find_level(self, tail: float) -> float:
        return boundaries.find_level(self.analyses, self.index, tail)


@final
class BeforeFirstAnalysis:
    """Before the first interim analysis: no alpha is spent, so nothing is rejected."""

    def critical_value(self, n: int, level: float) -> float:
        return math.inf

    def p_value(self, n: int, t: float) -> float:
        return 1.0


@final
class AnytimeValid:
    """After any number of seeds: a t test that is valid however often, and why ever, seeds were added.

    The mixture of likelihood ratios of t over normal effects (Wang & Ramdas 2023, arXiv 2310.03722, with
    the closed form of Gönen et al. 2005) is a martingale under no effect. A test rejects where it exceeds
    1 / level, each side using half.
    """

    def critical_value(self, n: int, level: float) -> float:
        r = 1 + n * PRIOR_VARIANCE
        q = (math.sqrt(r) / (2 * level)) ** (2 / n)
        return math.sqrt((n - 1) * (q - 1) / (1 - q / r)) if q < r and n > 1 else math.inf

    def p_value(self, n: int, t: float) -> float:
        if t <= 0 or n < 2:
            return 1.0
        r = 1 + n * PRIOR_VARIANCE
        x = t * t / (n - 1)
        gain = -n / 2 * math.log((1 - 1 / r) / (1 + x) + 1 / r) - math.log(r) / 2
        return min(1.0, math.exp(-gain) / 2)


def count_min_seeds(rule: StoppingRule, level: float = 0.025) -> int:
    """The least number of seeds at which a one-sided test at `level` may reject, so that an interval ends."""
    return next(n for n in count(2) if math.isfinite(rule.critical_value(n, level)))


def list_stopping_rules(looks: Sequence[int] | str | None, seeds: int) -> list[tuple[int, StoppingRule]]:
    """The analyses of a preregistered schedule in turn: number of seeds of each, and its stopping rule."""
    if looks is None:
        return [(seeds, FIXED_SAMPLE)]
    if isinstance(looks, str):
        return [(seeds, AnytimeValid())]
    counts = tuple(looks)
    return [(count, GroupSequential(counts, i)) for i, count in enumerate(counts)]


def _compute_t_tail(n: int, t: float) -> float:
    return float(special.stdtr(n - 1, -t))


def _compute_t_quantile(n: int, level: float) -> float:
    return float(special.stdtrit(n - 1, level))
