"""Curves: the metric over training tokens, and the loss by position in the context."""

from collections.abc import Sequence
from typing import Final

from attnlab.report import section
from attnlab.report.charts.series_figures import build_curve_charts
from attnlab.report.number_format import format_number
from attnlab.report.schema import CurvesReport
from attnlab.report.section import Block, ChartRow, Column, Fold, Key, Section, Table, Text
from attnlab.report.sections import PageContext
from attnlab.report.tables.arm_columns import MANY_ARMS

PLACE: Final = 70
POSITIONS_NOTE = (
    "Last panel: mean loss over seeds at each position of the context, at the end of training. A falling line "
    "shows that the arm uses more context; a flat line shows that it does not."
)


def build(report: CurvesReport, context: PageContext) -> Section:
    """Build the section of curves."""
    curves, positions = report.curves, report.positions
    charts = build_curve_charts(report)
    blocks: list[Block] = []
    if curves:
        differences = f"Second panel: the difference to {curves.baseline} with the same seed."
        thinned = f"; every {format_number(curves.every)}th point is drawn, and curves.parquet has all"
        blocks.append(
            Text(
                section.join_text(
                    "Thin: single seeds. Thick: their mean.",
                    differences if curves.differences else "",
                    f"The curves are not smoothed{thinned if curves.every > 1 else ''}.",
                ),
                style="lead",
            )
        )
    if not charts:
        return Section("curves", "Curves", [Text("No run has a curve.")])
    blocks += [] if len(report.experiment.arms) > MANY_ARMS else [Key()]
    blocks.append(ChartRow("Curves", charts))
    if positions:
        blocks.append(section.note(POSITIONS_NOTE))
    if curves:
        points = [(line.arm, line.tokens, line.values, line.seeds) for line in curves.means]
        table = _build_table("mean_curves", curves.name, Column("training tokens", "tokens"), points)
        blocks.append(Fold("Table of mean curves", [table], is_long=True))
    if positions:
        points = [(line.arm, line.position, line.values, line.seeds) for line in positions.means]
        table = _build_table("position_losses", positions.name, Column("position"), points)
        blocks.append(Fold("Table of loss by position", [table], is_long=True))
    return Section("curves", "Curves", blocks)


def _build_table(
    name: str, metric: str, axis: Column, lines: Sequence[tuple[str, list[int], list[float], int]]
) -> Table:
    """A row per point of a mean line (arm, its places on the axis, values, seeds)."""
    rows = [
        [section.arm(arm), section.number(place), section.number(value, 4), section.number(seeds)]
        for arm, places, values, seeds in lines
        for place, value in zip(places, values, strict=True)
    ]
    columns = [Column("arm"), axis, Column("mean"), Column("seeds")]
    return Table(name, f"Mean of {metric} over seeds.", columns, rows, is_long=True)
