"""A grid section as tables and sentences, shared by page, Markdown and terminal."""

from attnlab.report.grid_schema import GridAxis, GridSection
from attnlab.report.number_format import NONE, TIMES, append_unit, format_bounds, format_number

EXPLORATORY_NOTE = (
    "EXPLORATORY: no claim was preregistered, so the grid tests no hypothesis. It suggests which comparison "
    "to preregister and to repeat with fresh seeds."
)


def name_grid(grid: GridSection) -> str:
    """The names of all axes: heads × position."""
    return f" {TIMES} ".join(axis.name for axis in grid.axes)


def list_cell_headings(grid: GridSection) -> list[str]:
    """The headings of the table with a row per cell: its axes first."""
    mean = f"mean {append_unit(grid.label, grid.unit)}"
    return [*(axis.name for axis in grid.axes), mean, "standard deviation", "seeds", "note"]


def build_cell_rows(grid: GridSection) -> list[list[str]]:
    """A row per cell as text: options, mean and standard deviation over seeds, seeds, and notes."""
    rows = []
    for cell in grid.cells:
        notes = ["best"] if cell.arm == grid.best else []
        if cell.state in ("UNTRAINED", "NOT COMPARABLE"):
            notes.append(f"{cell.state}: {cell.reason}")
        elif cell.reason:
            notes.append(cell.reason)
        values = [format_number(cell.mean, grid.digits), format_number(cell.sd, grid.digits)]
        rows.append([*cell.options, *values, f"{cell.n} of {cell.planned}", "; ".join(notes)])
    return rows


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


def list_reading_notes(grid: GridSection) -> list[str]:
    """How to read the grid, a sentence or two each."""
    notes = []
    if len(grid.axes) > 1:
        notes.append(
            "A main effect averages an option over all other axes, with the same combinations and seeds for "
            "each option. If its range over the combinations includes both signs, the option helps in some "
            "combinations and hurts in others, and the average hides this."
        )
    if grid.best:
        notes.append("The best of several noisy means looks better than it is.")
    return notes


def build_effect_rows(grid: GridSection) -> list[list[str]]:
    """The main effects as text: axis, option, mean, difference to the first option, its range."""
    rows = []
    for axis in grid.axes:
        for i, effect in enumerate(axis.effects):
            difference = [NONE, NONE]
            if i:
                bounds = format_bounds(effect.low, effect.high, grid.digits)
                difference = [format_number(effect.difference, grid.digits, sign=True), bounds]
            rows.append([axis.name, effect.option, format_number(effect.mean, grid.digits), *difference])
    return rows


def explain_missing_effects(axis: GridAxis) -> str:
    """The sentence in place of an axis without main effects."""
    return f"No main effect of {axis.name}: {axis.reason}."


def format_terminal_grid(grid: GridSection) -> list[str]:
    """The grid as lines: its table and best cell."""
    table = [list_cell_headings(grid), *build_cell_rows(grid)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "    " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return [*lines, format_best_cell(grid)]
