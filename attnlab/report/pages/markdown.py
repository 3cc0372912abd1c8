"""Draw sections as Markdown: all text and tables but the long ones, which are in the page and in the data."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import singledispatch

from attnlab.report.charts.chart_renderer import RenderedCharts
from attnlab.report.markdown_text import Markdown, format_code, format_code_block, format_table, join_lines
from attnlab.report.number_format import NONE
from attnlab.report.section import (
    SIGNS,
    Block,
    Cell,
    Chart,
    ChartRow,
    Code,
    Fold,
    Heading,
    Interactive,
    Items,
    Key,
    Page,
    Section,
    Table,
    Terms,
    Text,
)

_ESCAPED_INTERVAL = re.compile(r"\\\[([−+]?[\du][^\[\]\\]*, [^\[\]\\]*)\\\](?!\()")


def render_markdown(page: Page, rendered: RenderedCharts | None = None) -> Markdown:
    """Return the page as Markdown; without `rendered` it names the pictures of all charts."""
    lines: list[str] = [Markdown("# {}").format(page.heading), "", page.question, ""]
    sections = page.sections
    if rendered:
        lines += [line for notice in rendered.error_messages for line in (notice, "")]
        sections = [
            replace(
                section,
                blocks=[
                    block
                    for block in section.blocks
                    if not isinstance(block, Chart) or block.name in rendered.pngs
                ],
            )
            for section in sections
        ]
    return join_lines([*lines, *format_sections(sections)])


def format_sections(sections: Iterable[Section]) -> list[str]:
    """Return sections as lines, each under its heading; one without content for Markdown is left out."""
    lines = list[str]()
    for section in sections:
        if not section.is_long and (content := _format_all(section.blocks)):
            lines += [Markdown("## {}").format(section.heading or section.title), "", *content]
    return lines


def _format_all(blocks: Iterable[Block]) -> list[str]:
    return [line for block in blocks for line in _format_block(block)]


@singledispatch
def _format_block(block: Block) -> list[str]:
    raise TypeError(f"{type(block).__name__} is no block of a section")


@_format_block.register(ChartRow)
@_format_block.register(Key)
@_format_block.register(Interactive)
def _(block: Block) -> list[str]:
    return []


@_format_block.register
def _(block: Text) -> list[str]:
    text = _format_text(block)
    return [Markdown("**{}**").format(text) if block.style in ("strong", "banner") else text, ""]


def _format_text(text: Text) -> Markdown:
    return Markdown("").join(
        part if isinstance(part, str) else _format_link(part.text, part.href) for part in text.parts
    )


def _format_link(text: str, href: str) -> Markdown:
    return Markdown("[{}](<{}>)").format(text, Markdown(href.replace("<", "%3C").replace(">", "%3E")))


@_format_block.register
def _(block: Items) -> list[str]:
    items = [Markdown("- {}").format(item) for item in block.items]
    return [*([Markdown("**{}**").format(block.title), ""] if block.title else []), *items, ""]


@_format_block.register
def _(block: Terms) -> list[str]:
    pairs = ((term, _format_cell(text) if isinstance(text, Cell) else text) for term, text in block.pairs)
    return [*(Markdown("- {}: {}").format(*pair) for pair in pairs), ""]


@_format_block.register
def _(block: Code) -> list[str]:
    return [*format_code_block(block.text, block.language), ""]


@_format_block.register
def _(block: Heading) -> list[str]:
    return [Markdown("### {}").format(block.text), ""]


@_format_block.register
def _(block: Fold) -> list[str]:
    content = [] if block.is_long else _format_all(block.blocks)
    return [Markdown("**{}**").format(block.title), "", *content] if content else []


@_format_block.register
def _(block: Chart) -> list[str]:
    if not block.has_picture:
        return []
    title = block.label.partition(". ")[0]
    return [Markdown("Chart: {} ({}).").format(title, format_code(f"figures/{block.name}.png")), ""]


@_format_block.register
def _(table: Table) -> list[str]:
    if table.is_long or not table.rows:
        return []
    rows = table.full_rows
    header = [table.columns[i].heading for i in table.shown_columns]
    lines = format_table(
        header, ([_format_cell(row.typed_cells[i]) for i in table.shown_columns] for row in rows)
    )
    details = list[str]()
    for number, row in enumerate(rows, 1):
        texts = [_format_text(block) for block in row.details if isinstance(block, Text)]
        details += [Markdown("{}. {}").format(number, Markdown(" ").join(texts))] if texts else []
    others = [block for row in rows for block in row.details if not isinstance(block, Text)]
    return [table.caption, "", *lines, *details, *([""] if details else []), *_format_all(others)]


def _format_cell(cell: Cell) -> Markdown:
    text = format_code(cell.text) if cell.kind == "code" else _escape_intervals(cell.text or NONE)
    if cell.parts:
        text = _format_text(Text(*cell.parts))
    if cell.kind == "verdict" and cell.value in SIGNS:
        text = Markdown("{} **{}**").format(SIGNS[cell.value], text)
    if cell.href:
        text = Markdown("[{}](<{}>)").format(text, Markdown(cell.href))
    note = _escape_intervals(f" {cell.note}") if cell.note else ""
    return Markdown("{}{}{}").format(text, note, f" {cell.mark[0]}" if cell.mark else "")


def _escape_intervals(text: str) -> Markdown:
    """Escape a text but the brackets of its intervals, which stay readable and are no link."""
    return Markdown(_ESCAPED_INTERVAL.sub(r"[\1]", str(Markdown.escape(text))))
