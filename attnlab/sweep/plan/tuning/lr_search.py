"""Search for one arm's learning rate: takes known losses, returns the next (rate, seed) pairs to try. Pure.

The search has two rungs: every rate with the first seed, then the best rate and its neighbors with all seeds.
The criterion is the median over seeds, so one bad seed of three selects nothing. The median ignores how often
a rate fails; a grid with `robust` set uses the mean, and the lowest of all rates that are nearly as good.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

LossLookup = Callable[[float, int], float | None]  # (rate, seed) to loss; inf: diverged, None: no result yet
Average = Callable[[list[float]], float]


@dataclass(frozen=True)
class RateGrid:
    """The declared rates in rising order, and the seeds; see `experiment_schema.TuningConfig`."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    extend: int
    share: float
    robust: float | None = None

    @property
    def max_runs(self) -> int:
        """The largest number of runs that a search can take: every possible rate with every seed."""
        return (len(self.rates) + self.extend) * len(self.seeds)


@dataclass(frozen=True)
class SearchState:
    """The progress of a search.

    `rates` are all rates so far, `requested_losses` map each requested (rate, seed) to its loss (None: no
    result yet). `best_rate` is the best of the last rung, or None while a loss is missing. `at_grid_edge`:
    the rate with the best average has an untried neighbor; with `robust`, a lower `best_rate` may have one
    too, which is no worse than the tolerance allows.
    """

    rates: tuple[float, ...]
    requested_losses: Mapping[tuple[float, int], float | None]
    best_rate: float | None
    at_grid_edge: bool = False

    def list_losses(self, rate: float, seeds: Iterable[int]) -> list[float | None]:
        """Return the losses at a rate, seed by seed; None if not requested or not known."""
        return [self.requested_losses.get((rate, seed)) for seed in seeds]

    def compute_median(self, rate: float, seeds: Iterable[int]) -> float | None:
        """Return the median loss at a rate, or None while a loss is missing."""
        return self.compute_average(median, rate, seeds)

    def compute_average(self, average: Average, rate: float, seeds: Iterable[int]) -> float | None:
        """Return the median, or another average, of the losses at a rate; None while one is missing."""
        losses = self.list_losses(rate, seeds)
        known = [loss for loss in losses if loss is not None]
        return average(known) if len(known) == len(losses) else None


def run_search(grid: RateGrid, look_up_loss: LossLookup) -> SearchState:
    """Run the search as far as `look_up_loss` has results; it is over once `best_rate` is set.

    The rate with the best average lies between two rates that were tried with all seeds too, or at an end of
    the grid after `grid.extend` rates were added. Of equal rates the lowest is best: if all diverge, the
    search moves down.
    """
    rates = list(grid.rates)
    requested_losses = dict[tuple[float, int], float | None]()
    average: Average = median if grid.robust is None else fmean

    def find_best(candidates: Collection[float], seeds: Sequence[int], near: float = 0.0) -> float | None:
        for key in [(rate, seed) for rate in sorted(candidates) for seed in seeds]:
            requested_losses[key] = requested_losses[key] if key in requested_losses else look_up_loss(*key)
        state = SearchState(tuple(rates), requested_losses, None)
        averages = {rate: state.compute_average(average, rate, seeds) for rate in sorted(candidates)}
        known_averages = {rate: value for rate, value in averages.items() if value is not None}
        if len(known_averages) < len(averages):
            return None
        return next(
            rate for rate in known_averages if known_averages[rate] <= min(known_averages.values()) + near
        )

    best_rate = find_best(rates, grid.seeds[:1])
    while best_rate is not None and _extend_grid(rates, best_rate, grid):
        best_rate = find_best(rates, grid.seeds[:1])
    rung = set[float]()
    while best_rate is not None and not (near := _find_neighbors(rates, best_rate)) <= rung:
        rung |= near
        best_rate = find_best(rung, grid.seeds)
        if best_rate is not None:
            _extend_grid(rates, best_rate, grid)
    at_grid_edge = best_rate in (rates[0], rates[-1])
    if best_rate is not None and grid.robust is not None:
        best_rate = find_best(rung, grid.seeds, near=grid.robust)
    return SearchState(tuple(rates), requested_losses, best_rate, at_grid_edge)


def _find_neighbors(rates: Sequence[float], rate: float) -> set[float]:
    """Return a rate and its neighbors in the grid."""
    at = rates.index(rate)
    return set(rates[max(at - 1, 0) : at + 2])


def _extend_grid(rates: list[float], best: float, grid: RateGrid) -> bool:
    """Add a rate beyond the end of the grid if `best` is at that end and the grid may grow.

    The new rate keeps the ratio between the end and its neighbor. Returns whether one was added.
    """
    at = rates.index(best)
    if 0 < at < len(rates) - 1 or len(rates) == len(grid.rates) + grid.extend:
        return False
    inner = rates[1] if at == 0 else rates[-2]
    rates.append(float(f"{best * best / inner:.4g}"))
    rates.sort()
    return True
