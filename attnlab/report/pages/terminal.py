"""Draw the summary of a report for a terminal: headline, answer, and its claims, or its arms without any."""

import textwrap
from collections.abc import Iterator

from attnlab.report.answer import answer_question
from attnlab.report.schema import Report
from attnlab.report.section import SIGNS, Cell, Table, Text, list_tables
from attnlab.report.sections import build_sections
from attnlab.report.tables.headline import build_headline

WIDTH = 80  # columns of a terminal
MIN_WIDTH = 30  # of a cell whose row is wrapped


def format_terminal_lines(report: Report) -> Iterator[str]:
    """Yield the lines of a report's summary, the headline first."""
    context = f" ({report.replication.name})" if report.replication and not report.corpora else ""
    question = report.experiment.question or report.experiment.name
    yield from wrap_text(f"{build_headline(report)}{context}: {question}")
    yield from wrap_text(answer_question(report))
    tables = list_tables(build_sections(report))
    names = ["grid"] if report.grid else ["claims"] if report.verdict.claims else ["arms"]
    names += ["arms"] if report.grid and len(report.grid.axes) == 1 else []
    for name in names:
        if name in tables:
            yield from format_table_lines(tables[name])
    if leakage := report.leakage:
        yield from (line for note in leakage.notes for line in wrap_text(note, indent="  "))
        if leakage.checked and not leakage.notes:
            yield f"  no arm sees future tokens ({len(leakage.checked)} checked)"


def wrap_text(text: str, indent: str = "", hanging: str | None = None) -> list[str]:
    """Wrap a text to the width of the terminal."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_table_lines(table: Table, indent: str = "  ") -> list[str]:
    """Format a table in aligned columns; a paragraph per row where they are too wide, or have details.

    A row with details says the first of them in place of its numbers.
    """
    rows = [[_format_cell(row.typed_cells[i]) for i in table.shown_columns] for row in table.full_rows]
    header = [table.columns[i].heading for i in table.shown_columns]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    details = [[block.plain for block in row.details if isinstance(block, Text)] for row in table.full_rows]
    if not any(details) and len(indent) + sum(widths) + 2 * (len(widths) - 1) <= WIDTH:
        return [indent + "  ".join(map(str.ljust, row, widths)).rstrip() for row in [header, *rows]]
    first = min(widths[0], WIDTH - MIN_WIDTH)
    lines = list[str]()
    for row, texts in zip(rows, details, strict=True):
        hanging = indent + " " * (first + 2)
        facts = [f"{name} {cell}" for name, cell in zip(header[2:], row[2:], strict=True) if cell]
        text = texts[0] if texts else ", ".join(facts)
        lines += wrap_text(f"{row[1]}: {text}", f"{indent}{row[0]:{first}}  ", hanging)
    return lines


def _format_cell(cell: Cell) -> str:
    sign = f"{SIGNS[cell.value]} " if cell.kind == "verdict" and cell.value in SIGNS else ""
    return f"{sign}{cell.content}"
