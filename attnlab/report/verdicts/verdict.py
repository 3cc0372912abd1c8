"""The closed vocabulary: which word a claim gets, and which an effect.

Surprising: one complete pair is INCONCLUSIVE, not NO RESULT: something was measured, but its interval is the
whole line, on both sides of every threshold. NO RESULT is for no complete pair at all, and it goes before NOT
COMPARABLE, because where nothing finished there is nothing to compare.
"""

import math

from attnlab.report.schema import Verdict, Word

Interval = tuple[float, float]


def claim_verdict(holds: bool | None, *, n: int, comparable: bool = True, trained: bool = True) -> Verdict:
    """SUPPORTED where every value that the decision leaves plausible satisfies the claim, REFUTED where none
    does; n counts complete pairs. Models that have learned nothing yet bear out nothing: UNTRAINED.
    """
    if n == 0:
        return Verdict.NO_RESULT
    if not comparable:
        return Verdict.NOT_COMPARABLE
    if not trained:
        return Verdict.UNTRAINED
    return {True: Verdict.SUPPORTED, False: Verdict.REFUTED, None: Verdict.INCONCLUSIVE}[holds]


def effect_word(
    interval: Interval | None, tolerance: Interval | None, margin: float | None, direction: str = "lower"
) -> Word:
    """The word for an effect, from its 95 % interval, its 90 % interval (`tolerance`) and the margin.

    The first row that holds speaks. An effect that is surely there and surely below the margin is EQUIVALENT:
    the margin is what was declared to matter. Without a margin only a direction can be told.
    """
    if direction not in ("lower", "higher"):
        raise ValueError(f"direction={direction!r} must be 'lower' or 'higher' (which of them is better)")
    if interval is None or tolerance is None:
        return Word.INCONCLUSIVE
    low, high = _harm(interval, direction)
    inner_low, inner_high = _harm(tolerance, direction)
    assert low <= inner_low <= inner_high <= high, "the 90 % interval lies inside the 95 % one"
    delta = math.nan if margin is None else margin  # no comparison with NaN holds
    rows = (
        (low > delta, Word.WORSE_MORE),
        (high < -delta, Word.BETTER_MORE),
        (inner_low > -delta and inner_high < delta, Word.EQUIVALENT),
        (low > 0, Word.WORSE),
        (high < 0, Word.BETTER),
        (inner_high < delta, Word.NOT_WORSE),
        (True, Word.INCONCLUSIVE),
    )
    return next(word for holds, word in rows if holds)


MEANING = {
    Word.BETTER_MORE: "better, and by more than the margin that was declared to matter",
    Word.BETTER: "better; whether by more than the margin is open",
    Word.WORSE_MORE: "worse, and by more than the margin that was declared to matter",
    Word.WORSE: "worse; whether by more than the margin is open",
    Word.EQUIVALENT: "any difference is smaller than the margin that was declared to matter",
    Word.NOT_WORSE: "any loss is smaller than the margin that was declared to matter; a gain is possible",
    Word.INCONCLUSIVE: "these seeds cannot tell; that is not evidence of no difference",
    Word.LEAKING: "it sees future tokens by design, and is not ranked",
}


def decimals(width: float | None, default: int = 3) -> int:
    """The decimals that show an interval of this width with two digits; `default` where it has none."""
    if not width or not math.isfinite(width):
        return default
    return min(max(1 - math.floor(math.log10(abs(width))), 0), 9)


def _harm(interval: Interval, direction: str) -> Interval:
    """The interval turned so that positive is worse."""
    return interval if direction == "lower" else (-interval[1], -interval[0])
