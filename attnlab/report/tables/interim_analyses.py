"""Interim analyses of a claim as rows: their results, and the boundary that the estimate had to cross.

The interval of an interim analysis decides. Equivalently, the estimate has a boundary: the threshold shifted
by the interval's half-width. Ranks and e-values have no boundary, only their intervals.
"""

import math
from dataclasses import dataclass

from attnlab.report import section
from attnlab.report.number_format import (
    NONE,
    format_bound,
    format_bounds,
    format_difference,
    format_number,
    format_percent,
)
from attnlab.report.schema import ClaimResult, InterimAnalyses, InterimAnalysis, Verdict
from attnlab.report.section import Cell, Column
from attnlab.report.verdicts.evidence_bases import BASES

STATE_DECIDED = "decided"
STATE_INCONCLUSIVE = "inconclusive"
EstimateBounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class InterimAnalysisRow:
    """A planned interim analysis: number, seeds, state in words, and result; None before it ran.

    `support_bounds` (from, to) and `refute_bounds` (at most, at least) are the estimates that decide; None if
    the basis has no such boundary.
    """

    number: int
    seeds: int
    state: str
    analysis: InterimAnalysis | None
    support_bounds: EstimateBounds | None
    refute_bounds: EstimateBounds | None


def has_interim_results(claim: ClaimResult) -> bool:
    """Whether a claim has interim results to show; a fixed design has none."""
    return (
        claim.interim_analyses is not None
        and claim.interim_analyses.design != "fixed"
        and bool(claim.interim_analyses.completed)
    )


def build_analysis_rows(claim: ClaimResult) -> list[InterimAnalysisRow]:
    """Build a row per planned interim analysis of a claim that has some."""
    analyses = _get_interim_analyses(claim)
    rows = []
    for i, seeds in enumerate(analyses.planned):
        analysis = analyses.completed[i] if i < len(analyses.completed) else None
        support, refute = _compute_boundary(claim, analysis) if analysis else (None, None)
        rows.append(InterimAnalysisRow(i + 1, seeds, _describe_state(claim, i), analysis, support, refute))
    return rows


def _get_interim_analyses(claim: ClaimResult) -> InterimAnalyses:
    assert claim.interim_analyses is not None, "a claim with interim analyses"
    return claim.interim_analyses


def _describe_state(claim: ClaimResult, index: int) -> str:
    analyses = _get_interim_analyses(claim)
    if index < len(analyses.completed):
        return STATE_DECIDED if analyses.decided_at == index + 1 else STATE_INCONCLUSIVE
    if analyses.decided_at:
        return "not needed"
    return "pending" if claim.verdict == Verdict.INCONCLUSIVE else "not run"


def _compute_boundary(
    claim: ClaimResult, analysis: InterimAnalysis
) -> tuple[EstimateBounds | None, EstimateBounds | None]:
    low, estimate, high = analysis.low, analysis.estimate, analysis.high
    is_ratio = claim.compare == "ratio"
    if low is None or estimate is None or high is None or claim.region is None:
        return None, None
    if not BASES[claim.basis].has_boundary or (is_ratio and low <= 0):
        return None, None
    start, end = claim.region

    def shift_threshold(threshold: float, bound: float) -> float | None:
        """Shift a threshold by the distance of the estimate from `bound`."""
        if math.isinf(threshold):
            return None
        return threshold * estimate / bound if is_ratio else threshold + estimate - bound

    return (shift_threshold(start, low), shift_threshold(end, high)), (
        shift_threshold(start, high),
        shift_threshold(end, low),
    )


def describe_analysis(claim: ClaimResult, row: InterimAnalysisRow) -> str:
    """Describe an interim analysis for a screen reader."""
    planned = len(_get_interim_analyses(claim).planned)
    name = f"interim analysis {row.number} of {planned}" if planned > 1 else "single analysis"
    outcome = claim.verdict if row.state == STATE_DECIDED else row.state
    result = (
        ""
        if row.analysis is None
        else f", {format_analysis_estimate(claim, row)} {format_analysis_interval(claim, row)}"
    )
    return f"{name}, {row.seeds} seeds{result}, {outcome}"


def format_analysis_estimate(claim: ClaimResult, row: InterimAnalysisRow) -> str:
    return format_number(
        row.analysis.estimate if row.analysis else None, claim.digits, sign=claim.compare == "difference"
    )


def format_analysis_interval(claim: ClaimResult, row: InterimAnalysisRow) -> str:
    """Format the interval of an interim analysis, or its only bound."""
    low, high = (row.analysis.low, row.analysis.high) if row.analysis else (None, None)
    sign = claim.compare == "difference"
    if (low is None) == (high is None):
        return format_bounds(low, high, claim.digits, sign=sign)
    bound = format_bound(low if high is None else high, claim.digits, sign=sign)
    return f"at least {bound}" if high is None else f"at most {bound}"


def format_boundary(claim: ClaimResult, row: InterimAnalysisRow, side: str) -> str:
    """Format the estimates that would have sufficed to support or to refute the claim."""
    ends = row.support_bounds if side == "support" else row.refute_bounds
    if ends is None or ends == (None, None):
        return NONE
    low, high = ends
    sign = claim.compare == "difference"
    first, last = (format_number(end, claim.digits, sign=sign) for end in ends)
    if side == "refute":
        return " or ".join(
            text for end, text in ((low, f"at most {first}"), (high, f"at least {last}")) if end is not None
        )
    if low is None or high is None:
        return f"below {last}" if low is None else f"above {first}"
    return f"between {first} and {last}" if low < high else "no estimate: the interval is too wide"


COLUMNS = (
    Column("interim analysis", "number"), Column("seeds"), Column("estimate"),
    Column("interval", ends=("low", "high")), Column("confidence level", "level"),
    Column("SUPPORTED if", "supported_if"), Column("REFUTED if", "refuted_if"), Column("outcome"),
)  # fmt: skip


def build_analysis_cells(claim: ClaimResult, row: InterimAnalysisRow) -> list[Cell]:
    """Build a row of COLUMNS."""
    estimate, low, high, level = (
        getattr(row.analysis, key, None) for key in ("estimate", "low", "high", "level")
    )
    return [
        section.number(row.number),
        section.number(row.seeds),
        Cell(format_analysis_estimate(claim, row), estimate, kind="number"),
        Cell(format_analysis_interval(claim, row), None, low, high, kind="number"),
        Cell(NONE if level is None else f"{format_percent(level)}%", level, kind="number"),
        *(Cell(format_boundary(claim, row, side)) for side in ("support", "refute")),
        Cell(claim.verdict if row.state == STATE_DECIDED else row.state),
    ]


def format_analyses_title(claim: ClaimResult) -> str:
    """Format the quantity of the rows: a difference or ratio, with its metric and unit."""
    is_ratio = claim.compare == "ratio"
    quantity = f"{claim.arm} / {claim.against}" if is_ratio else format_difference(claim.arm, claim.against)
    unit = f" ({claim.unit})" if claim.unit else ""
    return f"{claim.label}{unit}: {quantity}"
