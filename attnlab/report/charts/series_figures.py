"""Figures along an axis: named specs for curves, positions, lengths and head scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnlab.report.charts import series_charts
from attnlab.report.charts.comparison_figures import Figure, build_styles, list_seed_values
from attnlab.report.number_format import MINUS, append_unit, format_number, get_chance_by_arm
from attnlab.report.schema import CurveLine, CurvesReport, HeadsReport, MeanCurve, Report

MAX_STRIP_POINTS = 400  # in one strip plot, before it becomes a summary


def build_curve_figures(report: CurvesReport) -> list[Figure]:
    """The curves as measured, and the paired differences beside them."""
    figures: list[Figure] = []
    table = report.curves
    if not table:
        return figures
    base = report.experiment.baseline
    margin = report.experiment.margin
    primary = table.name == report.experiment.metric
    for lines, mean_lines, title, zero in (
        (table.lines, table.means, table.name, False),
        (table.differences, table.mean_differences, f"{table.name}: arm {MINUS} {base}", True),
    ):
        if lines:
            ends = [
                {**p, "description": f"{p['arm']}: ends at {format_number(p['value'], 4)}"}
                for p in _build_curve_points(mean_lines)
            ]
            spec = series_charts.build_curve_chart(
                _build_curve_points(lines),
                ends,
                build_styles(report),
                y_title=title,
                has_zero_line=zero,
                margin=margin if zero and primary else None,
            )
            line_ends = "; ".join(p["description"] for p in series_charts.select_last_rows(ends))
            figures.append(
                Figure(f"curve{len(figures)}", spec, f"{title} over training tokens, every seed. {line_ends}")
            )
    return figures


def build_position_figures(report: CurvesReport) -> list[Figure]:
    """Loss by position in the context."""
    table = report.positions
    if not table:
        return []
    points = [
        {
            "arm": line.arm,
            "position": position,
            "value": value,
            "description": f"{line.arm}: ends at {format_number(value, 4)}",
        }
        for line in table.means
        for position, value in zip(line.position, line.values, strict=True)
    ]
    line_ends = "; ".join(p["description"] for p in series_charts.select_last_rows(points))
    spec = series_charts.build_position_chart(
        points, build_styles(report), y_title=append_unit(table.name, table.unit)
    )
    return [Figure("positions", spec, f"{table.name} by position in the context. {line_ends}")]


def _build_curve_points(lines: Sequence[CurveLine | MeanCurve]) -> list[dict[str, Any]]:
    return [
        {"arm": line.arm, "seed": getattr(line, "seed", None), "tokens": t, "value": v}
        for line in lines
        for t, v in zip(line.tokens, line.values, strict=True)
    ]


def build_length_figures(report: Report) -> list[Figure]:
    """A chart for every table whose conditions lie on an axis."""
    figures: list[Figure] = []
    for table in report.length:
        for group in dict.fromkeys(row.series for row in table.rows):
            rows = [r for r in table.rows if r.series == group and r.x]  # 0 is not on a logarithmic axis
            if len(rows) < 2:
                continue
            points = [
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
                {
                    "arm": c.arm,
                    "x": r.x,
                    "value": value,
                    "description": f"{c.arm} at {r.condition}, seed {seed}: {format_number(value, 4)}",
                }
                for r in rows
                for c in r.cells
                for seed, value in list_seed_values(report, c.arm, f"{table.key}/{r.condition}").items()
            ]
            title = f"{table.title}{': ' + group if group else ''}"
            spec = series_charts.build_condition_chart(
                points, seeds, build_styles(report), title=title, x_title=table.axis
            )
            figures.append(
                Figure(
                    f"length{len(figures)}",
                    spec,
                    title + ". " + "; ".join(str(p["description"]) for p in points),
                )
            )
    return figures


def build_strip_figures(report: HeadsReport) -> list[Figure]:
    """A strip plot per head score; beyond `MAX_STRIP_POINTS` heads it shows ranges and quartiles."""
    figures = []
    for i, score in enumerate(report.heads.scores if report.heads else ()):
        points = [
            {"arm": run.arm, "layer": layer, "value": value}
            for run in report.runs
            for layer, row in enumerate(run.head_scores.get(score.name, ()))
            for value in row
            if value is not None
        ]
        is_crowded = len(points) > MAX_STRIP_POINTS
        label = f"{score.label} of every head, by layer and arm. " + "; ".join(
            f"{c.arm}: mean {format_number(c.mean, 2)}" for c in score.counts
        )
        if points:
            chart_points = _summarize_points(points) if is_crowded else points
            levels = sorted({level for level in get_chance_by_arm(score).values() if level is not None})
            spec = series_charts.build_strip_chart(
                chart_points, levels, build_styles(report), title=score.label, is_summary=is_crowded
            )
            figures.append(Figure(f"strip{i}", spec, label))
    return figures


def _summarize_points(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
