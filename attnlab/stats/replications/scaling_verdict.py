"""Scaling verdict: one word for "does the effect hold with size?", by a preregistered rule.

`docs/calibration_ladders.md` has its error rates on simulated ladders with a known truth. With a margin m in
nats, top and bottom being the largest and the smallest size, the rule is, in this order:

- INCONCLUSIVE where there are fewer than three sizes, or the noise of no size is known.
- FLIPS: the 95% intervals of the effect at the top and at the bottom, each by its own seeds with at least the
  smoothed noise, lie on opposite sides of 0.
- HOLDS: the change from bottom to top lies within the margin by two one-sided tests at 5% (its 90% interval
  is inside +-m), both along the line (slope x width) and between the two end sizes by themselves; and the top
  is where the other sizes point (inside the 95% interval of `holdout`).
- GROWS (SHRINKS): the change, and the effect midway between bottom and top, have the same (the opposite)
  sign: the 95% interval of each along the line, and the 90% interval of each by the two end sizes by
  themselves, exclude 0, on the same side. So the effect is further from (nearer to) 0 at the top than at the
  bottom, |top| > |bottom|, since top^2 - bottom^2 = 2 x change x midway.
- INCONCLUSIVE otherwise, with the reason.

GROWS means "|top| > |bottom|" and nothing else, whether or not the sign at the bottom is known. The line
alone would give HOLDS for a change that comes late in every fifth ladder, and GROWS for an effect that rises
and falls back in up to every second; only the end sizes reveal that, at the price of more seeds at the top.
The rule uses the effect midway and not the top, because an effect that changes sign evenly would otherwise
count as growing or shrinking.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnlab.stats.replications.holdout import compute_holdout_error
from attnlab.stats.replications.ladder_sample import (
    Estimate,
    LadderSample,
    SizeSample,
    WeightedSum,
    build_ladder_sample,
)

HOLDS = "HOLDS"
GROWS = "GROWS"
SHRINKS = "SHRINKS"
FLIPS = "FLIPS"
INCONCLUSIVE = "INCONCLUSIVE"
SCALING_VERDICTS = (INCONCLUSIVE, HOLDS, GROWS, SHRINKS, FLIPS)  # by the indices of `apply_rule`
INTERVAL_TAIL = 0.025  # beyond one end of an interval
TOST_TAIL = 0.05  # likewise, for the two tests against the margin and the end sizes by themselves
RULE_TEXT = (
    "The verdict follows a preregistered rule, applied in this order. FLIPS: the 95% intervals at the "
    "smallest and at the largest ladder size lie on opposite sides of 0. HOLDS: the change over the ladder "
    "lies within the margin (two one-sided tests at 5%), both along the fitted line and between the two end "
    "sizes alone, and the largest size agrees with the prediction from the others. GROWS or SHRINKS: the "
    "change and the effect at the midpoint both exclude 0, along the fitted line (95%) and between the two "
    "end sizes alone (90%). GROWS: both lie on the same side of 0, so the effect is further from 0 at the "
    "largest size than at the smallest. SHRINKS: they lie on opposite sides, so it is nearer to 0. "
    "INCONCLUSIVE: none of these. False-positive rates of each verdict, measured on simulated ladders: "
    "docs/calibration_ladders.md."
)  # as pages show it
TARGET_POWER = 0.8
MAX_SEEDS = 200  # more seeds than this are no plan


@dataclass(frozen=True)
class RuleInputs:
    """Weighted sums that the rule uses, of many ladders at once or of one."""

    bottom: WeightedSum
    top: WeightedSum
    holdout_error: WeightedSum  # the top minus the prediction by the others
    change: tuple[WeightedSum, WeightedSum]  # along the line, and between the end sizes by themselves
    midway: tuple[WeightedSum, WeightedSum]  # likewise


def compute_rule_inputs(ladder_sample: LadderSample) -> RuleInputs:
    bottom = ladder_sample.select_size_weights(0)
    top = ladder_sample.select_size_weights(-1)
    center = (ladder_sample.x[0] + ladder_sample.x[-1]) / 2
    line = ladder_sample.compute_weighted_sum(ladder_sample.compute_slope_weights()).scale_by(
        ladder_sample.x[-1] - ladder_sample.x[0]
    )
    change = line, ladder_sample.compute_weighted_sum(top - bottom)
    midway = (
        ladder_sample.compute_weighted_sum(ladder_sample.compute_line_weights(center)),
        ladder_sample.compute_weighted_sum((top + bottom) / 2),
    )
    return RuleInputs(
        ladder_sample.compute_weighted_sum(bottom),
        ladder_sample.compute_weighted_sum(top),
        compute_holdout_error(ladder_sample),
        change,
        midway,
    )


def apply_rule(inputs: RuleInputs, margin: float, power: float | None = None) -> np.ndarray:
    """Indices into `SCALING_VERDICTS`.

    Args:
        power: None for the verdicts of the data; else the verdict that the rule would give with this
            probability at the observed effects.
    """

    def compute_reach(sums: WeightedSum, tail: float, sides: int = 1) -> np.ndarray:
        return (
            sums.compute_half_width(tail)
            if power is None
            else sums.compute_half_width(tail) + sums.compute_half_width((1 - power) / sides)
        )

    def find_side(sums: WeightedSum, tail: float) -> np.ndarray:
        return np.asarray(np.sign(sums.estimate) * (np.abs(sums.estimate) > compute_reach(sums, tail)))

    def find_agreed_side(line: WeightedSum, ends: WeightedSum) -> np.ndarray:
        signs = find_side(line, INTERVAL_TAIL), find_side(ends, TOST_TAIL)
        return np.where(signs[0] == signs[1], signs[0], 0)

    is_flip = find_side(inputs.bottom, INTERVAL_TAIL) * find_side(inputs.top, INTERVAL_TAIL) < 0
    is_within = [np.abs(sums.estimate) + compute_reach(sums, TOST_TAIL, 2) < margin for sums in inputs.change]
    holds = is_within[0] & is_within[1] & is_consistent_with_holdout(inputs)
    direction = find_agreed_side(*inputs.change) * find_agreed_side(*inputs.midway)
    return np.select([is_flip, holds, direction > 0, direction < 0], [4, 1, 2, 3], 0)


def is_consistent_with_holdout(inputs: RuleInputs) -> np.ndarray:
    return np.asarray(
        np.abs(inputs.holdout_error.estimate) <= inputs.holdout_error.compute_half_width(INTERVAL_TAIL)
    )


@dataclass(frozen=True)
class SeedsNeeded:
    """Seeds that would decide in 80% of ladders at the observed effects; None: more than `MAX_SEEDS`.

    Attributes:
        at_largest_size: total seeds at the largest size.
        x: log10 of the compute of a further size, one step above the largest.
        at_next_size: seeds at that further size.
    """

    at_largest_size: int | None
    x: float
    at_next_size: int | None


@dataclass(frozen=True)
class ScalingVerdict:
    """The verdict of a ladder, with its reason.

    Attributes:
        seeds_needed: only with INCONCLUSIVE, and not where the largest size is not where the others point.
    """

    verdict: str
    reason: str
    seeds_needed: SeedsNeeded | None


def decide_scaling_verdict(sizes: Sequence[SizeSample], margin: float) -> ScalingVerdict:
    """Apply the rule to one ladder.

    Raises:
        ValueError: a margin that is not positive and finite, or sizes that `build_ladder_sample` rejects.
    """
    if not 0 < margin < math.inf:
        raise ValueError(f"margin={margin} must be a positive number of nats")
    sample = build_ladder_sample(sizes)
    if (count := len(sample.x)) < 3:
        reason = f"{count} ladder size{'s' * (count != 1)}: a trend and its test need at least three"
        return ScalingVerdict(INCONCLUSIVE, reason, None)
    if not np.isfinite(sample.smoothed_variances).all():
        reason = "no ladder size has two seeds with different results, so the noise is unknown"
        return ScalingVerdict(INCONCLUSIVE, reason, None)
    inputs = compute_rule_inputs(sample)
    verdict = SCALING_VERDICTS[int(apply_rule(inputs, margin))]
    seeds_needed = (
        _find_seeds_needed(sample, margin)
        if verdict == INCONCLUSIVE and bool(is_consistent_with_holdout(inputs))
        else None
    )
    return ScalingVerdict(verdict, _explain_scaling(verdict, inputs, margin), seeds_needed)


def _find_largest_bound(change: Estimate) -> float:
    return max(map(abs, change.interval or (math.inf,)))


def _explain_scaling(verdict: str, inputs: RuleInputs, margin: float) -> str:
    # the change by the line or by the end sizes, whichever extends further; its ends are the one-sided tests
    change = max((sums.to_estimate(1 - 2 * TOST_TAIL) for sums in inputs.change), key=_find_largest_bound)
    bottom, top, line_change, midway = (
        _format_bounds(sums.to_estimate(1 - 2 * INTERVAL_TAIL))
        for sums in (inputs.bottom, inputs.top, inputs.change[0], inputs.midway[0])
    )
    if verdict == FLIPS:
        return f"the effect is in {bottom} at the smallest size and in {top} at the largest"
    if verdict == HOLDS:
        return f"the change over the ladder is in {_format_bounds(change)}, within the margin of {margin:.3g}"
    if verdict != INCONCLUSIVE:
        return (
            f"the change over the ladder is in {line_change} along the fitted line, and the effect at the "
            f"midpoint in {midway}"
        )
    if not bool(is_consistent_with_holdout(inputs)):
        return "the largest size differs from the prediction from the others"
    if all(
        abs(float(sums.estimate)) > float(sums.compute_half_width(INTERVAL_TAIL))
        for sums in (inputs.change[0], inputs.midway[0])
    ):
        return (
            f"along the fitted line the change is in {line_change}, but the two end sizes alone do "
            "not show it"
        )
    if abs(float(inputs.change[0].estimate)) > float(inputs.change[0].compute_half_width(INTERVAL_TAIL)):
        return (
            f"the change is in {line_change}, but it may pass through 0: at the midpoint the effect "
            f"is in {midway}"
        )
    is_wide = (change.high or 0) - (change.low or 0) >= 2 * margin
    relation = "is wider than twice" if is_wide else "reaches beyond"
    return f"the 90% interval of the change, {_format_bounds(change)}, {relation} the margin of {margin:.3g}"


def _format_bounds(estimate: Estimate) -> str:
    if estimate.interval is None:
        return "[?]"
    return "[{:.3g}, {:.3g}]".format(*estimate.interval).replace("-", "−")


def _find_seeds_needed(ladder_sample: LadderSample, margin: float) -> SeedsNeeded:
    known_sample = replace(
        ladder_sample,
        variances=np.where(
            np.isfinite(ladder_sample.variances), ladder_sample.variances, ladder_sample.smoothed_variances
        ),
    )
    x = float(2 * ladder_sample.x[-1] - ladder_sample.x[-2])
    value = float(ladder_sample.compute_weighted_sum(ladder_sample.compute_line_weights(x)).estimate)

    def plan_largest_size(n: int) -> LadderSample:
        return replace(known_sample, n=np.array([*ladder_sample.n[:-1], n]))

    def plan_next_size(n: int) -> LadderSample:
        return LadderSample(
            np.array([*ladder_sample.x, x]),
            np.array([*ladder_sample.n, n]),
            np.array([*ladder_sample.means, value]),
            np.array([*known_sample.variances, known_sample.variances[-1]]),
        )

    return SeedsNeeded(
        _find_fewest_seeds(plan_largest_size, int(ladder_sample.n[-1]) + 1, margin),
        x,
        _find_fewest_seeds(plan_next_size, 2, margin),
    )


def _find_fewest_seeds(plan: Callable[[int], LadderSample], min_seeds: int, margin: float) -> int | None:
    """The fewest seeds that decide, by bisection: power only grows with their number."""
    seeds = range(min_seeds, MAX_SEEDS + 1)
    first_enough = bisect_left(
        seeds, True, key=lambda n: bool(apply_rule(compute_rule_inputs(plan(n)), margin, TARGET_POWER))
    )
    return seeds[first_enough] if first_enough < len(seeds) else None
