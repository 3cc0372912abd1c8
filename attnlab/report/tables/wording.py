"""Effects and claims in words: one formatter for page, Markdown, terminal, W&B and ledger.

An effect is the arm minus the arm that it is compared with, whatever the metric's direction; the same digits
and the same confidence level everywhere: `Δ val/loss = −0.001 nats, 95% CI [−0.018, +0.016]`.
"""

import math
from decimal import Decimal

from attnlab.report.schema import (
    ClaimResult,
    Effect,
    TextClaim,
    Training,
    Verdict,
)
from attnlab.report.tables.format import INFINITY, MINUS, NONE, TIMES, percent, text
from attnlab.report.verdicts.bases import BASES
from attnlab.report.verdicts.leakage import BY_DESIGN
from attnlab.report.verdicts.verdict import MEANING
from attnlab.stats import holds

LEVEL = 0.95  # of every interval beside an effect
DECIDED = (Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INCONCLUSIVE)
DELTA = "\N{GREEK CAPITAL LETTER DELTA}"
EXPLAINED = {  # a verdict -> what it means, for readers who do not read intervals
    Verdict.SUPPORTED: "The whole interval that decided lies where the claim holds.",
    Verdict.REFUTED: "The whole interval that decided lies where the claim does not hold.",
    Verdict.INCONCLUSIVE: "The interval that decided reaches to both sides of the threshold: these seeds "
    "cannot tell, which is no evidence that the arms are equal.",
    Verdict.NOT_COMPARABLE: "A difference between these arms would not be due to attention alone.",
    Verdict.UNTRAINED: "Models that have learned next to nothing cannot show a difference; train them for "
    "longer, as at size=S.",
    Verdict.NO_RESULT: "Nothing was measured that bears on the claim.",
}
COUNTED = "It is counted, not estimated."
NO_INTERVAL = "Without an interval nothing is decided, which is no evidence that the arms are equal."
NOT_FINITE = "not finite"  # a median, where half of the pairs or more diverged


def format_interval(
    low: float | None, high: float | None, digits: int | None, *, sign: bool = True, unit: str = ""
) -> str:
    """`[−0.018, +0.016]`; an end that is None is unbounded, and without both there is no interval."""
    if low is None and high is None:
        return NONE
    start = f"({MINUS}{INFINITY}" if low is None else f"[{text(low, digits, sign=sign)}{unit}"
    end = f"{INFINITY})" if high is None else f"{text(high, digits, sign=sign)}{unit}]"
    return f"{start}, {end}"


def format_level(level: float) -> str:
    """`95% CI`."""
    return f"{percent(level)}% CI"


def format_estimate(
    estimate: float | None,
    low: float | None,
    high: float | None,
    level: float,
    digits: int | None,
    *,
    unit: str = "",
    ratio: bool = False,
    exact: bool = False,
) -> str:
    """`−0.001 nats, 95% CI [−0.018, +0.016]`; a ratio has no sign, and what is exact no interval."""
    times = TIMES if ratio else ""
    if estimate is None:
        number = NOT_FINITE
        if low is None and high is None:
            return NONE
    else:
        number = text(estimate, None if exact else digits, sign=not ratio, unit="" if ratio else unit) + times
    if exact:
        return f"{number}, exact"
    if low is None and high is None:
        return f"{number}, no interval"
    return f"{number}, {format_level(level)} {format_interval(low, high, digits, sign=not ratio, unit=times)}"


def format_effect(of: Effect | ClaimResult | TextClaim) -> str:
    """The estimate of an effect, as every table and sentence prints it."""
    if isinstance(of, Effect):
        return format_estimate(of.mean, of.low, of.high, of.level, of.digits, unit=of.unit)
    if isinstance(of, TextClaim):
        return format_estimate(
            of.effect, of.low, of.high, LEVEL, of.digits, unit=of.unit, ratio=of.compare == "ratio"
        )
    ends = of.interval
    if of.decision.estimate is None and ends and ends.low is None and ends.high is None:
        return NOT_FINITE
    return format_estimate(
        of.decision.estimate,
        ends.low if ends else None,
        ends.high if ends else None,
        ends.level if ends else LEVEL,
        of.digits,
        unit=of.unit,
        ratio=of.compare == "ratio",
        exact=of.decision.exact,
    )


def format_quantity(claim: ClaimResult) -> str:
    """What a claim is about: `Δ val/loss`, or `val/loss ratio`."""
    if claim.compare == "ratio":
        return f"{claim.label} ratio"
    median = "median " if BASES[claim.basis].of_median else ""
    return f"{median}{DELTA} {claim.label}"


def format_threshold(claim: ClaimResult) -> str:
    """`margin +0.0181 (5 % of training)`, or `threshold −0.05` where "no difference" does not satisfy it."""
    if claim.threshold is None or claim.region is None:
        return f"threshold {claim.threshold_said or NONE}"
    ratio = claim.compare == "ratio"
    number = format_declared(claim.threshold, sign=not ratio) + (TIMES if ratio else "")
    name = "margin" if claim.region[0] < claim.center < claim.region[1] else "threshold"
    said = f" ({claim.threshold_said})" if claim.threshold_said else ""
    return f"{name} {claim.relation.format_threshold(number)}{said}"


