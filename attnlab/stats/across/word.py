"""One word for "does it hold with size?", by a rule that is declared here and counted on drawn ladders whose
truth is known (docs/calibration_ladders.md).

With a margin m in nats, the top and the bottom being the largest and the smallest rung, in this order:

- CANNOT TELL where there are fewer than three rungs, or no rung knows its noise.
- FLIPS: the 95 % intervals of the effect at the top and at the bottom, each by its own seeds, lie on opposite
  sides of 0.
- HOLDS: the change from bottom to top lies within the margin by two one-sided tests at 5 % (its 90 % interval
  is inside +-m), both along the line (slope x width) and between the two end rungs by themselves; and the top
  is where the other rungs point (inside the 95 % interval of `holdout`).
- GROWS (SHRINKS): the change, and the effect midway between bottom and top, have the same (the opposite)
  sign: the 95 % interval of each along the line, and the 90 % interval of each by the two end rungs by
  themselves, exclude 0, on the same side. So the effect is further from (nearer to) 0 at the top than at the
  bottom, |top| > |bottom|, since top^2 - bottom^2 = 2 x change x midway.
- CANNOT TELL else, with the reason.

Surprising: "|top| > |bottom|" is all that GROWS says, whether or not the sign at the bottom is known. The
line alone says HOLDS of a change that comes late in every fifth ladder, and GROWS of an effect that rises and
falls back in up to every second; the end rungs alone see that, at the price of more seeds at the top. Midway
and not the top, because an effect that turns round evenly would else be said to grow or to shrink.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnlab.stats.across.holdout import surprise
from attnlab.stats.across.rungs import Estimate, Ladder, Rung, Sums, ladder

HOLDS = "HOLDS"
GROWS = "GROWS"
SHRINKS = "SHRINKS"
FLIPS = "FLIPS"
CANNOT_TELL = "CANNOT TELL"
WORDS = (CANNOT_TELL, HOLDS, GROWS, SHRINKS, FLIPS)  # by the numbers of `rule`
TAIL = 0.025  # beyond one end of an interval
ENDS = 0.05  # the same, of the two tests against the margin and of the end rungs by themselves
RULE = (
    "The word is given by a rule that was declared before, in this order. FLIPS: the 95 % intervals at the "
    "smallest and at the largest rung lie on opposite sides of 0. HOLDS: the change over the ladder lies "
    "within the margin (two one-sided tests at 5 %), along the line and between the two end rungs by "
    "themselves, and the largest rung is where the others point. GROWS or SHRINKS: the change and the effect "
    "midway exclude 0 on the same side, or on opposite ones, along the line (95 %) and between the two end "
    "rungs by themselves (90 %), so that the effect is further from 0, or nearer to it, at the largest rung "
    "than at the smallest. CANNOT TELL: none of these. How often each is said where it is false was counted "
    "on drawn ladders: docs/calibration_ladders.md."
)  # for who reads a word without this file
POWER = 0.8
MOST = 200  # seeds; more is no plan


@dataclass(frozen=True)
class Findings:
    """What the rule looks at; of many ladders at once or of one."""

    bottom: Sums
    top: Sums
    missed: Sums  # the top, less what the others say of it
    change: tuple[Sums, Sums]  # along the line, and between the end rungs by themselves
    midway: tuple[Sums, Sums]  # likewise


def findings(rungs: Ladder) -> Findings:
    bottom = rungs.only(0)
    top = rungs.only(-1)
    centre = (rungs.x[0] + rungs.x[-1]) / 2
    line = rungs.sums(rungs.slope()).times(rungs.x[-1] - rungs.x[0])
    change = line, rungs.sums(top - bottom)
    midway = rungs.sums(rungs.at(centre)), rungs.sums((top + bottom) / 2)
    return Findings(rungs.sums(bottom), rungs.sums(top), surprise(rungs), change, midway)


def rule(seen: Findings, margin: float, power: float | None = None) -> np.ndarray:
    """Indices into `WORDS`. With `power`, what would be said that often if the truth is as it was seen."""

    def reach(sums: Sums, tail: float, sides: int = 1) -> np.ndarray:
        return sums.half(tail) if power is None else sums.half(tail) + sums.half((1 - power) / sides)

    def side(sums: Sums, tail: float) -> np.ndarray:
        return np.asarray(np.sign(sums.estimate) * (np.abs(sums.estimate) > reach(sums, tail)))

    def agreed(line: Sums, ends: Sums) -> np.ndarray:
        signs = side(line, TAIL), side(ends, ENDS)
        return np.where(signs[0] == signs[1], signs[0], 0)

    flips = side(seen.bottom, TAIL) * side(seen.top, TAIL) < 0
    within = [np.abs(sums.estimate) + reach(sums, ENDS, 2) < margin for sums in seen.change]
    holds = within[0] & within[1] & fits(seen)
    moves = agreed(*seen.change) * agreed(*seen.midway)
    return np.select([flips, holds, moves > 0, moves < 0], [4, 1, 2, 3], 0)


def fits(seen: Findings) -> np.ndarray:
    return np.asarray(np.abs(seen.missed.estimate) <= seen.missed.half(TAIL))


@dataclass(frozen=True)
class More:
    """What would decide in 80 % of ladders if the truth is as it was seen: so many seeds at the largest rung
    in all, or so many at a further rung a step above it, at `x`. None where it takes more than `MOST`.
    """

    at_top: int | None
    x: float
    further: int | None


@dataclass(frozen=True)
class Word:
    """`change`: from the smallest rung to the largest at 90 %, whose ends are the two one-sided tests: of the
    line and of the end rungs the one that reaches further. None where there was nothing to decide by. `more`
    only with CANNOT TELL, and not where the largest rung is not where the others point.
    """

    word: str
    reason: str
    margin: float
    change: Estimate | None
    more: More | None


def word(rungs: Sequence[Rung], margin: float) -> Word:
    """ValueError: a margin that is not positive and finite, or what `ladder` refuses."""
    if not 0 < margin < math.inf:
        raise ValueError(f"margin={margin} must be a positive number of nats")
    held = ladder(rungs)
    if (count := len(held.x)) < 3:
        told = f"{count} rung{'s' * (count != 1)}: a trend and a test of it take at least three"
        return Word(CANNOT_TELL, told, margin, None, None)
    if not np.isfinite(held.smooth).all():
        told = "no rung has two seeds that differ: there is no noise to judge by"
        return Word(CANNOT_TELL, told, margin, None, None)
    seen = findings(held)
    said = WORDS[int(rule(seen, margin))]
    change = max((sums.single(1 - 2 * ENDS) for sums in seen.change), key=_reach)
    more = _more(held, margin) if said == CANNOT_TELL and bool(fits(seen)) else None
    return Word(said, _reason(said, seen, change, margin), margin, change, more)


def _reach(change: Estimate) -> float:
    return max(map(abs, change.interval or (math.inf,)))


def _reason(said: str, seen: Findings, change: Estimate, margin: float) -> str:
    bottom, top, moved, midway = (
        _between(sums.single(1 - 2 * TAIL))
        for sums in (seen.bottom, seen.top, seen.change[0], seen.midway[0])
    )
    if said == FLIPS:
        return f"the effect is in {bottom} at the smallest rung and in {top} at the largest"
    if said == HOLDS:
        return f"the change over the ladder is in {_between(change)}, within the margin of {margin:.3g}"
    if said != CANNOT_TELL:
        return f"the change over the ladder is in {moved} along the line, and the effect midway in {midway}"
    if not bool(fits(seen)):
        return "the largest rung is not where the others point"
    if all(abs(float(sums.estimate)) > float(sums.half(TAIL)) for sums in (seen.change[0], seen.midway[0])):
        return f"along the line the change is in {moved}, but the two end rungs by themselves do not show it"
    if abs(float(seen.change[0].estimate)) > float(seen.change[0].half(TAIL)):
        return f"the change is in {moved}, but it may lead through 0: midway the effect is in {midway}"
    wide = (change.high or 0) - (change.low or 0) >= 2 * margin
    how = "is wider than twice" if wide else "reaches beyond"
    return f"the 90 % interval of the change, {_between(change)}, {how} the margin of {margin:.3g}"


def _between(known: Estimate) -> str:
    if known.interval is None:
        return "[?]"
    return "[{:.3g}, {:.3g}]".format(*known.interval).replace("-", "−")


def _more(held: Ladder, margin: float) -> More:
    known = replace(held, variances=np.where(np.isfinite(held.variances), held.variances, held.smooth))
    x = float(2 * held.x[-1] - held.x[-2])
    value = float(held.sums(held.at(x)).estimate)

    def at_top(n: int) -> Ladder:
        return replace(known, n=np.array([*held.n[:-1], n]))

    def further(n: int) -> Ladder:
        return Ladder(
            np.array([*held.x, x]),
            np.array([*held.n, n]),
            np.array([*held.means, value]),
            np.array([*known.variances, known.variances[-1]]),
        )

    return More(_fewest(at_top, int(held.n[-1]) + 1, margin), x, _fewest(further, 2, margin))


def _fewest(plan: Callable[[int], Ladder], least: int, margin: float) -> int | None:
    """Seeds, of a number that only helps as it grows."""
    seeds = range(least, MOST + 1)
    enough = bisect_left(seeds, True, key=lambda n: bool(rule(findings(plan(n)), margin, POWER)))
    return seeds[enough] if enough < len(seeds) else None
