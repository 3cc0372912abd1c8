"""Budget verdict: is a final loss better, or only reached sooner? One word, by a preregistered rule.

The same seeds are trained with several budgets, which share a trunk, so a seed's differences are correlated
across budgets. The unit is the seed: each gives one trajectory, and its slope over log2 of the budget is one
number. All intervals are t intervals over seeds, which hold under any correlation within a trajectory.

With a margin m, the change is the slope times the range of log2 of the budgets. In this order:

- GROWS: the 95% interval of the effect at the largest budget lies beyond m on one side, that of the change on
  the same side of 0, and that of the effect at the smallest budget does not lie on the other side of 0.
- PERSISTS: the 95% interval at the largest budget lies beyond m on one side, and that at the smallest budget
  on the same side of 0.
- SAME PLATEAU: the 95% interval at the smallest budget excludes 0, that of the change lies on the other side
  of 0, and that at the largest budget lies within m.
- CANNOT TELL: anything else.

With normal noise, at most 5% of verdicts are wrong, whatever the correlation: 2.5% are SAME PLATEAU if the
effect at the largest budget is m or more, 2.5% GROWS or PERSISTS if it is m or less, and 2.5% GROWS if the
effect does not grow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnlab.stats.evidence import validate_finite
from attnlab.stats.paired_tests import PairedEstimate, estimate_paired_difference
from attnlab.stats.replications.scaling_verdict import CANNOT_TELL, GROWS

SAME_PLATEAU = "SAME PLATEAU"
PERSISTS = "PERSISTS"
LEVEL = 0.95
BUDGET_MEANINGS = {
    SAME_PLATEAU: "the effect shrinks into the margin: the loss is reached sooner, not lower",
    PERSISTS: "the effect is beyond the margin at the largest budget too",
    GROWS: "the effect grows with the budget",
    CANNOT_TELL: "whether the effect lasts with a larger budget: not shown",
}
BUDGET_RULE_TEXT = (
    "Each seed is trained with every budget, so the seed is the unit: its differences give one line over "
    "log2 of the budget, and intervals are over seeds. GROWS: the 95% interval at the largest budget is "
    "beyond the margin, and the effect grows along the lines. PERSISTS: it is beyond the margin, on the side "
    "of the effect at the smallest budget. SAME PLATEAU: an effect at the smallest budget shrinks along the "
    "lines, and the 95% interval at the largest one is within the margin. CANNOT TELL: anything else."
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
        centered = self.x - self.x.mean()
        self.slopes = self.differences @ centered / (centered @ centered)

    @property
    def width(self) -> float:
        """Doublings from the smallest budget to the largest."""
        return float(self.x[-1] - self.x[0])

    def estimate_effect(self, budget: int, level: float = LEVEL) -> PairedEstimate:
        """The effect at the budget of this index, by its own runs."""
        return estimate_paired_difference(self.differences[:, budget], level)

    def estimate_change(self, level: float = LEVEL) -> PairedEstimate:
        """The change from the smallest budget to the largest, along the line of each seed."""
        return estimate_paired_difference(self.slopes * self.width, level)

    def estimate_slope(self, level: float = LEVEL) -> PairedEstimate:
        """The change per doubling of the budget."""
        return estimate_paired_difference(self.slopes, level)

    def estimate_line(self, x: float, level: float = LEVEL) -> PairedEstimate:
        """The value of the seeds' lines at log2 of a budget."""
        values = self.differences.mean(1) + self.slopes * (x - self.x.mean())
        return estimate_paired_difference(values, level)


@dataclass(frozen=True)
class BudgetVerdict:
    """The word and its reason."""

    verdict: str
    reason: str


def decide_budget_verdict(trajectories: BudgetTrajectories, margin: float) -> BudgetVerdict:
    """Apply the rule of this module; CANNOT TELL where the noise between seeds is unknown."""
    first, last = trajectories.estimate_effect(0), trajectories.estimate_effect(-1)
    change = trajectories.estimate_change()
    if first.low is None or last.low is None or change.low is None:
        return BudgetVerdict(CANNOT_TELL, "the noise between seeds is unknown")
    first_side, change_side = _find_side(first), _find_side(change)
    last_side = _find_side(last, margin)
    if last_side and change_side == last_side and first_side != -last_side:
        return BudgetVerdict(
            GROWS, "at the largest budget the effect is beyond the margin, and it grows with the budget"
        )
    if last_side and first_side == last_side:
        return BudgetVerdict(PERSISTS, "at the largest budget the effect is still beyond the margin")
    assert last.high is not None
    is_within = -margin < last.low and last.high < margin
    if is_within and first_side and change_side == -first_side:
        return BudgetVerdict(
            SAME_PLATEAU, "the effect shrinks with the budget, at the largest one into the margin"
        )
    return BudgetVerdict(CANNOT_TELL, _explain_open_question(first_side, last_side, change_side, is_within))


def _explain_open_question(first_side: int, last_side: int, change_side: int, is_within: bool) -> str:
    if last_side:
        return (
            "the effect changes its sign with the budget"
            if first_side == -last_side
            else "no effect at the smallest budget is shown, nor that it grows"
        )
    if is_within:
        return (
            "the effect is within the margin at the largest budget, but that it shrinks is not shown"
            if first_side
            else "the effect is within the margin at the largest budget, and none is shown at the smallest"
        )
    if first_side and change_side == -first_side:
        return "the effect shrinks with the budget, but whether into the margin is open"
    return "whether the effect at the largest budget is beyond the margin is open"


def _find_side(estimate: PairedEstimate, bound: float = 0.0) -> int:
    """The side of [-bound, bound] on which the whole interval lies: -1 or 1, or 0."""
    assert estimate.low is not None
    assert estimate.high is not None
    return 1 if estimate.low > bound else -1 if estimate.high < -bound else 0
