"""Interim analyses of a claim: the interval and boundary at each, and the analysis that decided.

One small picture per claim.
"""

import math
from collections.abc import Sequence
from functools import partial

from attnlab.report.charts.svg import BAND, INK, MUTED, PAPER
from attnlab.report.charts.vega_layers import (
    VERDICT_STYLES,
    Spec,
    build_chart,
    build_layer,
    build_quantitative_channel,
    build_reference_line,
    build_style_channels,
    compute_domain,
)
from attnlab.report.schema import ClaimResult, InterimAnalysis, Verdict
from attnlab.report.section import Chart
from attnlab.report.tables import interim_analyses
from attnlab.report.tables.interim_analyses import InterimAnalysisRow
from attnlab.report.tables.wording import describe_claim

HEIGHT = 210
LETTER_WIDTH = 8.5
AXIS_WIDTH = 60  # pixels of a letter of a verdict, and of the axis on the left
MAX_OVERSHOOT = 0.7  # visible part of wider intervals, as a fraction of the height of the last analysis


def build_interim_chart(claim: ClaimResult, number: int) -> Chart | None:
    """The chart of the claim with this number; None where no interim analysis has an estimate."""
    completed = claim.interim_analyses.completed if claim.interim_analyses else ()
    if not interim_analyses.has_interim_results(claim) or all(row.estimate is None for row in completed):
        return None
    rows = interim_analyses.build_analysis_rows(claim)
    steps = "; ".join(interim_analyses.describe_analysis(claim, row) for row in rows)
    label = f"Interim analyses of the claim {claim.says}. {describe_claim(claim)} {steps}."
    return Chart(f"looks{number}", label, partial(_draw_analyses, claim, rows))


def _draw_analyses(claim: ClaimResult, rows: Sequence[InterimAnalysisRow], *, width: int) -> Spec:
    start, end_of_region = claim.region or (-math.inf, math.inf)
    ends = [end for end in (start, end_of_region) if math.isfinite(end)]
    completed = [(row, row.analysis) for row in rows if row.analysis and row.analysis.estimate is not None]
    domain = low, high = _compute_domain(ends, [analysis for _, analysis in completed])
    last = rows[-1].seeds
    counts = {"values": [row.seeds for row in rows], "format": "d", "grid": False, "tickSize": 7}
    marks = [_build_mark(claim, row, analysis, domain) for row, analysis in completed]
    word_share = LETTER_WIDTH * (len(claim.verdict) + 1) / (width - AXIS_WIDTH)
    end = max([last * 1.08, *(mark["seeds"] / (1 - word_share) for mark in marks if mark["decided"])])
    x = build_quantitative_channel("seeds", [0, end], "paired seeds", **counts)
    y = build_quantitative_channel("estimate", [low, high], tickCount=5)
    decided, inconclusive = (
        [mark for mark in marks if mark["decided"] is is_decided] for is_decided in (True, False)
    )
    pending: list[Spec] = [
        {"seeds": row.seeds, "state": row.state}
        for row in rows
        if row.state not in (interim_analyses.STATE_DECIDED, interim_analyses.STATE_INCONCLUSIVE)
    ]
    bounds = _build_boundary_points(rows)
    region = {"from": max(start, low), "to": min(end_of_region, high)}
    code = build_style_channels("verdict", VERDICT_STYLES)
    clip = {"clip": True}
    dashed = {"color": MUTED, "strokeDash": [5, 3], "strokeWidth": 1.3, **clip}
    tick = {"orient": "horizontal", "color": MUTED, "size": 14, **clip}
    empty = {"filled": False, "size": 35, "opacity": 1, "color": MUTED}
    baseline = {"datum": low}
    dot = {"filled": True, "size": 90, "opacity": 1}
    label = {"dx": 10, "dy": -9, "align": "left", "fontWeight": "bold"}
    # intervals that extend beyond the picture
    clipped = [
        {"seeds": mark["seeds"], "verdict": mark["verdict"], **tip}
        for mark in marks
        for tip in mark.pop("cut")
    ]
    tip = {"field": "shape", "type": "nominal", "scale": None}
    layers: list[Spec | None] = [
        build_layer("rect", {"color": BAND, **clip}, [region], y={**y, "field": "from"}, y2="to"),
        *(build_reference_line("y", end, color=INK, strokeDash=[], strokeWidth=1) for end in ends),
        build_reference_line("y", 0.0) if low < 0 < high and 0.0 not in ends else None,
        build_layer("line", dashed, bounds, x=x, y={**y, "field": "at"}, detail="side"),
        build_layer("tick", tick, bounds, x=x, y={**y, "field": "at"}),
        build_layer("line", {"color": MUTED, "strokeWidth": 1}, x=x, y=y),
        build_layer("rule", {"strokeWidth": 3}, x=x, y={**y, "field": "low"}, y2="high", color=code["color"]),
        build_layer("point", {"filled": True, "size": 45, "opacity": 1}, clipped, x=x, y={**y, "field": "at"},
              color=code["color"], shape=tip),
        build_layer("point", {**dot, "fill": PAPER, "strokeWidth": 2}, inconclusive, x=x, y=y,
              description="description", stroke=code["color"], shape=code["shape"]),
        build_layer("point", {**dot, "size": 130, "stroke": PAPER}, decided, x=x, y=y,
              description="description", **code),
        build_layer("text", label, decided, x=x, y=y, text="verdict"),
        build_layer("point", empty, pending, x=x, y=baseline),
        build_layer("text", {"dy": -10, "color": MUTED, "align": "right"}, pending[-1:], x=x, y=baseline,
              text="state"),
    ]  # fmt: skip
    return build_chart(
        width,
        HEIGHT,
        layers,
        marks,
        title={"text": interim_analyses.format_analyses_title(claim), "fontWeight": "normal"},
    )


