"""The charts along an axis: named specs for curves, positions, lengths and head scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnlab.report.charts import series
from attnlab.report.charts.figures import Figure, styles
from attnlab.report.schema import CurveLine, HeadsReport, MeanCurve, Report
from attnlab.report.tables.format import MINUS, chances, text, with_unit

CROWD = 400  # points in one strip plot before it turns into a summary


def curves(report: Report) -> list[Figure]:
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
            ends = [{**p, "said": f"{p['arm']}: ends at {text(p['value'], 4)}"} for p in _points(mean_lines)]
            spec = series.curves(
                _points(lines),
                ends,
                styles(report),
                y_title=title,
                zero=zero,
                margin=margin if zero and primary else None,
            )
            ending = "; ".join(p["said"] for p in series.last_of_each(ends))
            figures.append(
                Figure(f"curve{len(figures)}", spec, f"{title} over training tokens, every seed. {ending}")
            )
    return figures


def positions(report: Report) -> list[Figure]:
    """Loss by position in the context."""
    table = report.positions
    if not table:
        return []
    points = [
        {
            "arm": line.arm,
            "position": at,
            "value": value,
            "said": f"{line.arm}: ends at {text(value, 4)}",
        }
        for line in table.means
        for at, value in zip(line.position, line.values, strict=True)
    ]
    said = "; ".join(p["said"] for p in series.last_of_each(points))
    spec = series.positions(points, styles(report), y_title=with_unit(table.name, table.unit))
    return [Figure("positions", spec, f"{table.name} by position in the context. {said}")]


def _points(lines: Sequence[CurveLine | MeanCurve]) -> list[dict[str, Any]]:
    return [
        {"arm": line.arm, "seed": getattr(line, "seed", None), "tokens": t, "value": v}
        for line in lines
        for t, v in zip(line.tokens, line.values, strict=True)
    ]


def lengths(report: Report) -> list[Figure]:
    """A chart for every table whose conditions can be placed on an axis."""
    figures: list[Figure] = []
    for table in report.length:
        for group in dict.fromkeys(row.series for row in table.rows):
            rows = [r for r in table.rows if r.series == group and r.x]  # 0 is on no such axis
            if len(rows) < 2:
                continue
            points = [
                {
                    "arm": c.arm,
                    "x": r.x,
                    "mean": c.mean,
                    "low": c.low,
                    "high": c.high,
                    "said": f"{c.arm} at {r.condition}: {text(c.mean, 4)}",
                }
                for r in rows
                for c in r.cells
            ]
            title = f"{table.title}{': ' + group if group else ''}"
            spec = series.by_condition(points, styles(report), title=title, x_title=table.axis)
            figures.append(
                Figure(
                    f"length{len(figures)}", spec, title + ". " + "; ".join(str(p["said"]) for p in points)
                )
            )
    return figures


def strips(report: HeadsReport) -> list[Figure]:
    """A strip plot per head score; too many heads become ranges and quartiles."""
    figures = []
    for i, score in enumerate(report.heads.scores if report.heads else ()):
        points = [
            {"arm": run.arm, "layer": layer, "value": value}
            for run in score.runs
            for layer, row in enumerate(run.values)
            for value in row
            if value is not None
        ]
        crowded = len(points) > CROWD
        label = f"{score.label} of every head, by layer and arm. " + "; ".join(
            f"{c.arm}: mean {text(c.mean, 2)}" for c in score.counts
        )
        if points:
            drawn = _summary(points) if crowded else points
            levels = sorted({level for level in chances(score).values() if level is not None})
            spec = series.strip(drawn, levels, styles(report), title=score.label, summary=crowded)
            figures.append(Figure(f"strip{i}", spec, label))
    return figures


def _summary(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
