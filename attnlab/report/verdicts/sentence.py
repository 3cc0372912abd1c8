"""The sentences that say a verdict: one line with its numbers, and one for who does not read intervals.

Surprising: bounds are rounded outward ("at most" up, "at least" down), so that what is printed holds; and a
cost is a positive difference where lower is better, a negative one where higher is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from attnlab.report.verdicts.verdict import Verdict, Word
from attnlab.stats import Decision, region


@dataclass(frozen=True)
class Wording:
    """What the sentences need of a declared claim."""

    arm: str
    against: str
    relation: str  # within | below | above
    threshold: float
    compare: str = "difference"  # or ratio
    metric: str = "loss"  # its words
    unit: str = "nats"
    direction: str | None = "lower"  # which is better; None for a metric of which neither is
    baseline: str = ""  # `against` is spelled out where it is another arm
    median: bool = False  # what is told of is the median of the pairs, not their mean
    said: str = ""  # the threshold as it was declared, where that is no number

    @property
    def centre(self) -> float:
        """The value that means "no difference"."""
        return {"difference": 0.0, "ratio": 1.0}[self.compare]


def sentence(
    claim: Wording,
    decision: Decision,
    verdict: Verdict,
    *,
    planned: int | None = None,
    unequal: Sequence[str] = (),
    counted: str = "paired seed",
    looked: str = "",
    exploratory: bool = False,
    raw: str = "",
) -> str:
    """One line: SUPPORTED: gqa costs at most 0.016 nats (margin 0.030). 6 paired seeds.

    `unequal` has the reasons why the arms cannot be compared; `counted` is what `decision.n` counts, in the
    singular; `looked` says at which look that was, `raw` why the arms show nothing of what training makes of
    them.
    """
    if verdict == Verdict.NO_RESULT:
        body = f"no {counted} of {claim.arm} and {claim.against} was completed"
    elif verdict == Verdict.NOT_COMPARABLE:
        body = "; ".join(unequal)
    elif verdict == Verdict.UNTRAINED:
        body = f"{claim.arm} and {claim.against} were {raw}"
    else:
        body = f"{claim.arm} {_found(claim, decision, verdict)} ({_asked(claim, decision)})"
    head = f"{verdict} (exploratory)" if exploratory else str(verdict)
    basis = _basis(decision, planned, counted)
    return f"{head}: {body}. {f'{looked}, {basis}' if looked else basis}."


def plain(claim: Wording, verdict: Verdict, *, exact: bool = False) -> str:
    """The verdict in plain words."""
    says = f"{claim.arm} {_says(claim)}"
    if exact and verdict in (Verdict.SUPPORTED, Verdict.REFUTED):
        opening = "it holds: " if verdict == Verdict.SUPPORTED else "it does not hold that "
        return f"This is counted, not estimated, and {opening}{says}."
    return {
        Verdict.SUPPORTED: f"Every value that the measurements leave plausible fits the claim that {says}.",
        Verdict.REFUTED: f"No value that the measurements leave plausible fits the claim that {says}.",
        Verdict.INCONCLUSIVE: f"The measurements cannot tell whether {says}. That they cannot tell is no "
        "evidence that the arms are equal.",
        Verdict.NOT_COMPARABLE: f"A difference between {claim.arm} and {claim.against} would not be due to "
        "attention alone.",
        Verdict.UNTRAINED: f"Models that have learned next to nothing cannot show whether {says}; train "
        "them for longer, as at size=S.",
        Verdict.NO_RESULT: f"Nothing was measured that bears on whether {says}.",
    }[verdict]


def phrase(word: Word, margin: float | None, digits: int = 3, unit: str = "") -> str:
    """An effect's word with the margin in place: EQUIVALENT WITHIN ±0.030 nats."""
    return str(word) if margin is None else word.replace("δ", f"{declared(margin, digits)} {unit}".rstrip())


def decimals(width: float | None, default: int = 3) -> int:
    """The decimals that show an interval of this width with two digits; `default` where it has none."""
    if not width or not math.isfinite(width):
        return default
    return min(max(1 - math.floor(math.log10(abs(width))), 0), 9)


