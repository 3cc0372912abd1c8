"""Budget matching: find the integer config value that brings an arm's budget closest to the baseline's."""

from collections.abc import Callable

from attnlab.errors import InvalidConfig
from attnlab.store.experiment_schema import RESOURCE_ALIASES as RESOURCE_ALIASES


def solve_for_target(figure: Callable[[int], float], target: float, start: int, *, figure_name: str) -> int:
    """Return the value whose `figure` is closest to `target`; the figure must grow with the value.

    Nearly all figures are affine in the value, so interpolation narrows the bracket.

    Raises:
        InvalidConfig: The figure does not grow, or exceeds the target even at 1; `figure_name` names it.
    """
    at_start = figure(start)
    if at_start == target:
        return start
    low, at_low, high, at_high = _bracket_target(figure, target, start, at_start, figure_name)
    while high - low > 1 and target not in (at_low, at_high):
        guess = low + int((target - at_low) * (high - low) / (at_high - at_low))
        guess = min(max(guess, low + 1), high - 1)
        at_guess = figure(guess)
        if at_guess <= target:
            low = guess
            at_low = at_guess
        else:
            high = guess
            at_high = at_guess
    return low if target - at_low <= at_high - target else high


def _bracket_target(
    figure: Callable[[int], float], target: float, start: int, at_start: float, figure_name: str
) -> tuple[int, float, int, float]:
    """Return `low, figure(low), high, figure(high)` with the target between the two figures."""
    low = high = start
    at_low = at_high = at_start
    while at_high < target:
        low = high
        at_low = at_high
        high *= 2
        at_high = figure(high)
        if at_high <= at_low:
            raise InvalidConfig(
                f"{figure_name} does not grow with the matched key: choose another match_by, or match=none"
            )
    while at_low > target:
        if low == 1:
            raise InvalidConfig(
                f"{figure_name} exceeds the baseline's even with the key at 1: choose another "
                "match_by, or match=none"
            )
        high = low
        at_high = at_low
        low = max(1, low // 2)
        at_low = figure(low)
        if at_low >= at_high:
            raise InvalidConfig(
                f"{figure_name} does not grow with the matched key: choose another match_by, or match=none"
            )
    return low, at_low, high, at_high
