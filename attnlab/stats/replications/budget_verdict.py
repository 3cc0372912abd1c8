"""Budget verdict: is a final loss better, or only reached sooner? One word, by a preregistered rule.

The same seeds are trained with several budgets, which share a trunk, so a seed's differences are correlated
across budgets. The unit is the seed: each gives one trajectory, and its slope over log2 of the budget is one
number. All intervals are t intervals over seeds, which hold under any correlation within a trajectory.

With a margin m, the change is the slope times the range of log2 of the budgets. In this order:

- GROWS: the 95% interval of the effect at the largest budget lies beyond m on one side, that of the change on
  the same side of 0, and that of the effect at the smallest budget neither lies on the other side of 0 nor
  reaches m there.
- PERSISTS: the 95% interval at the largest budget lies beyond m on one side, and that at the smallest budget
  on the same side of 0.
- SAME PLATEAU: the 95% interval at the smallest budget excludes 0, that of the change lies on the other side
  of 0, and that at the largest budget lies within m.
- INCONCLUSIVE: anything else.

With normal noise, at most 5% of verdicts are wrong, whatever the correlation: 2.5% are SAME PLATEAU if the
effect at the largest budget is m or more, 2.5% GROWS or PERSISTS if it is m or less, and 2.5% GROWS if the
effect does not grow or is m or more on the other side at the smallest budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special

from attnlab.stats.evidence import CONFIDENCE_LEVEL, validate_finite
from attnlab.stats.paired_tests import PairedEstimate, estimate_paired_difference
from attnlab.stats.replications.scaling_verdict import GROWS, INCONCLUSIVE

SAME_PLATEAU = "SAME PLATEAU"
PERSISTS = "PERSISTS"
BUDGET_VERDICTS = (INCONCLUSIVE, SAME_PLATEAU, PERSISTS, GROWS)  # by the indices of `apply_budget_rule`
BUDGET_MEANINGS = {
    SAME_PLATEAU: "the effect shrinks into the margin: the loss is reached sooner, not lower",
    PERSISTS: "the effect is beyond the margin at the largest budget too",
    GROWS: "the effect grows with the budget",
    INCONCLUSIVE: "whether the effect lasts with a larger budget: not shown",
}
_REASONS = {
    SAME_PLATEAU: "the effect shrinks with the budget, at the largest one into the margin",
    PERSISTS: "at the largest budget the effect is still beyond the margin",
    GROWS: "at the largest budget the effect is beyond the margin, and it grows with the budget",
}
BUDGET_RULE_TEXT = (
    "Each seed is trained with every budget, so the seed is the unit: its differences give one line over "
    "log2 of the budget, and intervals are over seeds. GROWS: the 95% interval at the largest budget is "
    "beyond the margin, the effect grows along the lines, and the interval at the smallest budget neither "
    "lies on the other side of 0 nor reaches the margin there. PERSISTS: the interval at the largest budget "
    "is beyond the margin, on the side of the effect at the smallest budget. SAME PLATEAU: an effect at the "
    "smallest budget shrinks along the lines, and the 95% interval at the largest one is within the margin. "
    "INCONCLUSIVE: anything else."
)


class BudgetTrajectories:
    """The differences of one pair of arms by seed and budget, and the line of each seed.

    Args:
        budgets: Tokens or any multiple of them, [budgets], ascending.
        differences: [seeds, budgets].

    Raises:
        ValueError: fewer than two budgets, budgets that do not ascend, no seed, or a number that is not
            finite.
    """

    def __init__(self, budgets: Sequence[float], differences: Sequence[Sequence[float]] | np.ndarray) -> None:
        self.x = np.log2(validate_finite(budgets, "budgets", 2))
        if not (np.diff(self.x) > 0).all():
            raise ValueError(f"budgets {list(budgets)} must ascend")
        self.differences = np.array(
            [validate_finite(trajectory, "differences of a seed", len(self.x)) for trajectory in differences]
        )
        if self.differences.ndim != 2 or self.differences.shape[1] != len(self.x):
            raise ValueError(f"differences need the shape [seeds, {len(self.x)}]")
        self.slopes = _fit_slopes(self.x, self.differences)

    @property
    def width(self) -> float:
        """Doublings from the smallest budget to the largest."""
        return float(self.x[-1] - self.x[0])

    def estimate_effect(self, budget: int) -> PairedEstimate:
        """The effect at the budget of this index, by its own runs."""
        return estimate_paired_difference(self.differences[:, budget], CONFIDENCE_LEVEL)

    def estimate_change(self) -> PairedEstimate:
        """The change from the smallest budget to the largest, along the line of each seed."""
        return estimate_paired_difference(self.slopes * self.width, CONFIDENCE_LEVEL)

    def estimate_slope(self) -> PairedEstimate:
        """The change per doubling of the budget."""
        return estimate_paired_difference(self.slopes, CONFIDENCE_LEVEL)

    def estimate_line(self, x: float) -> PairedEstimate:
        """The value of the seeds' lines at log2 of a budget."""
        values = self.differences.mean(1) + self.slopes * (x - self.x.mean())
        return estimate_paired_difference(values, CONFIDENCE_LEVEL)


