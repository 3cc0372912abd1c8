"""How much compute the baseline needs for the loss that an arm has at its largest rung, as a multiple of the
arm's.

The baseline's losses follow L = E + A C^-alpha (Hestness 2017, 1712.00409; Hoffmann 2022, 2203.15556). Four
small rungs hardly tell the floor E, so it is assumed several times over and the answer is a range. At a given
E the law is a line in logarithms, and the answer, with B, b the baseline's and the arm's loss there, is
log(C_B / C_b) + log((B - E) / (b - E)) / alpha.

Surprising: that is through the baseline's own loss at its largest rung, not through the fitted curve, so that
an arm that equals the baseline has exactly 1 however badly the curve fits; the curve gives only alpha. The
interval is Fieller's (J. R. Stat. Soc. B 16:175, 1954), from seeds alone: it knows that the same seeds give B
and alpha, that B and b are pairs, and nothing of E, which is what the range is for.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from attnlab.stats.evidence import Ends, finite, fraction

SHARES = (0.0, 0.25, 0.5, 0.75)  # of the lowest loss, that the floor is assumed to be
STEEPEST = 2.0  # alpha; what is fitted at an end of (0, STEEPEST) is not told by the rungs
FAR = math.log(1000)  # an interval that reaches further has no end


@dataclass(frozen=True)
class Spent:
    """One rung of one arm: training FLOPs of a run, and the final losses in nats, one per seed."""

    compute: float
    losses: Sequence[float]


@dataclass(frozen=True)
class Law:
    """L = floor + scale x C^-alpha."""

    floor: float
    scale: float
    alpha: float

    def at(self, compute: float) -> float:
        return self.floor + self.scale * math.exp(-self.alpha * math.log(compute))


@dataclass(frozen=True)
class Multiplier(Ends):
    """2.0: the baseline needs twice the arm's compute for the arm's loss. An end that is None is unbounded,
    or not known: each rung of the baseline, and the arm's largest, takes two seeds.
    """

    law: Law
    estimate: float
    low: float | None
    high: float | None
    level: float


@dataclass(frozen=True)
class Multipliers:
    """By floor: "0 %", "25 %", ... of the lowest loss, and "fitted" where four rungs told one. `least` and
    `most` are the estimates' range; it is None where the baseline's loss does not fall.
    """

    by_floor: Mapping[str, Multiplier]
    least: float | None
    most: float | None


def law(rungs: Sequence[Spent], floor: float) -> Law | None:
    """At an assumed floor: least squares over all seeds in logarithms; None where the loss does not fall."""
    compute, losses = _read(rungs, 2)
    if not floor < min(each.min() for each in losses):
        raise ValueError(f"floor={floor:g} must lie below every loss")
    y = np.array([np.log(each - floor).mean() for each in losses])
    weights, x = _slope(compute, losses)
    alpha = -float(weights @ y)
    if alpha <= 0:
        return None
    n = np.array([each.size for each in losses])
    return Law(floor, math.exp(float(n @ (y + alpha * x) / n.sum())), alpha)


def fitted_floor(rungs: Sequence[Spent]) -> float | None:
    """The floor of the best law over all seeds, in nats; None with fewer than four rungs, or where the best
    is at alpha's end or a floor that is not between 0 and the lowest loss: then the rungs do not tell.
    """
    compute, losses = _read(rungs, 2)
    if len(losses) < 4:
        return None
    x = np.repeat(np.log(compute / compute[0]), [each.size for each in losses])
    y = np.concatenate(losses)

    def solved(alpha: float) -> tuple[np.ndarray, float]:
        terms = np.stack([np.ones_like(x), np.exp(-alpha * x)], axis=1)
        found = np.linalg.lstsq(terms, y, rcond=None)[0]
        return found, float(((y - terms @ found) ** 2).sum())

    least = 1e-3
    from scipy import optimize  # takes longer to import than most reports to work out

    best = optimize.minimize_scalar(
        lambda alpha: solved(alpha)[1], bounds=(least, STEEPEST), method="bounded"
    )
    (floor, scale), _ = solved(best.x)
    told = least * 1.1 < best.x < STEEPEST * 0.999 and 0 <= floor < y.min() and scale > 0
    return float(floor) if told else None


def multiplier(baseline: Sequence[Spent], arm: Spent, floor: float, level: float = 0.95) -> Multiplier | None:
    """Of the arm at its largest rung, whose losses are paired by seed with those of the baseline's largest,
    if there are as many. None where the baseline's loss does not fall. ValueError: fewer than two rungs, a
    compute that is not positive or comes twice, a floor that is not below every loss.
    """
    tail = (1 - fraction(level, "level")) / 2
    compute, losses = _read(baseline, 2)
    (spent,), (theirs,) = _read([arm], 1)
    fitted = law(baseline, floor)
    if not floor < theirs.min():
        raise ValueError(f"floor={floor:g} must lie below every loss")
    if fitted is None:
        return None
    slope, _ = _slope(compute, losses)
    ours = [np.log(each - floor) for each in losses]
    arms = np.log(theirs - floor)

    # log((B - E) / (b - E)) - ratio x alpha, 0 at the truth, sums means over rungs of own + ratio x bend
    bend = [c * y for c, y in zip(slope, ours, strict=True)]
    own = [np.zeros_like(y) for y in ours]
    own[-1] = ours[-1] - arms if arms.size == ours[-1].size else ours[-1]
    if arms.size != ours[-1].size:
        own.append(-arms)
        bend.append(np.zeros_like(arms))
    n = np.array([each.size for each in own])

    def left(ratio: np.ndarray) -> np.ndarray:
        """By how much the interval of that sum reaches over 0."""
        values = [a[:, None] + b[:, None] * ratio for a, b in zip(own, bend, strict=True)]
        shares = np.array([each.var(0, ddof=1) / each.shape[0] for each in values])
        df = shares.sum(0) ** 2 / (shares**2 / (n[:, None] - 1)).sum(0)
        half = -special.stdtrit(df, tail) * np.sqrt(shares.sum(0))
        return np.asarray(half - np.abs(sum(each.mean(0) for each in values)))

    ratio = float(sum(each.mean() for each in own)) / fitted.alpha
    start = math.log(compute[-1] / spent)
    judged = n.min() > 1 and any(np.ptp(a + ratio * b) for a, b in zip(own, bend, strict=True))
    ends = [_end(left, ratio, side) if judged else None for side in (-1, 1)]
    low, high = (None if end is None else math.exp(start + end) for end in ends)
    return Multiplier(fitted, math.exp(start + ratio), low, high, level)


def multipliers(baseline: Sequence[Spent], arm: Spent, level: float = 0.95) -> Multipliers:
    """Over the assumed floors, each a share of the lowest loss of either, and the fitted one."""
    lowest = min(float(each.min()) for each in _read([*baseline], 2)[1] + _read([arm], 1)[1])
    floors = {f"{share:.0%}".replace("%", " %"): share * lowest for share in SHARES}
    fitted = fitted_floor(baseline)
    if fitted is not None and fitted < lowest:
        floors["fitted"] = fitted
    found = {name: multiplier(baseline, arm, floor, level) for name, floor in floors.items()}
    known = {name: each for name, each in found.items() if each is not None}
    estimates = [each.estimate for each in known.values()]
    return Multipliers(known, min(estimates, default=None), max(estimates, default=None))


def _read(rungs: Sequence[Spent], least: int) -> tuple[np.ndarray, list[np.ndarray]]:
    compute = finite([rung.compute for rung in rungs], "compute", least)
    if compute.min() <= 0 or len(set(compute)) < len(compute):
        raise ValueError(f"compute {compute.tolist()}: need positive numbers, one per rung")
    order = np.argsort(compute)
    return compute[order], [finite(rungs[i].losses, f"losses at {compute[i]:g} FLOPs") for i in order]


def _slope(compute: np.ndarray, losses: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the rungs' means in the slope over log compute, of least squares over all seeds."""
    n = np.array([each.size for each in losses])
    x = np.log(compute)
    around = x - n @ x / n.sum()
    return n * around / (n @ around**2), x


def _end(left: Callable[[np.ndarray], np.ndarray], ratio: float, side: int) -> float | None:
    """Where, to one side of the estimate, `left` is first 0."""
    grid = ratio + side * np.concatenate([[0.0], np.geomspace(1e-6, 2 * FAR, 120)])
    below = left(grid) < 0
    if not below.any() or below[0]:
        return None
    first = int(below.argmax())
    from scipy import optimize  # takes longer to import than most reports to work out

    end = float(optimize.brentq(lambda r: float(left(np.array([r]))[0]), grid[first - 1], grid[first]))
    return end if abs(end) <= FAR else None
