"""The search for one arm's learning rate: losses that are known in, what to try next out. Pure.

Two rungs: every rate with the first seed, then the best one and its neighbours with all seeds. What counts is
the median over the seeds, so one bad seed of three picks nothing. It does not see how often a rate goes
wrong, though; where a grid is `steady` it is the mean, and of rates that are nearly as good the lowest.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

Found = Callable[
    [float, int], float | None
]  # a rate and a seed to a loss; inf: diverged, None: no result yet
Middle = Callable[[list[float]], float]


@dataclass(frozen=True)
class Grid:
    """The rates as declared, rising, and the seeds: `store.declarations.Tune`."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    widen: int
    share: float
    steady: float | None = None

    @property
    def most(self) -> int:
        """The runs that a search takes at most: every rate that there can be, with every seed."""
        return (len(self.rates) + self.widen) * len(self.seeds)


@dataclass(frozen=True)
class Search:
    """How far a search has come: all `rates` so far; what it asked for, (rate, seed) to a loss; the `best`
    rate of the last rung, None while a loss is missing.
    """

    rates: tuple[float, ...]
    asked: Mapping[tuple[float, int], float | None]
    best: float | None

    def losses(self, rate: float, seeds: Iterable[int]) -> list[float | None]:
        """Seed by seed; None where it was not asked for, or is not known."""
        return [self.asked.get((rate, seed)) for seed in seeds]

    def median(self, rate: float, seeds: Iterable[int]) -> float | None:
        """None while a loss is missing."""
        return self.of(median, rate, seeds)

    def of(self, middle: Middle, rate: float, seeds: Iterable[int]) -> float | None:
        """The median of a rate's losses, or another middle; None while one is missing."""
        losses = self.losses(rate, seeds)
        known = [loss for loss in losses if loss is not None]
        return middle(known) if len(known) == len(losses) else None


def search(grid: Grid, found: Found) -> Search:
    """The search as far as `found` goes; it is over where it has a `best`.

    The best lies between two rates that were tried with all seeds too, or at an end of the rates, where
    `grid.widen` of them were added already. Of equals it is the lowest: where all diverge, the way is down.
    """
    rates = list(grid.rates)
    asked = dict[tuple[float, int], float | None]()
    middle: Middle = median if grid.steady is None else fmean

    def best(among: Collection[float], seeds: Sequence[int], near: float = 0.0) -> float | None:
        for key in [(rate, seed) for rate in sorted(among) for seed in seeds]:
            asked[key] = asked[key] if key in asked else found(*key)
        so_far = Search(tuple(rates), asked, None)
        middles = {rate: so_far.of(middle, rate, seeds) for rate in sorted(among)}
        known = {rate: value for rate, value in middles.items() if value is not None}
        if len(known) < len(middles):
            return None
        return next(rate for rate in known if known[rate] <= min(known.values()) + near)

    pick = best(rates, grid.seeds[:1])
    while pick is not None and _widened(rates, pick, grid):
        pick = best(rates, grid.seeds[:1])
    rung = set[float]()
    while pick is not None and not (near := _near(rates, pick)) <= rung:
        rung |= near
        pick = best(rung, grid.seeds)
        if pick is not None:
            _widened(rates, pick, grid)
    if pick is not None and grid.steady is not None:
        pick = best(rung, grid.seeds, near=grid.steady)
    return Search(tuple(rates), asked, pick)


def _near(rates: Sequence[float], rate: float) -> set[float]:
    """A rate and its neighbours."""
    at = rates.index(rate)
    return set(rates[max(at - 1, 0) : at + 2])


def _widened(rates: list[float], best: float, grid: Grid) -> bool:
    """Adds the next rate where `best` is at an end: as many times it as it is times its neighbour."""
    at = rates.index(best)
    if 0 < at < len(rates) - 1 or len(rates) == len(grid.rates) + grid.widen:
        return False
    inner = rates[1] if at == 0 else rates[-2]
    rates.append(float(f"{best * best / inner:.4g}"))
    rates.sort()
    return True
