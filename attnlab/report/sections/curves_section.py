"""Curves: the metric over training tokens, and the loss by position in the context."""

from collections.abc import Sequence
from typing import Final

from attnlab.report import section
from attnlab.report.charts.series_figures import build_curve_charts
from attnlab.report.schema import CurvesReport
from attnlab.report.section import Block, ChartRow, Column, Fold, Key, Section, Table, Text
from attnlab.report.sections import PageContext
from attnlab.report.tables.arm_columns import MANY_ARMS

PLACE: Final = 70


def build(report: CurvesReport, context: PageContext) -> Section:
    """Build the section of curves."""
    curves, positions = report.curves, report.positions
    charts = build_curve_charts(report)
    if not charts:
        return Section("curves", "Curves", [Text("No run has a curve.")], is_long=True)
    blocks: list[Block] = [] if len(report.experiment.arms) > MANY_ARMS else [Key()]
    blocks.append(ChartRow("Curves", charts))
    if curves:
        points = [(line.arm, line.tokens, line.values, line.seeds) for line in curves.means]
        table = _build_table("mean_curves", curves.name, Column("training tokens", "tokens"), points)
        blocks.append(Fold("Table of mean curves", [table], is_long=True))
    if positions:
        points = [(line.arm, line.position, line.values, line.seeds) for line in positions.means]
        table = _build_table("position_losses", positions.name, Column("position"), points)
        blocks.append(Fold("Table of loss by position", [table], is_long=True))
    return Section("curves", "Curves", blocks, is_long=True)


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