def _build_mark(
    claim: ClaimResult, row: InterimAnalysisRow, analysis: InterimAnalysis, domain: tuple[float, float]
) -> Spec:
    decided, (low, high) = row.state == interim_analyses.STATE_DECIDED, domain
    return {
        "seeds": row.seeds,
        "estimate": analysis.estimate,
        "low": max(_replace_none(analysis.low, low), low),
        "high": min(_replace_none(analysis.high, high), high),
        "decided": decided,
        "verdict": str(claim.verdict if decided else Verdict.INCONCLUSIVE),
        "description": interim_analyses.describe_analysis(claim, row),
        "cut": [
            {"at": edge, "shape": shape}
            for end, edge, shape in (
                (analysis.low, low, "triangle-down"),
                (analysis.high, high, "triangle-up"),
            )
            if end is None or not low <= end <= high
        ],
    }


def _build_boundary_points(rows: Sequence[InterimAnalysisRow]) -> list[Spec]:
    """The points of every boundary; a support boundary that no estimate could have reached has none."""
    points = list[Spec]()
    for row in rows:
        for side, ends in (("support", row.support_bounds), ("refute", row.refute_bounds)):
            first, last = ends or (None, None)
            if side == "support" and first is not None and last is not None and first >= last:
                continue
            points += [
                {"seeds": row.seeds, "at": end, "side": f"{side}{i}"}
                for i, end in enumerate((first, last))
                if end is not None
            ]
    return points


def _compute_domain(ends: Sequence[float], analyses: Sequence[InterimAnalysis]) -> tuple[float, float]:
    """A domain with thresholds, estimates and the whole last interval; of wider intervals as much again."""
    low, high = compute_domain(
        [*ends, *(analysis.estimate for analysis in analyses), analyses[-1].low, analyses[-1].high], 0.1
    )
    bounds = [end for analysis in analyses for end in (analysis.low, analysis.high) if end is not None]
    overshoot = MAX_OVERSHOOT * (high - low)
    padding = 0.15 * (high - low)  # room for the text at the bottom
    return max(min([low, *bounds]), low - overshoot) - padding, min(max([high, *bounds]), high + overshoot)


def _replace_none(value: float | None, default: float) -> float:
    return default if value is None else value
