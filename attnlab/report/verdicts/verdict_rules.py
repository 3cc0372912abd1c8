"""Decision rules for the verdicts of claims and effects.

Surprising: one complete pair is INCONCLUSIVE, not NO RESULT: something was measured, but its interval is the
whole line, on both sides of every threshold. NO RESULT requires that no pair is complete. It precedes NOT
COMPARABLE, because without a finished pair there is nothing to compare.
"""

import math

from attnlab.report.schema import EffectVerdict, Verdict

IntervalBounds = tuple[float, float]


def decide_claim_verdict(
    holds: bool | None, *, n: int, comparable: bool = True, trained: bool = True
) -> Verdict:
    """Decide a claim: SUPPORTED if every plausible value satisfies it, REFUTED if none does.

    Args:
        holds: the decision; None if it is inconclusive.
        n: number of complete pairs.
        comparable: whether the arms may be compared.
        trained: whether the models have learned anything; UNTRAINED if not.
    """
    if n == 0:
        return Verdict.NO_RESULT
    if not comparable:
        return Verdict.NOT_COMPARABLE
    if not trained:
        return Verdict.UNTRAINED
    return {True: Verdict.SUPPORTED, False: Verdict.REFUTED, None: Verdict.INCONCLUSIVE}[holds]


def decide_effect_verdict(
    interval: IntervalBounds | None,
    tolerance: IntervalBounds | None,
    margin: float | None,
    direction: str = "lower",
) -> EffectVerdict:
    """Decide the verdict on an effect at level alpha, from two intervals and the margin.

    The first row that holds applies. An effect that is certainly nonzero and certainly below the margin is
    EQUIVALENT, because the margin is the smallest difference declared to matter. Without a margin only a
    direction can be decided.

    Args:
        interval: at confidence 1 − alpha.
        tolerance: at confidence 1 − 2 alpha, because EQUIVALENT and NOT_WORSE are one-sided tests.

    Raises:
        ValueError: `direction` is neither "lower" nor "higher".
    """
    if direction not in ("lower", "higher"):
        raise ValueError(f"direction={direction!r} must be 'lower' or 'higher' (which of them is better)")
    if interval is None or tolerance is None:
        return EffectVerdict.INCONCLUSIVE
    low, high = _orient_to_harm(interval, direction)
    inner_low, inner_high = _orient_to_harm(tolerance, direction)
    assert low <= inner_low <= inner_high <= high, "`tolerance` must lie inside `interval`"
    delta = math.nan if margin is None else margin  # no comparison with NaN holds
    rows = (
        (low > delta, EffectVerdict.WORSE_MORE),
        (high < -delta, EffectVerdict.BETTER_MORE),
        (inner_low > -delta and inner_high < delta, EffectVerdict.EQUIVALENT),
        (low > 0, EffectVerdict.WORSE),
        (high < 0, EffectVerdict.BETTER),
        (inner_high < delta, EffectVerdict.NOT_WORSE),
        (True, EffectVerdict.INCONCLUSIVE),
    )
    return next(verdict for holds, verdict in rows if holds)


EFFECT_MEANINGS = {
    EffectVerdict.BETTER_MORE: "better by more than the margin",
    EffectVerdict.BETTER: "better, but inconclusive whether by more than the margin",
    EffectVerdict.WORSE_MORE: "worse by more than the margin",
    EffectVerdict.WORSE: "worse, but inconclusive whether by more than the margin",
    EffectVerdict.EQUIVALENT: "any difference is smaller than the margin",
    EffectVerdict.NOT_WORSE: "not worse by more than the margin, possibly better",
    EffectVerdict.INCONCLUSIVE: "these seeds do not decide it, which is no evidence of equality",
    EffectVerdict.LEAKING: "sees future tokens by design and is not ranked",
}


def count_decimals(width: float | None, default: int = 3) -> int:
    """Count the decimals that show an interval of this width with two digits; `default` without a width."""
    if not width or not math.isfinite(width):
        return default
    return min(max(1 - math.floor(math.log10(abs(width))), 0), 9)


def _orient_to_harm(interval: IntervalBounds, direction: str) -> IntervalBounds:
    """Flip an interval so that positive values are worse."""
    return interval if direction == "lower" else (-interval[1], -interval[0])
