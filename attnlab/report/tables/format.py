"""How numbers are written: one function for HTML and Markdown, so that both say the same."""

from typing import Any

from markupsafe import Markup, escape

from attnlab.report.schema import HeadScore
from attnlab.store.guards.declared import Declared

MINUS = "\N{MINUS SIGN}"
INFINITY = "\N{INFINITY}"
TIMES = "\N{MULTIPLICATION SIGN}"
NONE = "\N{EN DASH}"  # not measured, or no such thing


def text(value: Any, digits: int | None = None, *, sign: bool = False, unit: str = "") -> str:
    """`1,234` for counts, as many decimals as asked for, four significant digits else, and of what is far
    beyond any count; a true minus sign.
    """
    if value is None:
        return NONE
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if digits is None and float(value).is_integer() and abs(value) < 1e15:
        written = f"{value:{'+' if sign else ''},.0f}"
    elif digits is None or abs(value) >= 1e15:
        written = f"{value:{'+' if sign else ''}{',.0f' if 1000 <= abs(value) < 1e15 else '.4g'}}"
    else:
        written = f"{value:{'+' if sign else ''},.{digits}f}"
    return written.replace("-", MINUS) + (f" {unit}" if unit else "")


def pvalue(value: float | None) -> str:
    """A p-value in two significant digits, never 0."""
    return NONE if value is None else "< 0.0001" if value < 0.0001 else f"{value:.2g}"


def data(value: Any, digits: int | None = None, *, sign: bool = False, unit: str = "") -> Markup:
    """The number for the page, with its full value in the markup."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return escape(text(value))
    return Markup('<data value="{}">{}</data>').format(repr(value), text(value, digits, sign=sign, unit=unit))


def data_p(value: float | None) -> Markup:
    """A p-value for the page."""
    return (
        escape(NONE)
        if value is None
        else Markup('<data value="{}">{}</data>').format(repr(value), pvalue(value))
    )


def span(low: float | None, high: float | None, digits: int | None = None, *, sign: bool = True) -> str:
    """An interval as text."""
    return (
        NONE
        if low is None or high is None
        else f"[{text(low, digits, sign=sign)}, {text(high, digits, sign=sign)}]"
    )


def data_span(
    low: float | None, high: float | None, digits: int | None = None, *, sign: bool = True
) -> Markup:
    """An interval for the page."""
    if low is None or high is None:
        return escape(NONE)
    return Markup("[{}, {}]").format(data(low, digits, sign=sign), data(high, digits, sign=sign))


def with_unit(label: str, unit: str) -> str:
    """val/loss (nats), or the label alone of what has no unit."""
    return f"{label} ({unit})" if unit else label


def chances(score: HeadScore) -> dict[str, float | None]:
    """What uniform attention would score, by arm."""
    return {count.arm: count.chance for count in score.counts}


def letter(place: int) -> str:
    """What a kind of layer is called: A to H, and again."""
    return "ABCDEFGH"[place % 8]


def percent(share: float) -> str:
    """A level in percent: 5, 2.5, 1.67."""
    return f"{100 * share:.3g}"


def on_record(declared: Declared) -> str:
    """The declaration that a report cites, and what was finished before it."""
    of = f"{declared.experiment}, size {declared.size}" if declared.size else declared.experiment
    entry = f"entry {declared.hash[:16]} of the store's declarations.jsonl"
    before = f"{declared.known or 'None'} of {declared.pairs} pairs of runs"
    finished = f"{'was' if declared.known == 1 else 'were'} finished before that"
    return f"Declared on {declared.time}: {entry}, {of}. {before} {finished}."
