"""A test of the trend itself: the largest rung predicted from the others, hit or miss."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnlab.stats.across.rungs import Ladder, Rung, Sums, ladder
from attnlab.stats.evidence import Ends


@dataclass(frozen=True)
class Holdout(Ends):
    """`low` to `high`: where the observed mean of the largest rung was to lie, which knows the noise of both.
    `hit` is None where no noise is known.
    """

    x: float
    observed: float
    predicted: float
    low: float | None
    high: float | None
    df: float | None
    level: float
    hit: bool | None


def surprise(rungs: Ladder) -> Sums:
    """The largest rung less what the line through the others says there."""
    return rungs.sums(rungs.only(-1) - rungs.at(rungs.x[-1], slice(len(rungs.x) - 1)))


def holdout(rungs: Sequence[Rung], level: float = 0.95) -> Holdout:
    """ValueError for fewer than three rungs, or what `ladder` refuses."""
    held = ladder(rungs)
    if len(held.x) < 3:
        raise ValueError("to predict the largest rung takes at least two others")
    missed = surprise(held).single(level)
    observed = float(held.means[-1])
    predicted = observed - missed.estimate
    if missed.low is None or missed.high is None:
        return Holdout(float(held.x[-1]), observed, predicted, None, None, None, level, None)
    half = (missed.high - missed.low) / 2
    ends = predicted - half, predicted + half
    hit = ends[0] <= observed <= ends[1]
    return Holdout(float(held.x[-1]), observed, predicted, *ends, missed.df, level, hit)
