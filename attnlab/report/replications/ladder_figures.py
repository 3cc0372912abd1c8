"""Charts of a ladder: an effect by compute, with its line, band and prediction; losses by compute."""

import math
from functools import partial
from typing import Any

from attnlab.report.charts.svg import INK, MUTED, PAPER
from attnlab.report.charts.vega_layers import (
    VERMILION,
    Spec,
    assign_styles,
    build_chart,
    build_layer,
    build_margin_band,
    build_quantitative_channel,
    build_reference_line,
    build_style_channels,
    compute_domain,
)
from attnlab.report.ladder_schema import Comparison, LadderReport, LossPoint, SizeEffect
from attnlab.report.number_format import append_unit, format_bounds, format_difference, format_number
from attnlab.report.section import Chart

AXIS_PADDING = 1.9  # a factor of compute, beyond the data at either end
EFFECT_CAPTION = (
    "Filled: mean at a {step} with its 95% interval. Rings: single seeds. {line} Shaded: the margin."
)
SIZE_LINE = (
    "Line and gray band: the fit over all seeds. Open diamond, dashed: extrapolation to ten times the "
    "compute of the largest size."
)
BUDGET_LINE = "Line and gray band: the mean of the seeds' lines and its 95% interval."


def build_effect_charts(ladder: LadderReport) -> dict[int, Chart]:
    """A chart for every compared pair of arms that has a result, by its index."""
    ladder = _convert_to_tokens(ladder)
    step, line = ("budget", BUDGET_LINE) if ladder.ladder.budgets else ("ladder size", SIZE_LINE)
    return {
        i: Chart(
            f"effect{i}",
            _describe_effect(ladder, comparison),
            partial(_build_effect_spec, ladder, comparison),
            EFFECT_CAPTION.format(step=step, line=line),
        )
        for i, comparison in enumerate(ladder.comparisons)
        if any(effect.mean is not None for effect in comparison.effects)
    }


def _describe_effect(ladder: LadderReport, comparison: Comparison) -> str:
    sizes = "; ".join(
        f"{effect.size}: {format_number(effect.mean, 3, sign=True)} "
        f"{format_bounds(effect.low, effect.high, 3)}"
        for effect in comparison.effects
    )
    comparison_text = f"{ladder.metric}, {format_difference(comparison.arm, comparison.against)}"
    return f"Difference of {comparison_text}, by {_name_axis(ladder)}. {sizes}. {comparison.sentence}"


def _build_effect_spec(ladder: LadderReport, comparison: Comparison, *, width: int) -> Spec:
    effects = [effect for effect in comparison.effects if effect.mean is not None]
    seeds = [{"flops": effect.flops, "value": value} for effect in effects for value in effect.differences]
    line = [point for point in comparison.line if point.low is not None]
    band = [dict(point) for point in line]
    extrapolation = comparison.extrapolation
    extrapolation_points = (
        []
        if extrapolation is None
        else [{**dict(extrapolation), "description": comparison.extrapolation_sentence}]
    )
    ends = [
        end
        for row in (*effects, *line, *([extrapolation] if extrapolation else ()))
        for end in (row.mean, row.low, row.high)
    ]
    margin = ladder.margin
    y_title = append_unit(format_difference(comparison.arm, comparison.against), ladder.unit)
    y = build_quantitative_channel(
        "mean", compute_domain([*ends, *(seed["value"] for seed in seeds), margin, -margin, 0.0]), y_title
    )
    x = _build_compute_axis(
        ladder, [row.flops or 0.0 for row in (*effects, *([extrapolation] if extrapolation else ()))]
    )
    rows = [
        {**dict(effect), "description": f"{effect.size}: {format_number(effect.mean, 3, sign=True)}"}
        for effect in effects
    ]
    ring = {"size": 26, "filled": False, "strokeWidth": 1, "color": MUTED, "opacity": 0.8}
    layers: list[Spec | None] = [
        build_margin_band("y", margin),
        build_reference_line("y", 0),
        build_layer("area", {"opacity": 0.18, "color": INK}, band, x=x, y={**y, "field": "low"}, y2="high")
        if line
        else None,
        build_layer("line", {"strokeWidth": 1.5, "color": INK}, band, x=x, y=y) if line else None,
        build_layer("point", ring, seeds, x=x, y={**y, "field": "value"}),
        build_layer("rule", {"strokeWidth": 2.5, "color": INK}, x=x, y={**y, "field": "low"}, y2="high"),
        build_layer(
            "point",
            {"filled": True, "size": 90, "opacity": 1, "color": INK},
            x=x,
            y=y,
            description="description",
        ),
        build_layer(
            "text", {"dy": -12, "dx": 6, "align": "left"}, x=x, y={**y, "field": "high"}, text="size"
        ),
        *_build_extrapolation_layers(extrapolation_points, x, y),
    ]
    return build_chart(width, 300, layers, rows)


