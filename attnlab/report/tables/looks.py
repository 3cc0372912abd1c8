"""The looks of a claim as rows: what each saw, and what its estimate would have had to pass to decide.

What decides at a look is its interval. Read the other way round that is a boundary for the estimate: the
threshold, moved by the interval's own half. Ranks and bets have none: their intervals stand alone.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.report.tables.format import MINUS, NONE, percent, span, text
from attnlab.report.verdicts.sentence import NUMBERS, ORDINALS
from attnlab.report.verdicts.verdict import Verdict

DECIDED = "decided"
OPEN = "open"
BOUNDED = "seeds"  # the evidence whose interval lies around its estimate whatever that is: t


def told(claim: Mapping[str, Any]) -> bool:
    """Whether a claim has a path to tell of: not of one look that was fixed beforehand."""
    looks = claim.get("looks") or {"design": "fixed"}
    return looks["design"] != "fixed" and bool(looks["made"])


def rows(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per planned look: `seeds`, what was seen there or None, `state` in words, and the values of the
    estimate that would have been `support` (from, to) and `refute` (at most, at least), None where no bound.
    """
    looks = claim["looks"]
    out = []
    for i, seeds in enumerate(looks["planned"]):
        seen = looks["made"][i] if i < len(looks["made"]) else {}
        row = {key: seen.get(key) for key in ("n", "estimate", "low", "high", "level")}
        out.append(
            {"look": i + 1, "seeds": seeds, "state": _state(claim, i), **row, **_boundary(claim, seen)}
        )
    return out


def _state(claim: Mapping[str, Any], i: int) -> str:
    looks = claim["looks"]
    if i < len(looks["made"]):
        return DECIDED if looks["decided"] == i + 1 else OPEN
    if looks["decided"]:
        return "not needed"
    return "to come" if claim["verdict"] == Verdict.INCONCLUSIVE else "not made"


def _boundary(claim: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    ends: list[Any] = [seen.get(key) for key in ("low", "estimate", "high")]
    ratio = claim["compare"] == "ratio"
    if claim["kind"] != BOUNDED or None in ends or (ratio and min(ends) <= 0):
        return {"support": None, "refute": None}
    low, estimate, high = ends

    def moved(end: float | None, of: float) -> float | None:
        """A threshold, moved as far as the estimate lies from this end of the interval."""
        return None if end is None else end * estimate / of if ratio else end + estimate - of

    return {
        "support": (moved(claim["from"], low), moved(claim["to"], high)),
        "refute": (moved(claim["from"], high), moved(claim["to"], low)),
    }


def said(claim: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A look as a screen reader says it."""
    planned = len(claim["looks"]["planned"])
    name = f"{ORDINALS[row['look'] - 1]} of {NUMBERS[planned - 1]} looks" if planned > 1 else "one look"
    words = claim["verdict"] if row["state"] == DECIDED else row["state"]
    seen = "" if row["n"] is None else f", {estimate(claim, row)} {interval(claim, row)}"
    return f"{name}, {row['seeds']} seeds{seen}, {words}"


def estimate(claim: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    return text(row["estimate"], claim["digits"], sign=claim["compare"] == "difference")


def interval(claim: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The interval of a look, or the one bound that it has."""
    low = row["low"]
    high = row["high"]
    sign = claim["compare"] == "difference"
    if (low is None) == (high is None):
        return span(low, high, claim["digits"], sign=sign)
    bound = text(low if high is None else high, claim["digits"], sign=sign)
    return f"at least {bound}" if high is None else f"at most {bound}"


def level(row: Mapping[str, Any]) -> str:
    return NONE if row["level"] is None else f"{percent(row['level'])} %"


def boundary(claim: Mapping[str, Any], row: Mapping[str, Any], side: str) -> str:
    """The values of the estimate that would have been enough to support the claim, or to refute it."""
    ends = row[side]
    if ends is None or ends == (None, None):
        return NONE
    low, high = ends
    sign = claim["compare"] == "difference"
    first, last = (text(end, claim["digits"], sign=sign) for end in ends)
    if side == "refute":
        return " or ".join(
            words for end, words in ((low, f"at most {first}"), (high, f"at least {last}")) if end is not None
        )
    if low is None or high is None:
        return f"below {last}" if low is None else f"above {first}"
    return f"between {first} and {last}" if low < high else "never: the interval is too wide"


HEADER = ("look", "seeds", "estimate", "interval", "level", "SUPPORTED if", "REFUTED if", "outcome")


def cells(claim: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """A row under HEADER, as text."""
    sides = [boundary(claim, row, side) for side in ("support", "refute")]
    words = claim["verdict"] if row["state"] == DECIDED else row["state"]
    seen = estimate(claim, row), interval(claim, row), level(row)
    return [str(row["look"]), str(row["seeds"]), *seen, *sides, words]


def title(claim: Mapping[str, Any]) -> str:
    """What the numbers of a path are: a difference or a ratio of which metric, in which unit."""
    joint = "/" if claim["compare"] == "ratio" else MINUS
    unit = f" ({claim['unit']})" if claim["unit"] else ""
    return f"{claim['label']}{unit}: {claim['arm']} {joint} {claim['against']}"