def declared(value: float, digits: int = 0) -> str:
    """A declared number with all of its own decimals, and at least so many."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    assert isinstance(exponent, int), value  # a letter for what is no number
    return f"{value:.{max(-exponent, digits, 0)}f}"


def _found(claim: Wording, decision: Decision, verdict: Verdict) -> str:
    """What the interval says, from the side that decided."""
    low = decision.low
    high = decision.high
    if claim.compare == "difference" and low == high == 0:
        return f"has the {claim.metric} of {claim.against} in every pair, to the last digit"
    if low is None or high is None or decision.exact or (math.isinf(low) and math.isinf(high)):
        if decision.estimate is None:
            return "failed as often as not"
        value = _side(claim, decision.estimate, True, ("", ""), lambda v, _: f"{v:.6g}")
        return _say(claim, value) + ("" if decision.exact else f", which {_unbounded(decision)}")

    digits = decimals(high - low)
    words = ("at most", "at least")
    upper, lower = (
        _side(claim, end, is_upper, words, lambda v, up: _outward(v, digits, up))
        if math.isfinite(end)
        else ("", "")
        for end, is_upper in ((high, True), (low, False))
    )
    floor, ceiling = region(claim.relation, claim.threshold, claim.centre)
    if verdict == Verdict.REFUTED:
        return _say(claim, upper if high <= floor else lower)
    if math.isinf(low) or math.isinf(high):
        return _say(claim, lower if math.isinf(high) else upper)
    if verdict == Verdict.INCONCLUSIVE or claim.relation == "within":
        return _say(claim, *((upper, lower) if claim.direction == "higher" else (lower, upper)))
    return _say(claim, upper if math.isfinite(ceiling) else lower)


def _unbounded(decision: Decision) -> str:
    """Why there is no interval."""
    if decision.n == 1:
        return "is the only pair and has no interval"
    return "is so far without bounds" if decision.low is not None else "is the same in every pair: no spread"


def _asked(claim: Wording, decision: Decision) -> str:
    """The threshold: a margin where "no difference" would satisfy the claim, else the claim itself."""
    low, high = region(claim.relation, claim.threshold, claim.centre)
    decided = None if decision.exact else decision.interval
    said = f", {claim.said}" if claim.said else ""
    digits = 0 if decided is None else decimals(decided[1] - decided[0])
    if claim.compare == "difference" and low < 0 < high:
        return f"margin {declared(abs(claim.threshold), digits)}{said}"
    return f"claimed: {_says(claim, short=True)}{said}"


def _says(claim: Wording, short: bool = False) -> str:
    """The claim's own words, less the arm."""
    if claim.relation == "within":
        ratio = claim.compare == "ratio"
        far = f"{declared(claim.threshold)}{'x' if ratio else ' ' + claim.unit}".rstrip()
        return f"is within {far} of {claim.against}" + (f" in {claim.metric}" if ratio and not short else "")
    words = ("less than", "more than")
    side = _side(claim, claim.threshold, claim.relation == "below", words, lambda v, _: declared(v))
    return " ".join(side) if short else _say(claim, side)


def _side(
    claim: Wording, value: float, upper: bool, words: tuple[str, str], show: Callable[[float, bool], str]
) -> tuple[str, str]:
    """(verb, quantity) of a value that bounds the difference or the ratio from above, or from below."""
    if claim.compare == "ratio":
        return "has", f"{words[not upper]} {show(value, upper)}x".lstrip()
    cost, from_above = (-value, not upper) if claim.direction == "higher" else (value, upper)
    plus = "costs"
    minus = "saves" if claim.unit == "steps" else "gains"
    if claim.direction is None:
        plus = f"raises {claim.metric} by"
        minus = f"lowers {claim.metric} by"
    is_cost = cost > 0 if from_above else cost >= 0
    most = is_cost == from_above
    return plus if is_cost else minus, f"{words[not most]} {show(abs(cost), most)}".lstrip()


def _say(claim: Wording, *sides: tuple[str, str]) -> str:
    (verb, said), *more = sides
    for other, quantity in more:
        said += f" and {quantity}" if other == verb else f" or {other} {quantity}"
    if claim.compare == "ratio":
        return f"{verb} {said} the {claim.metric} of {claim.against}"
    versus = f"against {claim.against}" if claim.against != claim.baseline else ""
    middle = "in the median pair" if claim.median else ""
    return " ".join(part for part in (verb, said, claim.unit, versus, middle) if part)


def _outward(amount: float, digits: int, up: bool) -> str:
    if not up and amount:  # a bound that is surely not zero is not printed as zero
        digits = max(digits, -math.floor(math.log10(amount)))
    if amount >= 1e15:  # two pairs may leave a ratio that wide
        return f"{amount:.0e}"
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    return f"{Decimal(repr(float(amount))).quantize(Decimal(1).scaleb(-digits), rounding):f}"


def _basis(decision: Decision, planned: int | None, counted: str) -> str:
    if decision.exact:
        return "Exact"
    of = f"{decision.n} of {planned}" if planned not in (None, decision.n) else f"{decision.n}"
    return f"{of} {counted}{'' if of == '1' else 's'}"


ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def looked(looks: Mapping[str, Any] | None) -> str:
    """At which look a claim was decided, or how far it has been tried; nothing of a design of one look."""
    if looks is None or looks["design"] == "fixed":
        return "" if looks is None or looks["made"] else "Not all seeds are in"
    if looks["design"] == "anytime":
        return "At any number of seeds" if looks["made"] else "Not all seeds are in"
    made = len(looks["made"])
    planned = NUMBERS[len(looks["planned"]) - 1]
    if looks["decided"]:
        return f"Decided at the {ORDINALS[looks['decided'] - 1]} of {planned} looks"
    if not made:
        return "Before the first look"
    if made == len(looks["planned"]):
        return f"Open after all {planned} looks"
    return f"Open after the {ORDINALS[made - 1]} of {planned} looks"
