"""What a page consists of: sections of text, tables and charts, as data.

A section is built from results by one function, and drawn by renderers that know nothing of its content:
HTML, Markdown, terminal, data frames and W&B tables. So a new table is one function in one file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from attnlab.report.number_format import NONE, append_unit, format_bounds, format_number, format_pvalue

Spec = dict[str, Any]  # a Vega-Lite chart
CellKind = Literal["text", "prose", "number", "arm", "verdict", "code"]
TextStyle = Literal["plain", "lead", "note", "answer", "banner", "strong"]
SIGNS = {  # of verdicts, for readers who cannot tell colors
    "SUPPORTED": "✓",
    "REFUTED": "✗",
    "INCONCLUSIVE": "?",
    "NOT COMPARABLE": "≠",
    "UNTRAINED": "∅",
    "DEMONSTRATION": "∅",
    "NO RESULT": "∅",
}
WIDE, NARROW = 640, 350  # pixels of a chart on a page, and on a phone


@dataclass(frozen=True)
class Cell:
    """A cell of a table, as text for readers and as a value for programs.

    Attributes:
        value: of the data frame, with the ends of its interval; the text if it is None and the cell is no
            number.
        note: small print after the text, such as the interval.
        kind: an arm has its symbol, a verdict its color; prose may be broken into lines.
        href: the address that the text leads to.
        mark: a sign beside the text, with its meaning in words.
        parts: the text with several links, for readers.
    """

    text: str
    value: Any = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    kind: CellKind = "text"
    href: str = ""
    mark: tuple[str, str] | None = None
    parts: Sequence["str | Link"] = ()

    @property
    def content(self) -> str:
        """The text with its mark and note, in one line."""
        return " ".join(filter(None, (self.text, self.note, self.mark[0] if self.mark else "")))


def number(
    value: Any, digits: int | None = None, *, sign: bool = False, unit: str = "", note: str = ""
) -> Cell:
    """A number with `digits` decimals, or four significant digits; a dash where it is None."""
    return Cell(format_number(value, digits, sign=sign, unit=unit), value, note=note, kind="number")


def interval(
    value: float | None,
    low: float | None,
    high: float | None,
    digits: int | None = None,
    *,
    sign: bool = False,
) -> Cell:
    """A number with an interval in small print; a bound that is None hides the interval."""
    note = "" if low is None or high is None else format_bounds(low, high, digits, sign=sign)
    return Cell(format_number(value, digits, sign=sign), value, low, high, note, "number")


def bounds(low: float | None, high: float | None, digits: int | None = None, *, sign: bool = True) -> Cell:
    """An interval alone."""
    return Cell(format_bounds(low, high, digits, sign=sign), None, low, high, kind="number")


def pvalue(value: float | None) -> Cell:
    """A p-value with two significant digits."""
    return Cell(format_pvalue(value), value, kind="number")


def verdict(word: str, text: str = "") -> Cell:
    """A verdict; `text` replaces the word for readers, as with reasons behind it."""
    return Cell(text or str(word), str(word), kind="verdict")


def arm(name: str, note: str = "") -> Cell:
    """An arm with its symbol; the note tells its options."""
    return Cell(name, name, note=note, kind="arm")


def code(text: str, note: str = "") -> Cell:
    """Text in the type of code."""
    return Cell(text, note=note, kind="code")


def links(*parts: "str | Link") -> Cell:
    """Prose with links."""
    return Cell(Text(*parts).plain, kind="prose", parts=parts)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: for readers; empty hides the column from them, so that only programs read it.
        name: for programs; the title if empty.
        unit: of the numbers.
        ends: names of the columns with the ends of an interval.
    """

    title: str
    name: str = ""
    unit: str = ""
    ends: tuple[str, str] | None = None

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return append_unit(self.title, self.unit)

    @property
    def key(self) -> str:
        """The name for programs."""
        return self.name or self.title


@dataclass(frozen=True)
class Row:
    """A row of a table, of cells and text; `details` are folded below it."""

    cells: Sequence[Any]
    details: Sequence["Block"] = ()

    @property
    def typed_cells(self) -> list[Cell]:
        """The cells, with text as cells too."""
        return [Cell(cell) if isinstance(cell, str) else cell for cell in self.cells]


