"""The pictures of a ladder: an effect by compute, with its line, band and prediction; losses by compute."""

import math

from attnlab.report.charts.figures import Figure
from attnlab.report.charts.marks import (
    VERMILION,
    Spec,
    band,
    chart,
    coded,
    layer,
    line_at,
    number,
    span,
    style,
)
from attnlab.report.charts.svg import INK, MUTED, PAPER
from attnlab.report.ladder import Comparison, LadderReport
from attnlab.report.tables.format import MINUS, text, with_unit
from attnlab.report.tables.format import span as interval

AIR = 1.9  # a factor of compute, beyond what is drawn at either end


def effects(ladder: LadderReport, width: int, suffix: str = "") -> list[Figure]:
    """A figure for every two arms of which something is asked."""
    return [
        Figure(f"effect{i}{suffix}", _effect(ladder, comparison, width), _effect_said(ladder, comparison))
        for i, comparison in enumerate(ladder.comparisons)
        if any(effect.mean is not None for effect in comparison.effects)
    ]


def _effect_said(ladder: LadderReport, comparison: Comparison) -> str:
    rungs = "; ".join(
        f"{effect.rung}: {text(effect.mean, 3, sign=True)} {interval(effect.low, effect.high, 3)}"
        for effect in comparison.effects
    )
    about = f"{ladder.metric}, {comparison.arm} {MINUS} {comparison.against}"
    return f"Difference of {about}, by training compute. {rungs}. {comparison.sentence}"


def _effect(ladder: LadderReport, comparison: Comparison, width: int) -> Spec:
    known = [effect for effect in comparison.effects if effect.mean is not None]
    seeds = [{"flops": effect.flops, "value": value} for effect in known for value in effect.differences]
    line = [point for point in comparison.line if point.low is not None]
    drawn = [dict(point) for point in line]
    ahead = comparison.ahead
    far = [] if ahead is None else [{**dict(ahead), "said": comparison.ahead_said}]
    ends = [
        end for row in (*known, *line, *([ahead] if ahead else ())) for end in (row.mean, row.low, row.high)
    ]
    margin = ladder.margin
    y_title = with_unit(f"{comparison.arm} {MINUS} {comparison.against}", ladder.unit)
    y = number("mean", span([*ends, *(seed["value"] for seed in seeds), margin, -margin, 0.0]), y_title)
    x = _compute("flops", [row.flops or 0.0 for row in (*known, *([ahead] if ahead else ()))])
    rows = [{**dict(effect), "said": f"{effect.rung}: {text(effect.mean, 3, sign=True)}"} for effect in known]
    ring = {"size": 26, "filled": False, "strokeWidth": 1, "color": MUTED, "opacity": 0.8}
    layers: list[Spec | None] = [
        band("y", margin),
        line_at("y", 0),
        layer("area", {"opacity": 0.18, "color": INK}, drawn, x=x, y={**y, "field": "low"}, y2="high")
        if line
        else None,
        layer("line", {"strokeWidth": 1.5, "color": INK}, drawn, x=x, y=y) if line else None,
        layer("point", ring, seeds, x=x, y={**y, "field": "value"}),
        layer("rule", {"strokeWidth": 2.5, "color": INK}, x=x, y={**y, "field": "low"}, y2="high"),
        layer(
            "point", {"filled": True, "size": 90, "opacity": 1, "color": INK}, x=x, y=y, description="said"
        ),
        layer("text", {"dy": -12, "dx": 6, "align": "left"}, x=x, y={**y, "field": "high"}, text="rung"),
        *_ahead(far, x, y),
    ]
    return chart(width, 300, layers, rows)


def _ahead(far: list[Spec], x: Spec, y: Spec) -> list[Spec]:
    if not far:
        return []
    open_ = {"size": 90, "filled": True, "fill": PAPER, "stroke": VERMILION, "strokeWidth": 2, "opacity": 1}
    dashed = {"strokeWidth": 2, "strokeDash": [4, 3], "color": VERMILION}
    return [
        layer("rule", dashed, far, x=x, y={**y, "field": "low"}, y2="high"),
        layer("point", {**open_, "shape": "diamond"}, far, x=x, y=y, description="said"),
    ]


def losses(ladder: LadderReport, width: int, suffix: str = "") -> list[Figure]:
    """The loss of every arm by compute; none where no rung has a result."""
    points = [
        {**dict(point), "arm": row.arm, "said": f"{row.arm} at {point.rung}: {text(point.mean, 3)}"}
        for row in ladder.losses
        for point in row.points
        if point.mean is not None
    ]
    if not points:
        return []
    code = coded("arm", style(ladder.arms, ladder.baseline))
    x = _compute("flops", [point["flops"] for point in points])
    title = with_unit(ladder.metric, ladder.unit)
    y = number("mean", span([point[key] for point in points for key in ("mean", "low", "high")]), title)
    layers: list[Spec | None] = [
        layer("line", {"strokeWidth": 1.6}, x=x, y=y, color=code["color"]),
        layer("rule", {"strokeWidth": 1.6}, x=x, y={**y, "field": "low"}, y2="high", color=code["color"]),
        layer("point", {"filled": True, "size": 60, "opacity": 1}, x=x, y=y, description="said", **code),
    ]
    label = f"{title} by training compute. " + "; ".join(point["said"] for point in points)
    return [Figure(f"losses{suffix}", chart(width, 300, layers, points), label)]


def _compute(field: str, flops: list[float]) -> Spec:
    """Training compute as a logarithmic axis, marked at each power of ten."""
    low = min(flops) / AIR
    high = max(flops) * AIR
    decades = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    x = number(field, [low, high], "training FLOPs of a run", values=decades, format=".0e", grid=False)
    x["scale"]["type"] = "log"
    return x
