"""One word for "does it hold with size?", by a rule that is declared here and counted on drawn ladders whose
truth is known (`simulate`; docs/calibration_ladders.md).

With a margin m in nats, the top and the bottom being the largest and the smallest rung, in this order:

- CANNOT TELL where there are fewer than three rungs, or no rung knows its noise.
- FLIPS: the 95 % intervals of the effect at the top and at the bottom, each by its own seeds, lie on opposite
  sides of 0.
- HOLDS: the change from bottom to top lies within the margin by two one-sided tests at 5 % (its 90 % interval
  is inside +-m), both along the line (slope x width) and between the two end rungs by themselves, and the top
  is where the other rungs point (inside the 95 % interval of `holdout`).
- GROWS (SHRINKS): the 95 % interval of the change excludes 0, and so does the 98 % interval of the effect
  midway between bottom and top, with the same (opposite) sign. This says that the effect is further from
  (nearer to) 0 at the top than at the bottom, |top| > |bottom|, since top^2 - bottom^2 = 2 x change x midway.
  Both are those of the line; where the top is not where the others point, those of the two end rungs by
  themselves.
- CANNOT TELL else, with the reason.

Surprising: "|top| > |bottom|" is what GROWS says, also where the sign at the bottom is not known. HOLDS asks
the end rungs too because a change that comes late passes along the line in every fifth ladder; GROWS asks
midway, not the top, because an effect that turns round evenly would else be said to grow or to shrink.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnlab.stats.across.holdout import surprise
from attnlab.stats.across.rungs import Estimate, Ladder, Rung, Sums, ladder

HOLDS, GROWS, SHRINKS, FLIPS, CANNOT_TELL = "HOLDS", "GROWS", "SHRINKS", "FLIPS", "CANNOT TELL"
WORDS = (CANNOT_TELL, HOLDS, GROWS, SHRINKS, FLIPS)  # by the numbers of `rule`
END, EQUAL, MOVED, MIDWAY, MISSED = 0.025, 0.05, 0.025, 0.01, 0.025  # of each test, beyond one end
POWER = 0.8
MOST = 200  # seeds; more is no plan


@dataclass(frozen=True)
class Findings:
    """What the rule looks at; of many ladders at once or of one."""

    bottom: Sums
    top: Sums
    fits: np.ndarray  # the top is where the others point
    line: Sums  # the change along the line
    ends: Sums  # the change between the end rungs by themselves
    change: Sums  # of the two, the one that GROWS and SHRINKS go by
    midway: Sums


def findings(rungs: Ladder) -> Findings:
    bottom, top = rungs.only(0), rungs.only(-1)
    missed = surprise(rungs)
    fits = np.abs(missed.estimate) <= missed.half(MISSED)
    line, ends = rungs.sums(rungs.slope()).times(rungs.x[-1] - rungs.x[0]), rungs.sums(top - bottom)
    midway = rungs.sums(rungs.at((rungs.x[0] + rungs.x[-1]) / 2)).where(fits, rungs.sums((top + bottom) / 2))
    return Findings(rungs.sums(bottom), rungs.sums(top), fits, line, ends, line.where(fits, ends), midway)


def rule(seen: Findings, margin: float, power: float | None = None) -> np.ndarray:
    """Indices into `WORDS`. With `power`, what would be said that often if the truth is as it was seen."""

    def reach(sums: Sums, tail: float) -> np.ndarray:
        return sums.half(tail) if power is None else sums.half(tail) + sums.half(1 - power)

    def side(sums: Sums, tail: float) -> np.ndarray:
        return np.asarray(np.sign(sums.estimate) * (np.abs(sums.estimate) > reach(sums, tail)))

    within = [np.abs(sums.estimate) + reach(sums, EQUAL) < margin for sums in (seen.line, seen.ends)]
    flips = side(seen.bottom, END) * side(seen.top, END) < 0
    holds = seen.fits & within[0] & within[1]
    moves = side(seen.change, MOVED) * side(seen.midway, MIDWAY)
    return np.select([flips, holds, moves > 0, moves < 0], [4, 1, 2, 3], 0)


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
    line and of the end rungs the one that reaches further; both None where there was nothing to decide by.
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
    both = [sums.single(1 - 2 * EQUAL) for sums in (seen.line, seen.ends)]
    change = max(both, key=_reach)
    told = _reason(said, seen, change, margin)
    return Word(said, told, margin, change, _more(held, margin) if said == CANNOT_TELL else None)


def _reach(change: Estimate) -> float:
    return max(map(abs, change.interval or (math.inf,)))


def _reason(said: str, seen: Findings, change: Estimate, margin: float) -> str:
    bottom, top = (_between(sums.single(1 - 2 * END)) for sums in (seen.bottom, seen.top))
    moved, midway = seen.change.single(1 - 2 * MOVED), seen.midway.single(1 - 2 * MIDWAY)
    if said == FLIPS:
        return f"the effect is in {bottom} at the smallest rung and in {top} at the largest"
    if said == HOLDS:
        return f"the change over the ladder is in {_between(change)}, within the margin of {margin:.3g}"
    if said != CANNOT_TELL:
        where = "further from 0" if said == GROWS else "nearer to 0"
        by = (
            ""
            if bool(seen.fits)
            else ", by the two end rungs alone: the largest is not where the others point"
        )
        return f"the change over the ladder is in {_between(moved)}, {where} at its end{by}"
    if not bool(seen.fits):
        return "the largest rung is not where the others point, and the two end rungs alone do not decide"
    if (moved.low or 0) > 0 or (moved.high or 0) < 0:
        return (
            f"the effect changes by {_between(moved)}, but midway it is in {_between(midway)}: "
            "it cannot be told whether that leads away from 0 or through it"
        )
    return f"the interval of the change, {_between(change)}, is not within the margin of {margin:.3g}"


def _between(known: Estimate) -> str:
    return "[?]" if known.interval is None else "[{:.3g}, {:.3g}]".format(*known.interval)


def _more(held: Ladder, margin: float) -> More | None:
    """None where the largest rung is not where the others point: what is true there is not known."""
    seen = findings(held)
    if not bool(seen.fits):
        return None
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
