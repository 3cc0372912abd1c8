"""When the seeds were looked at: once, at declared looks, or whenever somebody liked. It sets how far a t
must be from nought.

Surprising: intervals of declared looks and of any number of looks are repeated ones: those of all looks hold
together, so whoever stops at one of them may read it as it stands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

from scipy import special

from attnlab.stats import boundaries

PRIOR = 4.0  # variance of an effect, in sd, that `Anytime` is made for: effects of a few sd are found early


class Design(Protocol):
    """One-sided: a test at `level` rejects where t, of n values, is `critical` or more."""

    def critical(self, n: int, level: float) -> float: ...  # infinite where no t is far enough
    def p(self, n: int, t: float) -> float: ...  # the smallest level at which this t rejects


@final
class Fixed:
    """All seeds, looked at once: Student's t."""

    def critical(self, n: int, level: float) -> float:
        return -_quantile(n, level)

    def p(self, n: int, t: float) -> float:
        return _tail(n, t)


FIXED = Fixed()


@final
@dataclass(frozen=True)
class Look:
    """Look number `look` (from 0) of a group-sequential plan over so many seeds."""

    looks: tuple[int, ...]
    look: int

    def critical(self, n: int, level: float) -> float:
        return -_quantile(n, boundaries.tails(self.looks, level)[self.look])

    def p(self, n: int, t: float) -> float:
        return boundaries.level_of(self.looks, self.look, _tail(n, t))


@final
class Early:
    """Before the first look: nothing is tried, so nothing is rejected."""

    def critical(self, n: int, level: float) -> float:
        return math.inf

    def p(self, n: int, t: float) -> float:
        return 1.0


@final
class Anytime:
    """After any number of seeds: a t that holds however often, and however willingly, seeds were added.

    The mixture of likelihood ratios of t over normal effects (Wang & Ramdas 2023, arXiv 2310.03722, with the
    closed form of Gönen et al. 2005) is a martingale where there is no effect; a test rejects where it passes
    1 / level, each side taking half.
    """

    def critical(self, n: int, level: float) -> float:
        r = 1 + n * PRIOR
        q = (math.sqrt(r) / (2 * level)) ** (2 / n)
        return math.sqrt((n - 1) * (q - 1) / (1 - q / r)) if q < r and n > 1 else math.inf

    def p(self, n: int, t: float) -> float:
        if t <= 0 or n < 2:
            return 1.0
        r = 1 + n * PRIOR
        x = t * t / (n - 1)
        gain = -n / 2 * math.log((1 - 1 / r) / (1 + x) + 1 / r) - math.log(r) / 2
        return min(1.0, math.exp(-gain) / 2)


def designs(looks: Sequence[int] | str | None, seeds: int) -> list[tuple[int, Design]]:
    """The looks of a declared plan in turn: how many of the seeds each has, and its design."""
    if looks is None:
        return [(seeds, FIXED)]
    if isinstance(looks, str):
        return [(seeds, Anytime())]
    counts = tuple(looks)
    return [(count, Look(counts, i)) for i, count in enumerate(counts)]


def _tail(n: int, t: float) -> float:
    return float(special.stdtr(n - 1, -t))


def _quantile(n: int, level: float) -> float:
    return float(special.stdtrit(n - 1, level))
