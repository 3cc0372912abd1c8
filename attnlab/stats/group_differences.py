"""Differences between two independent groups of runs, whose seeds do not pair.

A fixed sample is tested by Welch's t, and an interim analysis at the tail probability that it has for paired
seeds. Anytime-valid intervals add those of both means, each with half of the tail: simultaneously valid after
any numbers of runs on either side, and wider than Welch's.
"""

import math
import statistics

from scipy import special

from attnlab.stats.evidence import (
    Values,
    find_first,
    is_rounding_error,
    validate_finite,
    validate_fraction,
)
from attnlab.stats.stopping_rules import FIXED_SAMPLE, AnytimeValid, FixedSample, GroupSequential

_TAILS = (1e-15, 0.5)  # p-values outside are given as the nearer end, or as 1


class GroupDifferences:
    """Mean of `values` minus mean of `against`, as evidence.

    Args:
        values, against: At least two finite numbers each.
        rule: A fixed sample, an interim analysis of equal groups, or after any numbers of runs.

    Raises:
        ValueError: fewer than two numbers, or one that is not finite.
    """

    def __init__(
        self,
        values: Values,
        against: Values,
        rule: FixedSample | GroupSequential | AnytimeValid = FIXED_SAMPLE,
    ):
        groups = [validate_finite(side, "groups", min_count=2).tolist() for side in (values, against)]
        self.counts = len(groups[0]), len(groups[1])
        self.n = sum(self.counts)
        means = [statistics.mean(group) for group in groups]
        self.estimate: float | None = means[0] - means[1]
        self.sds = statistics.stdev(groups[0]), statistics.stdev(groups[1])
        self._errors: list[float] = [
            sd / math.sqrt(count) for sd, count in zip(self.sds, self.counts, strict=True)
        ]
        self.tied = is_rounding_error(min(self.sds), [*groups[0], *groups[1]])
        self.rule = rule

    @property
    def pooled_sd(self) -> float:
        """Root mean square of both standard deviations."""
        return math.hypot(*self.sds) / math.sqrt(2)

    def interval(self, level: float) -> tuple[float, float] | None:
        if self.tied or self.estimate is None:
            return None
        half = self._compute_half_width((1 - validate_fraction(level, "level")) / 2)
        return self.estimate - half, self.estimate + half

    def p_above(self, threshold: float) -> float | None:
        return None if self.estimate is None else self._compute_p_value(self.estimate - threshold)

    def p_below(self, threshold: float) -> float | None:
        return None if self.estimate is None else self._compute_p_value(threshold - self.estimate)

    def _compute_half_width(self, tail: float) -> float:
        if isinstance(self.rule, AnytimeValid):
            return sum(
                self.rule.critical_value(count, tail / 2) * error
                for error, count in zip(self._errors, self.counts, strict=True)
            )
        quantile = float(special.stdtrit(self._compute_df(), self.rule.compute_tail(tail)))
        return -quantile * math.hypot(*self._errors)

    def _compute_df(self) -> float:
        """Degrees of freedom by Welch and Satterthwaite."""
        spread = sum(error**4 / (count - 1) for error, count in zip(self._errors, self.counts, strict=True))
        return math.hypot(*self._errors) ** 4 / spread

    def _compute_p_value(self, distance: float) -> float | None:
        if self.tied:
            return None
        if not isinstance(self.rule, AnytimeValid):
            t = distance / math.hypot(*self._errors)
            return self.rule.find_level(float(special.stdtr(self._compute_df(), -t)))
        smallest, largest = _TAILS
        if distance <= self._compute_half_width(largest):
            return 1.0
        if self._compute_half_width(smallest) < distance:
            return smallest
        # infinite before the first seeds that may decide
        return math.exp(
            find_first(
                lambda log_tail: self._compute_half_width(math.exp(log_tail)) <= distance,
                math.log(smallest),
                math.log(largest),
            )
        )