def format_declared(value: float, *, sign: bool = False) -> str:
    """A declared number with all of its own decimals."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    assert isinstance(exponent, int), value  # a letter for what is no number
    return text(value, max(-exponent, 0), sign=sign and value != 0)


def conclude(claim: ClaimResult) -> str:
    """What the verdict says of the effect: non-inferior, equivalent, superior, ...; of one that says nothing,
    the verdict itself.
    """
    if claim.verdict not in (Verdict.SUPPORTED, Verdict.REFUTED) or claim.threshold is None:
        return claim.verdict.lower()
    supported, refuted = claim.relation.conclusions(
        claim.threshold, claim.direction if claim.compare == "difference" else None
    )
    return supported if claim.verdict == Verdict.SUPPORTED else refuted


def format_claim(claim: ClaimResult) -> str:
    """A claim's outcome: `Δ val/loss = −0.001 nats, 95% CI [−0.018, +0.016], margin +0.0181: non-inferior
    (SUPPORTED)`; where nothing was decided, why.
    """
    mark = f"({claim.verdict}, exploratory)" if claim.exploratory else f"({claim.verdict})"
    if claim.unknown is not None:
        return f"{claim.threshold_said} is not known in {claim.unit}: {claim.unknown} {mark}"
    if claim.verdict == Verdict.NO_RESULT:
        counted = BASES[claim.basis].counted
        return f"no {counted} of {claim.arm} and {claim.against} was completed {mark}"
    if claim.verdict == Verdict.NOT_COMPARABLE:
        return f"{'; '.join(claim.not_comparable)} {mark}"
    if claim.verdict == Verdict.UNTRAINED:
        return f"{claim.arm} and {claim.against} were {claim.untrained} {mark}"
    effect = f"{format_quantity(claim)} = {format_effect(claim)}, {format_threshold(claim)}"
    if claim.verdict == Verdict.INCONCLUSIVE:
        return f"{effect}: {mark[1:-1]}"
    return f"{effect}: {conclude(claim)} {mark}"


def describe_claim(claim: ClaimResult) -> str:
    """One line: the arms, the outcome, its equivalent in training compute, and what it rests on."""
    line = f"{claim.arm} vs {claim.against}: {format_claim(claim)}"
    if claim.unknown is not None:
        return f"{line}."  # no seed was counted
    if claim.training and claim.verdict in DECIDED:
        line += f"; equivalent to {format_training(claim.training)}"
    line += _decided_otherwise(claim)
    looks = claim.looks.describe() if claim.looks else ""
    basis = _count_evidence(claim)
    notes = [f"{arm} {BY_DESIGN}" for arm in claim.by_design]
    return ". ".join([line, f"{looks}, {basis}" if looks else basis, *notes]) + "."


def _decided_otherwise(claim: ClaimResult) -> str:
    """The interval that decided, where the one at LEVEL would have decided otherwise."""
    decision, shown = claim.decision, claim.interval
    if claim.verdict not in DECIDED or claim.region is None or decision.level is None or shown is None:
        return ""
    ends = [
        (-math.inf if of.low is None else of.low, math.inf if of.high is None else of.high)
        for of in (decision, shown)
    ]
    if len({holds(claim.region, interval) for interval in ends}) == 1:
        return ""
    if decision.low is None and decision.high is None:
        return f"; no interval at {percent(decision.level)}%, the level that decides"
    return f"; decided on the {format_decision(claim)}"


def format_decision(claim: ClaimResult) -> str:
    """The interval that decided, with its level: `99% CI [−0.018, +0.016]`; empty where there is none."""
    decision = claim.decision
    if decision.level is None or (decision.low is None and decision.high is None):
        return ""
    ratio = claim.compare == "ratio"
    unit = TIMES if ratio else ""
    interval = format_interval(decision.low, decision.high, claim.digits, sign=not ratio, unit=unit)
    return f"{format_level(decision.level)} {interval}"


def explain_verdict(claim: ClaimResult) -> str:
    """What a claim's verdict means, for readers who do not read intervals."""
    if claim.decision.exact and claim.verdict in (Verdict.SUPPORTED, Verdict.REFUTED):
        return COUNTED
    if claim.verdict == Verdict.INCONCLUSIVE and claim.decision.low is None and claim.decision.high is None:
        return NO_INTERVAL
    return EXPLAINED[claim.verdict]


def explain_effect(effect: Effect) -> str:
    """What an effect's word means, or why its arms are not compared; empty where it is only described."""
    if effect.reasons:
        return "; ".join(effect.reasons)
    return MEANING.get(effect.word, "") if effect.mean is not None else ""


def format_training(training: Training, of: str = " training compute") -> str:
    """`+0.3% training compute, 95% CI [−4%, +5%]`; under a heading that says `of` what, without it."""
    point = f"{_format_share(training.share)}{of}"
    if training.low is None and training.high is None:
        return f"{point}, without bounds"
    ends = (training.low, training.high)
    start, end = ("unbounded" if value is None else _format_share(value) for value in ends)
    return f"{point}, {format_level(training.level)} [{start}, {end}]"


def _format_share(share: float) -> str:
    size = 100 * abs(share)
    fine = 0.05 <= size < 0.95 or (share < 0 and size > 99)
    return f"{text(100 * share, int(fine), sign=True)}%"


def _count_evidence(claim: ClaimResult) -> str:
    n = claim.decision.n
    if claim.decision.exact:
        return "Exact"
    of = f"{n} of {claim.planned}" if claim.planned not in (None, n) else f"{n}"
    return f"{of} {BASES[claim.basis].counted}{'' if of == '1' else 's'}"
