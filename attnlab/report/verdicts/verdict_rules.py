"""Decision rules for the verdicts of claims and effects.

Surprising: one complete pair is INCONCLUSIVE, not NO RESULT: something was measured, but its interval is the
whole line, on both sides of every threshold. NO RESULT requires that no pair is complete. It precedes NOT
COMPARABLE, because without a finished pair there is nothing to compare.
"""

import math

from attnlab.report.schema import Effect, EffectVerdict, Verdict

IntervalBounds = tuple[float, float]


def decide_claim_verdict(
    holds: bool | None, *, n: int, comparable: bool = True, shortfall: Verdict | None = None
) -> Verdict:
    """Decide a claim: SUPPORTED if every plausible value satisfies it, REFUTED if none does.

    Args:
        holds: the decision; None if it is inconclusive.
        n: number of complete pairs.
        comparable: whether the arms may be compared.
        shortfall: UNTRAINED or DEMONSTRATION, if the models were trained too briefly for a finding.
    """
    if n == 0:
        return Verdict.NO_RESULT
    if not comparable:
        return Verdict.NOT_COMPARABLE
    return shortfall or {True: Verdict.SUPPORTED, False: Verdict.REFUTED, None: Verdict.INCONCLUSIVE}[holds]


def decide_effect_verdict(
    interval: IntervalBounds | None,
    tolerance: IntervalBounds | None,
    margin: float | None,
    direction: str = "lower",
) -> EffectVerdict:
    """Decide the verdict on an effect at level alpha, from two intervals and the margin.

    The first row that holds applies. EQUAL takes an interval that is nothing but 0, that of exact evidence.
    An effect that is certainly nonzero and certainly below the margin is EQUIVALENT, because the margin is
    the smallest difference declared to matter. Without a margin only a direction can be decided.

    Args:
        interval: at confidence 1 − alpha.
        tolerance: at confidence 1 − 2 alpha, because EQUIVALENT and NON_INFERIOR are one-sided tests.

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
        (low == high == 0, EffectVerdict.EQUAL),
        (inner_low > -delta and inner_high < delta, EffectVerdict.EQUIVALENT),
        (low > 0, EffectVerdict.WORSE),
        (high < 0, EffectVerdict.BETTER),
        (inner_high < delta, EffectVerdict.NON_INFERIOR),
        (True, EffectVerdict.INCONCLUSIVE),
    )
    return next(verdict for holds, verdict in rows if holds)


def find_diverging_level(effect: Effect, direction: str) -> float | None:
    """Find the level that explains why the printed interval alone would give another verdict.

    It is that of the verdict's own interval if that is narrower than the printed one, else that of the
    interval which does not show the alternative. None if both agree, if ranks decided, and for effects that
    are not judged against the margin.
    """
    if not effect.primary or effect.mean is None or not effect.verdict.is_judgment:
        return None
    printed = (
        -math.inf if effect.low is None else effect.low,
        math.inf if effect.high is None else effect.high,
    )
    alternative = decide_effect_verdict(printed, printed, effect.margin, direction)
    if alternative == effect.verdict:
        return None
    levels = dict.fromkeys(EffectVerdict, 1 - effect.alpha)
    levels |= dict.fromkeys((EffectVerdict.EQUIVALENT, EffectVerdict.NON_INFERIOR), 1 - 2 * effect.alpha)
    if levels[effect.verdict] < effect.level:
        return levels[effect.verdict]
    return levels[alternative] if levels[alternative] > effect.level else None


def count_decimals(width: float | None, default: int = 3) -> int:
    """Count the decimals that show an interval of this width with two digits; `default` without a width."""
    if not width or not math.isfinite(width):
        return default
    return min(max(1 - math.floor(math.log10(abs(width))), 0), 9)


def _orient_to_harm(interval: IntervalBounds, direction: str) -> IntervalBounds:
    """Flip an interval so that positive values are worse."""
    return interval if direction == "lower" else (-interval[1], -interval[0])
