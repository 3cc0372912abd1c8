"""The interim analyses of a claim as rows: what each showed, and what its estimate had to pass to decide.

The interval of an interim analysis decides. Read the other way round it is a boundary for the estimate: the
threshold, moved by the interval's own half. Ranks and e-values have none: their intervals stand alone.
"""

import math
from dataclasses import dataclass

from attnlab.report.schema import ClaimResult, Look, LooksMade, Verdict
from attnlab.report.tables.format import MINUS, NONE, percent, span, text
from attnlab.report.verdicts.bases import BASES

DECIDED = "decided"
OPEN = "inconclusive"
Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class LookRow:
    """A planned interim analysis: its number, its seeds, its state in words, and what was seen, None before.

    `support` (from, to) and `refute` (at most, at least) are the values of the estimate that decide; None
    where its basis has no such boundary.
    """

    look: int
    seeds: int
    state: str
    seen: Look | None
    support: Bounds | None
    refute: Bounds | None


def has_path(claim: ClaimResult) -> bool:
    """Whether a claim has interim analyses to show: not where one was fixed beforehand."""
    return claim.looks is not None and claim.looks.design != "fixed" and bool(claim.looks.made)


def rows(claim: ClaimResult) -> list[LookRow]:
    """A row per planned interim analysis of a claim that has some."""
    looks = _looks(claim)
    out = []
    for i, seeds in enumerate(looks.planned):
        seen = looks.made[i] if i < len(looks.made) else None
        support, refute = _boundary(claim, seen) if seen else (None, None)
        out.append(LookRow(i + 1, seeds, _state(claim, i), seen, support, refute))
    return out


def _looks(claim: ClaimResult) -> LooksMade:
    assert claim.looks is not None, "a claim with interim analyses"
    return claim.looks


def _state(claim: ClaimResult, i: int) -> str:
    looks = _looks(claim)
    if i < len(looks.made):
        return DECIDED if looks.decided == i + 1 else OPEN
    if looks.decided:
        return "not needed"
    return "pending" if claim.verdict == Verdict.INCONCLUSIVE else "not made"


def _boundary(claim: ClaimResult, seen: Look) -> tuple[Bounds | None, Bounds | None]:
    low, estimate, high = seen.low, seen.estimate, seen.high
    ratio = claim.compare == "ratio"
    if low is None or estimate is None or high is None or claim.region is None:
        return None, None
    if not BASES[claim.basis].has_boundary or (ratio and low <= 0):
        return None, None
    start, end = claim.region

    def moved(threshold: float, of: float) -> float | None:
        """A threshold, moved as far as the estimate lies from this end of the interval."""
        if math.isinf(threshold):
            return None
        return threshold * estimate / of if ratio else threshold + estimate - of

    return (moved(start, low), moved(end, high)), (moved(start, high), moved(end, low))


def describe(claim: ClaimResult, row: LookRow) -> str:
    """An interim analysis as a screen reader says it."""
    planned = len(_looks(claim).planned)
    name = f"interim analysis {row.look} of {planned}" if planned > 1 else "one analysis"
    words = claim.verdict if row.state == DECIDED else row.state
    seen = "" if row.seen is None else f", {estimate(claim, row)} {interval(claim, row)}"
    return f"{name}, {row.seeds} seeds{seen}, {words}"


def estimate(claim: ClaimResult, row: LookRow) -> str:
    return text(row.seen.estimate if row.seen else None, claim.digits, sign=claim.compare == "difference")


def interval(claim: ClaimResult, row: LookRow) -> str:
    """The interval of an interim analysis, or the one bound that it has."""
    low, high = (row.seen.low, row.seen.high) if row.seen else (None, None)
    sign = claim.compare == "difference"
    if (low is None) == (high is None):
        return span(low, high, claim.digits, sign=sign)
    bound = text(low if high is None else high, claim.digits, sign=sign)
    return f"at least {bound}" if high is None else f"at most {bound}"


def level(row: LookRow) -> str:
    return NONE if row.seen is None or row.seen.level is None else f"{percent(row.seen.level)}%"


def boundary(claim: ClaimResult, row: LookRow, side: str) -> str:
    """The values of the estimate that would have been enough to support the claim, or to refute it."""
    ends = row.support if side == "support" else row.refute
    if ends is None or ends == (None, None):
        return NONE
    low, high = ends
    sign = claim.compare == "difference"
    first, last = (text(end, claim.digits, sign=sign) for end in ends)
    if side == "refute":
        return " or ".join(
            words for end, words in ((low, f"at most {first}"), (high, f"at least {last}")) if end is not None
        )
    if low is None or high is None:
        return f"below {last}" if low is None else f"above {first}"
    return f"between {first} and {last}" if low < high else "never: the interval is too wide"


HEADER = (
    "interim analysis", "seeds", "estimate", "interval", "level", "SUPPORTED if", "REFUTED if", "outcome",
)  # fmt: skip


def cells(claim: ClaimResult, row: LookRow) -> list[str]:
    """A row under HEADER, as text."""
    sides = [boundary(claim, row, side) for side in ("support", "refute")]
    words = claim.verdict if row.state == DECIDED else row.state
    seen = estimate(claim, row), interval(claim, row), level(row)
    return [str(row.look), str(row.seeds), *seen, *sides, words]


def title(claim: ClaimResult) -> str:
    """What the numbers of a path are: a difference or a ratio of which metric, in which unit."""
    joint = "/" if claim.compare == "ratio" else MINUS
    unit = f" ({claim.unit})" if claim.unit else ""
    return f"{claim.label}{unit}: {claim.arm} {joint} {claim.against}"