@dataclass(frozen=True)
class BudgetVerdict:
    """The word and its reason."""

    verdict: str
    reason: str


def apply_budget_rule(x: np.ndarray, differences: np.ndarray, margin: float) -> np.ndarray:
    """Indices into `BUDGET_VERDICTS`, of differences [..., seeds, budgets] at `x`, log2 of the budgets."""
    sides = _find_sides(x, differences, margin)
    lasts = sides.last != 0
    grows = lasts & (sides.change == sides.last) & (sides.first != -sides.last) & ~sides.may_flip
    shrinks = (sides.first != 0) & (sides.change == -sides.first)
    return np.select(
        [grows, lasts & (sides.first == sides.last), sides.is_within & shrinks],
        [BUDGET_VERDICTS.index(word) for word in (GROWS, PERSISTS, SAME_PLATEAU)],
    )


def decide_budget_verdict(trajectories: BudgetTrajectories, margin: float) -> BudgetVerdict:
    """Apply the rule of this module; INCONCLUSIVE where the noise between seeds is unknown."""
    estimates = (
        trajectories.estimate_effect(0),
        trajectories.estimate_effect(-1),
        trajectories.estimate_change(),
    )
    if any(estimate.low is None for estimate in estimates):
        return BudgetVerdict(INCONCLUSIVE, "the noise between seeds is unknown")
    x, differences = trajectories.x, trajectories.differences
    verdict = BUDGET_VERDICTS[int(apply_budget_rule(x, differences, margin))]
    if verdict in _REASONS:
        return BudgetVerdict(verdict, _REASONS[verdict])
    sides = _find_sides(x, differences, margin)
    if sides.last and sides.first == -sides.last:
        reason = "the effect changes its sign with the budget"
    elif sides.last and sides.change == sides.last:
        reason = "the effect grows, but at the smallest budget it may be beyond the margin on the other side"
    elif sides.last:
        reason = "no effect at the smallest budget is shown, nor that it grows"
    elif sides.is_within:
        reason = "the effect is within the margin at the largest budget, " + (
            "but that it shrinks is not shown" if sides.first else "and none is shown at the smallest"
        )
    elif sides.first and sides.change == -sides.first:
        reason = "the effect shrinks with the budget, but whether into the margin is open"
    else:
        reason = "whether the effect at the largest budget is beyond the margin is open"
    return BudgetVerdict(INCONCLUSIVE, reason)


class _Sides(NamedTuple):
    """Where 95% intervals lie, [...]. A side is -1 or 1 where the whole interval lies there, else 0.

    Attributes:
        first: Side of 0 of the effect at the smallest budget.
        last: Side of the margin of the effect at the largest budget.
        change: Side of 0 of the change.
        is_within: Whether the interval at the largest budget lies within the margin.
        may_flip: Whether that at the smallest reaches the margin on the side opposite to `last`.
    """

    first: np.ndarray
    last: np.ndarray
    change: np.ndarray
    is_within: np.ndarray
    may_flip: np.ndarray


def _find_sides(x: np.ndarray, differences: np.ndarray, margin: float) -> _Sides:
    """The sides of differences [..., seeds, budgets]."""
    slopes = _fit_slopes(x, differences)
    (first_low, first_high), (last_low, last_high), (change_low, change_high) = (
        _compute_interval(values) for values in (differences[..., 0], differences[..., -1], slopes)
    )
    last = 1 * (last_low > margin) - (last_high < -margin)
    return _Sides(
        first=1 * (first_low > 0) - (first_high < 0),
        last=last,
        change=1 * (change_low > 0) - (change_high < 0),
        is_within=(-margin < last_low) & (last_high < margin),
        may_flip=((last > 0) & (first_low <= -margin)) | ((last < 0) & (first_high >= margin)),
    )


def _fit_slopes(x: np.ndarray, differences: np.ndarray) -> np.ndarray:
    """The slope of each seed's line by least squares: [..., seeds, budgets] to [..., seeds]."""
    centered = x - x.mean()
    return np.asarray(differences @ centered / (centered @ centered))


def _compute_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The t interval of the mean of values [..., seeds]."""
    n = values.shape[-1]
    half_width = -special.stdtrit(n - 1, (1 - CONFIDENCE_LEVEL) / 2) * values.std(-1, ddof=1) / np.sqrt(n)
    return values.mean(-1) - half_width, values.mean(-1) + half_width
