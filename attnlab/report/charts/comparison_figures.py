"""Charts that compare arms: intervals of claims, forest plots and paired slopes.

`description` in a row of data is the text for screen readers.
"""

import math
from collections.abc import Sequence
from functools import partial

from attnlab.report.charts.svg import BAND, INK, PAPER
from attnlab.report.charts.vega_layers import (
    VERDICT_STYLES,
    Spec,
    Styles,
    assign_styles,
    build_chart,
    build_layer,
    build_margin_band,
    build_nominal_channel,
    build_quantitative_channel,
    build_reference_line,
    build_style_channels,
    compute_domain,
    count_ticks,
    place_text,
)
from attnlab.report.number_format import MINUS, TIMES, append_unit, format_difference, format_number
from attnlab.report.schema import ClaimResult, Effect, HeadsReport, Report
from attnlab.report.section import Chart
from attnlab.report.tables.arm_columns import MANY_ARMS
from attnlab.report.tables.wording import format_effect, format_interval, format_level

FEW_SEEDS = 3  # up to here a chart shows every seed beside the mean


def build_styles(report: HeadsReport) -> dict[str, tuple[str, str]]:
    """Color and shape of every arm of a report."""
    return assign_styles(report.experiment.arms, report.experiment.baseline)


def build_seed_points(
    report: HeadsReport, arm: str, metric: str, x: float, place: str = "", digits: int = 4
) -> list[Spec]:
    """A point per finished run of an arm with so few that a chart shows each; else none."""
    values = {
        run.seed: float(value)
        for run in report.runs
        if run.arm == arm and run.is_done and (value := run.metrics.get(metric)) is not None
    }
    return [
        {
            "arm": arm,
            "x": x,
            "value": value,
            "description": f"{arm}{place}, seed {seed}: {format_number(value, digits)}",
        }
        for seed, value in values.items()
        if len(values) <= FEW_SEEDS
    ]


def describe_rows(rows: Sequence[Spec]) -> str:
    """The descriptions of rows, in one line."""
    return "; ".join(str(row["description"]) for row in rows)


def build_verdict_charts(report: Report, max_claims: int | None = None) -> list[Chart]:
    """One chart per kind of axis (a metric's differences, ratios) for the claims that have an interval.

    Args:
        max_claims: only the first claims of the report; None means all.
    """
    groups: dict[tuple[str, str, str], list[Spec]] = {}
    for number, claim in enumerate(report.verdict.claims[:max_claims], 1):
        if not claim.decision.exact and claim.decision.estimate is not None:
            groups.setdefault((claim.metric, claim.compare, claim.unit), []).append(_build_row(claim, number))
    charts = list[Chart]()
    for (metric, compare, unit), rows in groups.items():
        is_ratio = compare == "ratio"
        title = append_unit(f"{'ratio' if is_ratio else 'difference'} in {metric}", unit)
        charts.append(
            Chart(
                f"verdict{len(charts) + 1 if charts else ''}",
                f"Interval of each claim against the region where it holds, {title}. {describe_rows(rows)}",
                partial(_draw_intervals, rows, title, float(is_ratio)),
                has_picture=not charts,
            )
        )
    return charts


def _build_row(claim: ClaimResult, number: int) -> Spec:
    decision = claim.decision
    is_ratio = claim.compare == "ratio"
    comparison = (
        f" {TIMES} ".join(claim.interaction)
        if claim.interaction
        else f"{claim.arm} / {claim.against}"
        if is_ratio
        else format_difference(claim.arm, claim.against)
    )
    text = format_number(decision.estimate, claim.digits, sign=not is_ratio)
    if decision.level is not None and (decision.low is not None or decision.high is not None):
        ends = format_interval(decision.low, decision.high, claim.digits, sign=not is_ratio)
        text += f"  {format_level(decision.level)} {ends}"
    start, end = (None if math.isinf(edge) else edge for edge in claim.region or (math.inf, math.inf))
    return {
        "label": f"{number}  {comparison}",
        "mean": decision.estimate,
        "low": decision.low,
        "high": decision.high,
        "start": start,
        "end": end,
        "verdict": str(claim.verdict),
        "text": text,
        "description": f"{claim.says}: {claim.verdict}, {comparison} {text}",
    }


def _draw_intervals(rows: Sequence[Spec], title: str, center: float, *, width: int) -> Spec:
    """A row per claim: the interval that decided it, over the shaded region in which the claim holds.

    An end that is None is at the edge of the chart.
    """
    keys = ("mean", "low", "high", "start", "end")
    domain = compute_domain([*(row[key] for row in rows for key in keys), center], pad=0.12)
    low, high = domain
    edges = {"start": low, "end": high, "low": low, "high": high}
    chart_rows = []
    for row in rows:
        ends = {key: edge if row[key] is None else row[key] for key, edge in edges.items()}
        chart_rows.append({**row, "place": place_text(row["text"], row["mean"], domain, width - 120), **ends})
    y = build_nominal_channel("label", labelLimit=150)
    x = build_quantitative_channel("mean", domain, title, grid=False, tickCount=count_ticks(width))
    code = build_style_channels("verdict", VERDICT_STYLES)
    dot = {"filled": True, "size": 130, "opacity": 1, "stroke": PAPER, "strokeWidth": 1}
    region = {"color": BAND, "height": {"band": 0.86}}
    layers: list[Spec | None] = [
        build_layer("bar", region, x={**x, "field": "start"}, x2="end", y=y),
        build_reference_line("x", center),
        build_layer("rule", {"strokeWidth": 3}, x={**x, "field": "low"}, x2="high", y=y, color=code["color"]),
        build_layer("point", dot, x=x, y=y, description="description", **code),
        build_layer("text", {"dy": -14, "color": INK}, x={**x, "field": "place"}, y=y, text="text"),
    ]
    return build_chart(width, 48 + 52 * len(rows), layers, chart_rows)