@dataclass(frozen=True)
class Table:
    """A table with its name for programs.

    Attributes:
        by_arm: whether each arm has a column; many of them are stacked on paper.
        is_long: whether the table is left out of Markdown and of the terminal.
        is_sortable: whether a reader may sort its rows.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row | Sequence[Any]]
    by_arm: bool = False
    is_long: bool = False
    is_sortable: bool = True

    @property
    def full_rows(self) -> list[Row]:
        """The rows with their details."""
        return [row if isinstance(row, Row) else Row(row) for row in self.rows]

    @property
    def shown_columns(self) -> list[int]:
        """The indices of the columns for readers."""
        return [i for i, column in enumerate(self.columns) if column.title]

    def iterate_records(self) -> Iterator[dict[str, Any]]:
        """Yield each row for programs: a value by column, and the ends of intervals beside it."""
        rows = [row.typed_cells for row in self.full_rows]
        has_ends = [
            any(row[i].low is not None or row[i].high is not None for row in rows)
            for i in range(len(self.columns))
        ]
        for row in rows:
            record: dict[str, Any] = {}
            for column, cell, with_ends in zip(self.columns, row, has_ends, strict=True):
                has_text = cell.text not in ("", NONE) and cell.kind != "number"
                key = (
                    column.key if column.key not in record else f"{column.key}_"
                )  # an arm named like a column
                record[key] = cell.text if cell.value is None and has_text else cell.value
                if with_ends or column.ends:
                    low, high = column.ends or (f"{key}_low", f"{key}_high")
                    record |= {low: cell.low, high: cell.high}
            yield record


@dataclass(frozen=True)
class Link:
    """A link within a text."""

    text: str
    href: str


class Text:
    """A paragraph of text and links."""

    def __init__(self, *parts: str | Link, style: TextStyle = "plain") -> None:
        self.parts = parts
        self.style = style

    @property
    def plain(self) -> str:
        """The text without addresses."""
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)


def note(*parts: str | Link) -> Text:
    """A paragraph in small print."""
    return Text(*parts, style="note")


@dataclass(frozen=True)
class Items:
    """A list of sentences; a banner of that style where `title` is given."""

    items: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Terms:
    """Terms with what they stand for."""

    pairs: Sequence[tuple[str, str | Cell]]


@dataclass(frozen=True)
class Code:
    """A block of code; `id` lets a button copy it."""

    text: str
    language: str = ""
    id: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart, which has two widths on a page, one of them for phones.

    Attributes:
        label: the chart in words, in place of the picture where there is none.
        draw: returns the spec, for `width=` in pixels unless the size is fixed.
        is_fixed: whether the chart has one size.
        has_picture: whether a PNG lies beside the Markdown; such a chart is in no fold.
    """

    name: str
    label: str
    draw: Callable[..., Spec]
    caption: str = ""
    is_fixed: bool = False
    has_picture: bool = False

    def list_names(self) -> list[str]:
        """Return the names of its specs on a page, the one for phones last."""
        return [self.name] if self.is_fixed else [self.name, f"{self.name}-narrow"]

    def list_specs(self) -> dict[str, Spec]:
        """Return its specs on a page by name."""
        if self.is_fixed:
            return {self.name: self.draw()}
        return dict(zip(self.list_names(), (self.draw(width=WIDE), self.draw(width=NARROW)), strict=True))


@dataclass(frozen=True)
class ChartRow:
    """Small charts beside each other, and how to read them."""

    label: str
    charts: Sequence[Chart]
    caption: str = ""


@dataclass(frozen=True)
class Key:
    """The symbols of arms; all of the page where none are named."""

    arms: Sequence[str] = ()


@dataclass(frozen=True)
class Fold:
    """Blocks behind a title; a long one is left out of Markdown."""

    title: str
    blocks: Sequence["Block"]
    is_long: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str
    id: str = ""


@dataclass(frozen=True)
class Interactive:
    """Markup that a script makes interactive, for HTML alone; `data` is what the script reads."""

    markup: str
    data: Mapping[str, Any] = field(default_factory=dict)


Block = Text | Items | Terms | Code | Table | Chart | ChartRow | Key | Fold | Heading | Interactive


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading; `title` names it in the navigation. A long one is in HTML alone."""

    id: str
    title: str
    blocks: Sequence[Block]
    heading: str = ""
    is_long: bool = False


@dataclass(frozen=True)
class Page:
    """A page: what it is about, and its sections.

    Attributes:
        name: of the browser's tab, and of files that a reader saves.
        meta: short facts and links above the heading.
        properties: what link previews show, as `og:image`.
        styles: color and shape of every arm.
    """

    name: str
    title: str
    heading: str
    question: str
    sections: Sequence[Section]
    meta: Sequence[Text] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    styles: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    baseline: str = ""


def iterate_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield all blocks, also those in folds and below rows of tables."""
    for block in blocks:
        yield block
        if isinstance(block, Fold):
            yield from iterate_blocks(block.blocks)
        elif isinstance(block, ChartRow):
            yield from block.charts
        elif isinstance(block, Table):
            for row in block.full_rows:
                yield from iterate_blocks(row.details)


def list_tables(sections: Iterable[Section]) -> dict[str, Table]:
    """Return the tables of sections by name, the first of each name."""
    tables: dict[str, Table] = {}
    for section in sections:
        for block in iterate_blocks(section.blocks):
            if isinstance(block, Table):
                tables.setdefault(block.name, block)
    return tables


def list_charts(sections: Iterable[Section]) -> list[Chart]:
    """Return the charts of sections."""
    return [
        block for section in sections for block in iterate_blocks(section.blocks) if isinstance(block, Chart)
    ]


def join_text(*parts: str) -> str:
    """Join sentences, without those that are empty."""
    return " ".join(filter(None, parts))


EMPTY = Cell(NONE)