def _build_extrapolation_layers(points: list[Spec], x: Spec, y: Spec) -> list[Spec]:
    if not points:
        return []
    hollow = {"size": 90, "filled": True, "fill": PAPER, "stroke": VERMILION, "strokeWidth": 2, "opacity": 1}
    dashed = {"strokeWidth": 2, "strokeDash": [4, 3], "color": VERMILION}
    return [
        build_layer("rule", dashed, points, x=x, y={**y, "field": "low"}, y2="high"),
        build_layer("point", {**hollow, "shape": "diamond"}, points, x=x, y=y, description="description"),
    ]


def build_loss_charts(ladder: LadderReport) -> list[Chart]:
    """The loss of every arm by compute or tokens; none where no size has a result."""
    ladder = _convert_to_tokens(ladder)
    points = [
        {
            **dict(point),
            "arm": row.arm,
            "description": f"{row.arm} at {point.size}: {format_number(point.mean, 3)}",
        }
        for row in ladder.losses
        for point in row.points
        if point.mean is not None
    ]
    if not points:
        return []
    ends = "; ".join(point["description"] for point in points)
    label = f"{append_unit(ladder.metric, ladder.unit)} by {_name_axis(ladder)}. {ends}"
    caption = "Mean over seeds with its 95% interval."
    return [Chart("losses", label, partial(_build_loss_spec, ladder, points), caption)]


def _build_loss_spec(ladder: LadderReport, points: list[Spec], *, width: int) -> Spec:
    code = build_style_channels("arm", assign_styles(ladder.arms, ladder.baseline))
    x = _build_compute_axis(ladder, [point["flops"] for point in points])
    domain = compute_domain([point[key] for point in points for key in ("mean", "low", "high")])
    y = build_quantitative_channel("mean", domain, append_unit(ladder.metric, ladder.unit))
    layers: list[Spec | None] = [
        build_layer("line", {"strokeWidth": 1.6}, x=x, y=y, color=code["color"]),
        build_layer(
            "rule", {"strokeWidth": 1.6}, x=x, y={**y, "field": "low"}, y2="high", color=code["color"]
        ),
        build_layer(
            "point", {"filled": True, "size": 60, "opacity": 1}, x=x, y=y, description="description", **code
        ),
    ]
    return build_chart(width, 300, layers, points)


def _convert_to_tokens(ladder: LadderReport) -> LadderReport:
    """Replace the training FLOPs of a ladder of budgets, along its axis, by the tokens of each budget."""
    first = ladder.sizes[0]
    if not (ladder.ladder.budgets and first.tokens and first.flops):
        return ladder
    line_factor = first.tokens / first.flops  # the line starts at the baseline's first budget
    tokens_by_budget = {size.name: size.tokens for size in ladder.sizes}

    def convert(row: SizeEffect | LossPoint) -> Any:
        return row.model_copy(update={"flops": tokens_by_budget[row.size]})

    comparisons = [
        row.model_copy(
            update={
                "effects": [*map(convert, row.effects)],
                "line": [point.model_copy(update={"flops": point.flops * line_factor}) for point in row.line],
            }
        )
        for row in ladder.comparisons
    ]
    losses = [row.model_copy(update={"points": [*map(convert, row.points)]}) for row in ladder.losses]
    return ladder.model_copy(update={"comparisons": comparisons, "losses": losses})


def _name_axis(ladder: LadderReport) -> str:
    return "training tokens" if ladder.ladder.budgets else "training compute"


def _build_compute_axis(ladder: LadderReport, flops: list[float]) -> Spec:
    """Training compute or tokens as a logarithmic axis, marked at each power of ten or at each budget."""
    low = min(flops) / AXIS_PADDING
    high = max(flops) * AXIS_PADDING
    if ladder.ladder.budgets:
        values, title, number_format = sorted(set(flops)), "training tokens of a run", ".3~s"
    else:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        values, title, number_format = [10.0**power for power in powers], "training FLOPs of a run", ".0e"
    x = build_quantitative_channel(
        "flops", [low, high], title, values=values, format=number_format, grid=False
    )
    x["scale"]["type"] = "log"
    return x
