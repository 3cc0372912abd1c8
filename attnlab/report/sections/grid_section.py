"""Grid: the cells of a sweep without an experiment, and the main effect of each axis."""

from typing import Final

from attnlab.report import section
from attnlab.report.grid_schema import GridSection
from attnlab.report.number_format import TIMES, append_unit, format_number
from attnlab.report.schema import Report
from attnlab.report.section import Block, Cell, Column, Heading, Items, Section, Table, Text
from attnlab.report.sections import PageContext
from attnlab.report.tables.wording import DELTA

PLACE: Final = -10  # before the answer, which a sweep without an experiment lacks
EXPLORATORY_NOTE = (
    "EXPLORATORY: no claim was preregistered, so the grid tests no hypothesis. It suggests which comparison "
    "to preregister and to repeat with fresh seeds."
)
MAIN_EFFECT_NOTE = (
    "A main effect averages an option over all other axes, with the same combinations and seeds for each "
    "option. If its range over the combinations includes both signs, the option helps in some combinations "
    "and hurts in others, and the average hides this."
)


def build(report: Report, context: PageContext) -> Section | None:
    """Build the section of a grid, if the report has one."""
    grid = report.grid
    if grid is None:
        return None
    notes = [MAIN_EFFECT_NOTE] if len(grid.axes) > 1 else []
    notes += ["The best of several noisy means looks better than it is."] if grid.best else []
    blocks: list[Block] = [
        Text(format_best_cell(grid), style="answer"),
        section.note(EXPLORATORY_NOTE),
        build_cells(grid),
        *([_build_effects(grid)] if any(axis.effects for axis in grid.axes) else []),
        *(
            section.note(f"No main effect of {axis.name}: {axis.reason}.")
            for axis in grid.axes
            if not axis.effects
        ),
    ]
    if notes:
        blocks += [Heading("How to read this grid"), Items(notes)]
    axes = f" {TIMES} ".join(axis.name for axis in grid.axes)
    return Section("grid", "Grid", blocks, heading=f"Grid: {axes}")


def format_best_cell(grid: GridSection) -> str:
    """Format the best cell with its mean, or why there is none."""
    kind = "highest" if grid.direction == "higher" else "lowest"
    cell = grid.find_cell(grid.best) if grid.best else None
    if cell is None:
        untrained = sum(cell.state == "UNTRAINED" for cell in grid.cells)
        counts = f" ({untrained} of {len(grid.cells)} cells UNTRAINED)" if untrained else ""
        return f"No cell is called best: {grid.best_note}{counts}."
    n = sum(cell.state == "TRAINED" for cell in grid.cells)
    note = f"; {grid.best_note}" if grid.best_note else ""
    value = format_number(cell.mean, grid.digits, unit=grid.unit)
    seeds = f"{cell.n} seed{'' if cell.n == 1 else 's'}"
    return f"The {kind} {grid.label} of {n} trained cells is {value}: {cell.arm} ({seeds}){note}."


def build_cells(grid: GridSection) -> Table:
    """A row per combination of options, with its notes."""
    columns = [
        *(Column(axis.name) for axis in grid.axes),
        Column(f"mean {grid.label}", "mean", grid.unit),
        Column("standard deviation", "sd"), Column("seeds", "n"), Column("", "planned"), Column("", "arm"),
        Column("", "state"), Column("note"),
    ]  # fmt: skip
    rows: list[list[Cell | str]] = []
    for cell in grid.cells:
        is_explained = cell.state in ("UNTRAINED", "NOT COMPARABLE")
        reason = f"{cell.state}: {cell.reason}" if is_explained else cell.reason
        notes = ["best" if cell.arm == grid.best else "", reason]
        rows.append(
            [
                *cell.options,
                section.number(cell.mean, grid.digits),
                section.number(cell.sd, grid.digits),
                section.number(cell.n, note=f"of {cell.planned}"),
                section.number(cell.planned),
                cell.arm,
                cell.state,
                Cell("; ".join(filter(None, notes)), kind="prose"),
            ]
        )
    better = "higher" if grid.direction == "higher" else "lower"
    caption = f"A row per combination of options, over its finished seeds; {better} is better."
    return Table("grid", caption, columns, rows)


def _build_effects(grid: GridSection) -> Table:
    """A row per option, with its difference to the first option of its axis."""
    columns = [
        Column("axis"), Column("option"), Column("mean"), Column(DELTA, "difference"),
        Column(f"range of {DELTA}", "range", ends=("lowest", "highest")),
    ]  # fmt: skip
    rows: list[list[Cell | str]] = []
    for axis in grid.axes:
        for i, effect in enumerate(axis.effects):
            difference, low, high = (effect.difference, effect.low, effect.high) if i else (None,) * 3
            rows.append(
                [
                    axis.name,
                    effect.option,
                    section.number(effect.mean, grid.digits),
                    section.number(difference, grid.digits, sign=True),
                    section.bounds(low, high, grid.digits),
                ]
            )
    caption = (
        f"Main effects on {append_unit(grid.label, grid.unit)}. {DELTA} is the option minus the first option "
        "of its axis, paired by combination and seed; the range is over the combinations of the other axes."
    )
    return Table("main_effects", caption, columns, rows, is_sortable=False)
