"""Charts along an axis: learning curves, loss by position or condition, head scores by layer."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from attnlab.report.charts.comparison_figures import build_seed_points, build_styles, describe_rows
from attnlab.report.charts.svg import INK
from attnlab.report.charts.vega_layers import (
    Spec,
    Styles,
    build_chart,
    build_layer,
    build_margin_band,
    build_quantitative_channel,
    build_reference_line,
    build_seed_layer,
    build_style_channels,
    compute_domain,
)
from attnlab.report.number_format import MINUS, append_unit, format_number, get_chance_by_arm
from attnlab.report.schema import CurveLine, CurvesReport, HeadsReport, MeanCurve, Report
from attnlab.report.section import Chart

SIZE = (376, 280)
POSITIONS_CAPTION = (
    "Mean loss over seeds at each position of the context, at the end of training. A falling line shows that "
    "the arm uses more context; a flat line shows that it does not."
)
MAX_STRIP_POINTS = 400  # in one strip plot, before it becomes a summary


def select_last_rows(rows: Sequence[Spec]) -> list[Spec]:
    """The last row of each arm: the end of its line."""
    return list({row["arm"]: row for row in rows}.values())


def build_curve_charts(report: CurvesReport) -> list[Chart]:
    """The curves as measured, the paired differences beside them, and the loss by position in the context."""
    charts = list[Chart]()
    styles = build_styles(report)
    if table := report.curves:
        base, experiment = table.baseline, report.experiment
        margin = experiment.margin if table.name == experiment.metric else None
        every = f"every {format_number(table.every)}th point is drawn, and curves.parquet has all"
        thinned = f"; {every}" if table.every > 1 else ""
        for lines, mean_lines, title, caption, is_difference in (
            (
                table.lines,
                table.means,
                table.name,
                f"Thin: single seeds. Thick: their mean. The curves are not smoothed{thinned}.",
                False,
            ),
            (
                table.differences,
                table.mean_differences,
                f"{table.name}: arm {MINUS} {base}",
                f"The difference to {base} with the same seed.",
                True,
            ),
        ):
            if not lines:
                continue
            means = _build_curve_points(mean_lines)
            draw = partial(
                _draw_curves, _build_curve_points(lines), means, styles, y_title=title,
                has_zero_line=is_difference, margin=margin if is_difference else None,
            )  # fmt: skip
            label = f"{title} over training tokens, every seed. {describe_rows(select_last_rows(means))}"
            charts.append(Chart(f"curve{len(charts)}", label, draw, caption, is_fixed=True))
    if positions := report.positions:
        means = [
            {
                "arm": line.arm,
                "position": position,
                "value": value,
                "description": f"{line.arm}: ends at {format_number(value, 4)}",
            }
            for line in positions.means
            for position, value in zip(line.position, line.values, strict=True)
        ]
        draw = partial(_draw_positions, means, styles, append_unit(positions.name, positions.unit))
        line_ends = describe_rows(select_last_rows(means))
        label = f"{positions.name} by position in the context. {line_ends}"
        charts.append(Chart("positions", label, draw, POSITIONS_CAPTION, is_fixed=True))
    return charts


def _build_curve_points(lines: Sequence[CurveLine | MeanCurve]) -> list[Spec]:
    return [
        {
            "arm": line.arm,
            "seed": getattr(line, "seed", None),
            "tokens": t,
            "value": v,
            "description": f"{line.arm}: ends at {format_number(v, 4)}",
        }
        for line in lines
        for t, v in zip(line.tokens, line.values, strict=True)
    ]


def _draw_curves(
    lines: list[Spec],
    means: list[Spec],
    styles: Styles,
    *,
    y_title: str,
    has_zero_line: bool,
    margin: float | None,
) -> Spec:
    """Every seed as a thin line, the mean as a thick one, over training tokens. Nothing is smoothed."""
    y_values = [p["value"] for p in lines] + [0.0] * has_zero_line + ([margin, -margin] if margin else [])
    end = max((p["tokens"] for p in lines), default=1.0)
    x = build_quantitative_channel(
        "tokens", [0.0, end], "training tokens", format="~s", tickCount=5, grid=False
    )
    y = build_quantitative_channel("value", compute_domain(y_values, 0.05), y_title)
    code = build_style_channels("arm", styles)
    thin = {"clip": True, "strokeWidth": 0.8, "opacity": 0.5}
    thick = {"clip": True, "strokeWidth": 2.4}
    dot = {"filled": True, "size": 70, "opacity": 1}
    layers = [
        build_margin_band("y", margin) if margin else None,
        build_reference_line("y", 0, color=INK) if has_zero_line else None,
        build_layer("line", thin, x=x, y=y, color=code["color"], detail="seed"),
        build_layer("line", thick, means, x=x, y=y, color=code["color"]),
        build_layer("point", dot, select_last_rows(means), x=x, y=y, description="description", **code),
    ]
    return build_chart(*SIZE, layers, lines)


def _draw_positions(means: list[Spec], styles: Styles, y_title: str) -> Spec:
    """The mean of each arm at every position of the context."""
    x = build_quantitative_channel(
        "position",
        compute_domain([p["position"] for p in means], 0.02),
        "position in the context",
        grid=False,
    )
    y = build_quantitative_channel("value", compute_domain([p["value"] for p in means], 0.05), y_title)
    code = build_style_channels("arm", styles)
    dot = {"filled": True, "size": 60, "opacity": 1}
    layers: list[Spec | None] = [
        build_layer("line", {"strokeWidth": 1.8}, x=x, y=y, color=code["color"]),
        build_layer("point", dot, select_last_rows(means), x=x, y=y, description="description", **code),
    ]
    return build_chart(*SIZE, layers, means)


def build_length_charts(report: Report) -> list[Chart]:
    """A chart for every table whose conditions lie on an axis."""
    charts = list[Chart]()
    for table in report.length:
        for group in dict.fromkeys(row.series for row in table.rows):
            rows = [r for r in table.rows if r.series == group and r.x]  # 0 is not on a logarithmic axis
            if len(rows) < 2:
                continue
            points: list[Spec] = [
                {
                    "arm": c.arm,
                    "x": r.x,
                    "mean": c.mean,
                    "low": c.low,
                    "high": c.high,
                    "description": f"{c.arm} at {r.condition}: {format_number(c.mean, 4)}",
                }
                for r in rows
                for cell in r.cells
                for c in [cell.clip((0.0, 1.0)) if table.is_proportion else cell]
            ]
            seeds = [
                seed
                for r in rows
                for c in r.cells
                for seed in build_seed_points(
                    report, c.arm, f"{table.key}/{r.condition}", r.x or 0.0, f" at {r.condition}"
                )
            ]
            title = f"{table.title}{': ' + group if group else ''}"
            draw = partial(
                _draw_conditions, points, seeds, build_styles(report), title=title, x_title=table.axis
            )
            charts.append(
                Chart(f"length{len(charts)}", f"{title}. {describe_rows(points)}", draw, is_fixed=True)
            )
    return charts


def _draw_conditions(
    points: list[Spec], seeds: list[Spec], styles: Styles, *, title: str, x_title: str
) -> Spec:
    """A line per arm over a numeric condition (a multiple of the length, a distance), with its intervals.

    `seeds` are drawn as rings.
    """
    x_values = sorted({p["x"] for p in points})
    x = build_quantitative_channel(
        "x", [x_values[0] * 0.93, x_values[-1] * 1.08], x_title, values=x_values, format="~g", grid=False
    )
    x["scale"]["type"] = "log"
    ends = [p[key] for p in points for key in ("mean", "low", "high")]
    y = build_quantitative_channel("mean", compute_domain([*ends, *(seed["value"] for seed in seeds)]))
    code = build_style_channels("arm", styles)
    color = code["color"]
    layers: list[Spec | None] = [
        build_layer("line", {"strokeWidth": 1.6}, x=x, y=y, color=color),
        build_layer("rule", {"strokeWidth": 1.6}, x=x, y={**y, "field": "low"}, y2="high", color=color),
        build_layer(
            "point", {"filled": True, "size": 60, "opacity": 1}, x=x, y=y, description="description", **code
        ),
        build_seed_layer(seeds, x=x, y=y, color=color),
    ]
    return build_chart(*SIZE, layers, points, title=title)


def build_strip_charts(report: HeadsReport) -> list[Chart]:
    """A strip plot per head score; beyond `MAX_STRIP_POINTS` heads it shows ranges and quartiles."""
    charts = []
    for i, score in enumerate(report.heads.scores if report.heads else ()):
        points = [
            {"arm": run.arm, "layer": layer, "value": value}
            for run in report.runs
            for layer, row in enumerate(run.head_scores.get(score.name, ()))
            for value in row
            if value is not None
        ]
        if not points:
            continue
        means = "; ".join(f"{c.arm}: mean {format_number(c.mean, 2)}" for c in score.counts)
        levels = sorted({level for level in get_chance_by_arm(score).values() if level is not None})
        draw = partial(_draw_strip, points, levels, build_styles(report), score.label)
        label = f"{score.label} of every head, by layer and arm. {means}"
        charts.append(Chart(f"strip{i}", label, draw, is_fixed=True))
    return charts


def _draw_strip(points: list[Spec], chance: list[float], styles: Styles, title: str) -> Spec:
    """Head scores by layer: a mark per head, arms side by side, the chance level of each text dashed.

    In a summary a point is the median, a thick line the quartiles, a thin one the range.
    """
    is_summary = len(points) > MAX_STRIP_POINTS
    points = _summarize_points(points) if is_summary else points
    keys = ("low", "high") if is_summary else ("value",)
    y = build_quantitative_channel(
        "value", compute_domain([*(p[key] for p in points for key in keys), 0.0, *chance], 0.06)
    )
    present = {arm: style for arm, style in styles.items() if any(p["arm"] == arm for p in points)}
    code = build_style_channels("arm", present)
    side = {"field": "arm", "type": "nominal", "sort": list(present)}
    x = {"field": "layer", "type": "ordinal", "axis": {"title": "layer", "labelAngle": 0}}
    channels = {"x": x, "xOffset": side, "color": code["color"]}
    dot = {"size": 26, "strokeWidth": 1.1, "opacity": 0.75, "filled": is_summary}
    ranges = (("low", "high", 1), ("q1", "q3", 4)) if is_summary else ()
    layers: list[Spec | None] = [
        *(
            build_layer("rule", {"strokeWidth": stroke}, **channels, y={**y, "field": low}, y2=high)
            for low, high, stroke in ranges
        ),
        build_layer("point", dot, **channels, y=y, shape=code["shape"]),
        *(build_reference_line("y", level, color=INK, strokeDash=[4, 3]) for level in chance),
    ]
    columns = len(present) * len({p["layer"] for p in points})
    return build_chart(276 if columns <= 28 else 576, 180, layers, points, title=title)


def _summarize_points(points: list[Spec]) -> list[Spec]:
    groups: dict[tuple[str, int], list[float]] = {}
    for p in points:
        groups.setdefault((p["arm"], p["layer"]), []).append(p["value"])
    names = ("low", "q1", "value", "q3", "high")
    return [
        {
            "arm": arm,
            "layer": layer,
            **dict(zip(names, map(float, np.quantile(v, [0, 0.25, 0.5, 0.75, 1])), strict=True)),
        }
        for (arm, layer), v in groups.items()
    ]
