"""Number formatting shared by HTML and Markdown, so that both print the same digits."""

import re
from typing import Any

from attnlab.report.schema import HeadScore
from attnlab.store.guards.preregistered_terms import Preregistration

MINUS = "\N{MINUS SIGN}"
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
INFINITY = "\N{INFINITY}"
TIMES = "\N{MULTIPLICATION SIGN}"
NONE = "\N{EN DASH}"  # not measured, or no such thing


def format_number(value: Any, digits: int | None = None, *, sign: bool = False, unit: str = "") -> str:
    """Format a number: `1,234` for counts, else `digits` decimals, else four significant digits.

    Values far beyond any count get four significant digits too. The minus sign is U+2212. A value that is
    rounded to zero has no sign.
    """
    text = format_bound(value, digits, sign=sign)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return text
    if not text.strip(f"+{MINUS}0."):
        text = text.lstrip(f"+{MINUS}")
    return text + (f" {unit}" if unit else "")


def format_bound(value: Any, digits: int | None = None, *, sign: bool = False) -> str:
    """Format an end of an interval: rounded to zero it keeps the sign, which shows its side of zero."""
    if value is None:
        return NONE
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if digits is None and float(value).is_integer() and abs(value) < 1e15:
        text = f"{value:{'+' if sign else ''},.0f}"
    elif digits is None or abs(value) >= 1e15:
        text = f"{value:{'+' if sign else ''}{',.0f' if 1000 <= abs(value) < 1e15 else '.4g'}}"
    else:
        text = f"{value:{'+' if sign else ''},.{digits}f}"
    return text.replace("-", MINUS)


def format_difference(arm: str, against: str) -> str:
    """Format `arm − against`, with a sum of arms in parentheses."""
    return f"{arm} {MINUS} {f'({against})' if ' + ' in against else against}"


def format_pvalue(value: float | None) -> str:
    """Format a p-value with two significant digits, never as 0."""
    return NONE if value is None else "< 0.0001" if value < 0.0001 else f"{value:.2g}"


def format_bounds(
    low: float | None, high: float | None, digits: int | None = None, *, sign: bool = True
) -> str:
    """Format an interval as text."""
    return (
        NONE
        if low is None or high is None
        else f"[{format_bound(low, digits, sign=sign)}, {format_bound(high, digits, sign=sign)}]"
    )


def keep_intervals_whole(text: str) -> str:
    """Replace the blanks inside intervals by no-break spaces: a narrow column breaks no interval."""
    return re.sub(
        r"[\[(][^\[\]()A-Za-z]*, [^\[\]()A-Za-z]*[\])]",
        lambda match: match[0].replace(" ", NO_BREAK_SPACE),
        text,
    )


def append_unit(label: str, unit: str) -> str:
    """Format `val/loss (nats)`, or the label alone without a unit."""
    return f"{label} ({unit})" if unit else label


def get_chance_by_arm(score: HeadScore) -> dict[str, float | None]:
    """Return the score of uniform attention by arm."""
    return {count.arm: count.chance for count in score.counts}


def format_percent(share: float) -> str:
    """Format a level in percent: 5, 2.5, 1.67."""
    return f"{100 * share:.3g}"


def format_compute_amount(text: str) -> str:
    """Format an amount of training compute, as preregistered, for a sentence: `5% of training compute`."""
    return text.replace(" % of training", "% of training compute")


def format_preregistration(preregistration: Preregistration, *, is_changed: bool) -> str:
    """Format the cited preregistration, and the number of pairs finished before it.

    Args:
        is_changed: Whether its terms deviate from an earlier preregistration or from the experiment file.
    """
    subject = (
        f"{preregistration.experiment}, size {preregistration.size}"
        if preregistration.size
        else preregistration.experiment
    )
    entry = f"entry {preregistration.hash[:16]} of declarations.jsonl"
    verb = "These changed terms were logged" if is_changed else "Preregistered"
    return (
        f"{verb} on {preregistration.time} ({entry}, {subject}). Of at most {preregistration.pairs} pairs of "
        "runs (the two arms of a comparison at one seed), "
        f"{preregistration.known_pairs or 'none'} had finished by then."
    )
