"""A grid section as tables and sentences, shared by page, Markdown and terminal."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from attnlab.report.grid_schema import GridAxis, GridCell, GridSection, VarianceShare
from attnlab.report.number_format import NONE, TIMES, append_unit, format_bounds, format_number

# cividis, from the worst value to the best; page.css has the same colors
PALETTE = (
    (0x00, 0x22, 0x4E), (0x12, 0x35, 0x70), (0x3B, 0x49, 0x6C), (0x57, 0x5D, 0x6D), (0x70, 0x71, 0x73),
    (0x8A, 0x86, 0x78), (0xA5, 0x9C, 0x74), (0xC3, 0xB3, 0x69), (0xE1, 0xCC, 0x55), (0xFE, 0xE8, 0x38),
)  # fmt: skip
EXPLORATORY_NOTE = (
    "EXPLORATORY: no claim was preregistered, so the grid tests no hypothesis. It suggests which comparison "
    "to preregister and to repeat with fresh seeds."
)
SOURCE_LABELS = {
    "higher": "interactions of three or more axes",
    "seed": "seeds (shared by all cells)",
    "noise": "seed noise",
}


@dataclass(frozen=True)
class CellView:
    """A cell as text: its value, the line below it, its colors, and the number of its footnote."""

    value: str
    detail: str
    state: str
    style: str
    is_best: bool
    footnote: int | None


@dataclass(frozen=True)
class GridPanel:
    """One table: a row per option of an axis, with its cells."""

    title: str
    columns: list[str]
    rows: list[tuple[str, list[CellView]]]


@dataclass(frozen=True)
class GridLayout:
    """All tables of a grid, with footnotes that explain cells and the lines of the other two tables."""

    panels: list[GridPanel]
    footnotes: list[str]


def build_grid_layout(grid: GridSection) -> GridLayout:
    """Lay out the cells: a table per combination of the panel axes, averaged over the averaged axes."""
    keys = [axis.key for axis in grid.axes]
    by_options = {tuple(cell.options): cell for cell in grid.cells}
    shown = [cell.mean for cell in grid.cells if cell.state == "TRAINED" and cell.mean is not None]
    footnotes: list[str] = []
    panels = []
    column_options = grid.get_axis(grid.columns).options if grid.columns else [""]
    for panel in itertools.product(*(grid.get_axis(key).options for key in grid.panels)):
        rows = []
        for row_option in grid.get_axis(grid.rows).options:
            views = []
            for column_option in column_options:
                fixed = dict(zip(grid.panels, panel, strict=True)) | {grid.rows: row_option}
                fixed |= {grid.columns: column_option} if grid.columns else {}
                choices = [[fixed[key]] if key in fixed else grid.get_axis(key).options for key in keys]
                members = [by_options[options] for options in itertools.product(*choices)]
                views.append(_build_view(grid, members, shown, footnotes))
            rows.append((row_option, views))
        title = ", ".join(
            f"{grid.get_axis(key).name}={option}" for key, option in zip(grid.panels, panel, strict=True)
        )
        columns = column_options if grid.columns else [append_unit(grid.label, grid.unit)]
        panels.append(GridPanel(title, columns, rows))
    return GridLayout(panels, footnotes)


def _build_view(
    grid: GridSection, members: Sequence[GridCell], shown: Sequence[float], footnotes: list[str]
) -> CellView:
    """Build the view of one cell, or of several cells that are averaged; add its footnotes."""
    trained = [cell for cell in members if cell.state == "TRAINED"]
    counted = trained or [cell for cell in members if cell.mean is not None]
    value = fmean(cell.mean for cell in counted if cell.mean is not None) if counted else None
    state = "TRAINED" if trained else counted[0].state if counted else "NO RESULT"
    footnote = None
    if reason := _format_reasons(members):
        if reason not in footnotes:
            footnotes.append(reason)
        footnote = footnotes.index(reason) + 1
    if len(members) > 1:
        detail = f"{len(counted)} of {len(members)} cells"
    elif members[0].n:
        cell = members[0]
        detail = f"{cell.n} of {cell.planned} seeds" if cell.n < cell.planned else _count(cell.n, "seed")
    else:
        detail = members[0].reason.partition(":")[0]
    return CellView(
        value=format_number(value, grid.digits),
        detail=detail,
        state=state if state in ("UNTRAINED", "NOT COMPARABLE") else "",
        style=_choose_colors(value, shown, grid.direction)
        if state == "TRAINED" and value is not None
        else "",
        is_best=len(members) == 1 and members[0].arm == grid.best,
        footnote=footnote,
    )


def _format_reasons(members: Sequence[GridCell]) -> str:
    """Format why a cell is empty, unjudged or incomplete; empty without a reason."""
    reasons: dict[str, list[str]] = {}
    for cell in members:
        is_judged = cell.state in ("TRAINED", "NO RESULT")
        if cell.reason:
            reasons.setdefault(cell.reason if is_judged else f"{cell.state}: {cell.reason}", []).append(
                cell.arm
            )
    if len(members) == 1:
        return next(iter(reasons), "")
    return "; ".join(f"{', '.join(arms)}: {reason}" for reason, arms in reasons.items())


def _choose_colors(value: float, shown: Sequence[float], direction: str) -> str:
    """CSS of a cell: a color from the worst to the best value, with the more readable of black and white."""
    low, high = min(shown), max(shown)
    place = (value - low) / (high - low) if high > low else 0.5
    place = min(max(place if direction == "higher" else 1 - place, 0.0), 1.0) * (len(PALETTE) - 1)
    lower = min(int(place), len(PALETTE) - 2)
    color = [
        round(one + (other - one) * (place - lower))
        for one, other in zip(PALETTE[lower], PALETTE[lower + 1], strict=True)
    ]
    luminance = compute_luminance(color)
    text = "#000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#fff"
    return f"background:#{color[0]:02x}{color[1]:02x}{color[2]:02x};color:{text}"


def compute_luminance(color: Sequence[int]) -> float:
    """The relative luminance of an sRGB color (WCAG 2)."""
    channels = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in color)
    ]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def name_grid(grid: GridSection) -> str:
    """The names of all axes: heads × position."""
    return f" {TIMES} ".join(axis.name for axis in grid.axes)


def name_corner(grid: GridSection) -> str:
    """The names of the axes of the rows and the columns: `heads \\ position`."""
    return " \\ ".join(grid.get_axis(key).name for key in (grid.rows, grid.columns) if key)


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
    seeds = _count(cell.n, "seed")
    return f"The {kind} {grid.label} of {n} trained cells is {value}: {cell.arm} ({seeds}){note}."


def format_shares(grid: GridSection) -> str:
    """Format all shares of variance in a sentence, or why there are none."""
    if grid.variance is None:
        return f"No shares of variance: {grid.variance_note}."
    shares = ", ".join(
        f"{label_share(grid, row)} {_format_percent(row.share)}" for row in grid.variance.shares
    )
    return f"Shares of the variance of {grid.label}, {describe_scope(grid)}: {shares}."


def describe_scope(grid: GridSection) -> str:
    """Describe the part of the grid that the shares are computed over."""
    if grid.variance is None:
        return ""
    seeds = len(grid.variance.seeds)
    note = f" ({grid.variance.note})" if grid.variance.note else ""
    return f"over {grid.variance.cells} cells with {_count(seeds, 'seed')}{note}"


def label_share(grid: GridSection, share: VarianceShare) -> str:
    """Format the source of variance: an axis, an interaction (heads × position) or seeds."""
    names = [grid.get_axis(key).name for key in share.axes]
    return f" {TIMES} ".join(names) or SOURCE_LABELS[share.kind]


def list_reading_notes(grid: GridSection) -> list[str]:
    """How to read the grid, a sentence or two each."""
    notes = []
    if grid.averaged:
        names = " and ".join(grid.get_axis(key).name for key in grid.averaged)
        notes.append(f"Each cell is the mean over all options of {names}.")
    if len(grid.axes) > 1:
        notes.append(
            "A main effect averages an option over all other axes, with the same combinations and seeds for "
            "each option. If its range over the combinations includes both signs, the option helps in some "
            "combinations and hurts in others, and the average hides this."
        )
    if grid.variance is not None:
        sources = "axis" if len(grid.axes) == 1 else "axis or interaction"
        notes.append(
            f"A share is the part of the variance of all runs that belongs to an {sources} (eta squared of a "
            "balanced analysis of variance); all shares add to 100%. Shares depend on the options: more "
            "similar options give an axis a smaller share."
        )
        if grid.variance.shares[0].share_by_noise is None:
            notes.append("With one seed, noise cannot be separated from effects: every share includes noise.")
        else:
            notes.append(
                "Seed noise alone gives every source some share, shown beside it. A share that is not "
                "clearly larger than this is no sign of an effect."
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


def build_share_rows(grid: GridSection) -> list[list[str]]:
    """The shares of variance as text: source, share, and the share expected from noise alone."""
    return [
        [label_share(grid, row), _format_percent(row.share), _format_percent(row.share_by_noise)]
        for row in (grid.variance.shares if grid.variance else ())
    ]


def explain_missing_effects(axis: GridAxis) -> str:
    """The sentence in place of an axis without main effects."""
    return f"No main effect of {axis.name}: {axis.reason}."


def format_terminal_grid(grid: GridSection) -> list[str]:
    """The grid as lines: its table or tables, best cell, and shares of variance."""
    lines = []
    layout = build_grid_layout(grid)
    for panel in layout.panels:
        lines.append(f"  {append_unit(grid.label, grid.unit)}{f', {panel.title}' if panel.title else ''}")
        table = [[name_corner(grid), *panel.columns]]
        for option, views in panel.rows:
            table.append([option, *(_format_terminal_cell(view) for view in views)])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines += [
            "    " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
    lines += [f"  [{number}] {note}" for number, note in enumerate(layout.footnotes, 1)]
    return [*lines, format_best_cell(grid), format_shares(grid)]


def _format_terminal_cell(view: CellView) -> str:
    mark = "*" if view.is_best else ""
    footnote = f"[{view.footnote}]" if view.footnote else ""
    return " ".join(filter(None, [f"{view.value}{mark}", view.state, footnote]))


def _format_percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}%"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
