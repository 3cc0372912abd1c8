"""Solving for equal budgets: the integer that brings an arm's figure as near as can be to the baseline's."""

from collections.abc import Callable

from attnlab.errors import Refused
from attnlab.store.declarations import FIGURES as FIGURES


def solve(figure: Callable[[int], float], target: float, start: int, *, what: str) -> int:
    """The value whose `figure` is nearest to `target`, for a figure that grows with the value.

    Figures are nearly always affine in the value, so the bracket is narrowed by interpolation.
    """
    here = figure(start)
    if here == target:
        return start
    low, at_low, high, at_high = _bracket(figure, target, start, here, what)
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


def _bracket(
    figure: Callable[[int], float], target: float, start: int, here: float, what: str
) -> tuple[int, float, int, float]:
    low = high = start
    at_low = at_high = here
    while at_high < target:
        low = high
        at_low = at_high
        high *= 2
        at_high = figure(high)
        if at_high <= at_low:
            raise Refused(
                f"{what} does not grow with the matched key: choose another match_by, or match=none"
            )
    while at_low > target:
        if low == 1:
            raise Refused(f"{what} is above the baseline's even at 1: choose another match_by, or match=none")
        high = low
        at_high = at_low
        low = max(1, low // 2)
        at_low = figure(low)
        if at_low >= at_high:
            raise Refused(
                f"{what} does not grow with the matched key: choose another match_by, or match=none"
            )
    return low, at_low, high, at_high