def build_effect_charts(report: Report) -> list[Chart]:
    """A forest plot per metric."""
    charts = list[Chart]()
    for metric in dict.fromkeys(row.metric for row in report.effects):
        rows = [row for row in report.effects if row.metric == metric and row.mean is not None]
        if not rows:
            continue
        rows = [row.clip((-1.0, 1.0)) if row.is_proportion else row for row in rows]
        if len(rows) > MANY_ARMS:
            rows.sort(key=lambda row: row.mean or 0.0, reverse=report.experiment.direction == "higher")
        means: list[Spec] = [
            {
                "arm": row.arm,
                "mean": row.mean,
                "low": row.low,
                "high": row.high,
                "description": f"{row.arm}: {format_effect(row)}, {row.verdict}",
            }
            for row in rows
        ]
        charts.append(
            Chart(
                f"effects{len(charts) + 1 if charts else ''}",
                f"Effects on {metric}. {describe_rows(means)}",
                partial(_draw_forest, rows, means, build_styles(report)),
                has_picture=rows[0].primary,
            )
        )
    return charts


def _draw_forest(effects: Sequence[Effect], means: list[Spec], styles: Styles, *, width: int) -> Spec:
    """A row per arm: the mean with its interval, a thin ring per seed below it, the margin behind all."""
    seeds = [
        {
            "arm": row.arm,
            "value": pair.difference,
            "description": f"{row.arm}, seed {pair.seed}: {format_number(pair.difference, 4, sign=True)}",
        }
        for row in effects
        for pair in row.pairs
    ]
    margin = effects[0].margin
    ends = [row[key] for row in means for key in ("mean", "low", "high")] + [seed["value"] for seed in seeds]
    x = build_quantitative_channel(
        "mean",
        compute_domain([*ends, 0.0, *([margin, -margin] if margin else [])]),
        append_unit(f"{effects[0].metric}: arm {MINUS} {effects[0].against}", effects[0].unit),
        tickCount=count_ticks(width),
    )
    y = build_nominal_channel("arm")
    code = build_style_channels("arm", styles)
    color = code["color"]
    ring = {"size": 34, "strokeWidth": 1.1, "yOffset": 11, "opacity": 0.85, "filled": False}
    rule = {"strokeWidth": 2.5, "yOffset": -4, "y2Offset": -4}
    dot = {"size": 110, "filled": True, "opacity": 1, "yOffset": -4}
    layers = [
        build_margin_band("x", margin) if margin else None,
        build_reference_line("x", 0),
        build_layer(
            "point", ring, seeds, x={**x, "field": "value"}, y=y, color=color, description="description"
        ),
        build_layer("rule", rule, x={**x, "field": "low"}, x2="high", y=y, color=color),
        build_layer("point", dot, x=x, y=y, description="description", **code),
    ]
    return build_chart(width, 48 + (50 if len(means) <= MANY_ARMS else 28) * len(means), layers, means)


def build_slope_charts(report: Report) -> list[Chart]:
    """Paired slopes of the primary metric, one panel per arm, on one scale."""
    rows = [row for row in report.effects if row.primary and row.pairs]
    domain = compute_domain([v for row in rows for p in row.pairs for v in (p.value, p.against)])
    styles = build_styles(report)
    return [
        Chart(
            f"slope{i}",
            f"{row.metric} of each seed, from {row.against} to {row.arm}",
            partial(_draw_slopes, row, styles[row.arm], domain),
            is_fixed=True,
        )
        for i, row in enumerate(rows)
    ]


def _draw_slopes(effect: Effect, style: tuple[str, str], domain: list[float]) -> Spec:
    """One line per seed from the baseline to the arm: parallel lines mean that pairing by seed helps."""
    points: list[Spec] = [
        {
            "arm": arm,
            "seed": pair.seed,
            "value": value,
            "description": f"{arm}, seed {pair.seed}: {format_number(value, effect.digits + 1)}",
        }
        for pair in effect.pairs
        for arm, value in ((effect.against, pair.against), (effect.arm, pair.value))
    ]
    scale = {"domain": [effect.against, effect.arm], "padding": 0.35}
    x = {**build_nominal_channel("arm", labelAngle=0), "scale": scale}
    y = build_quantitative_channel("value", domain, append_unit(effect.metric, effect.unit))
    color, shape = style
    dot = {"size": 30, "filled": True, "opacity": 1, "color": color, "shape": shape}
    layers: list[Spec | None] = [
        build_layer("line", {"strokeWidth": 1.2, "opacity": 0.8, "color": color}, x=x, y=y, detail="seed"),
        build_layer("point", dot, x=x, y=y, description="description"),
    ]
    return build_chart(240, 250, layers, points)
