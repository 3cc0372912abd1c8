"""Tables for terminals of any width: whole columns are dropped until the table fits; no name is cut."""

from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod
from rich.table import Table
from rich.text import Text

_UNBOUNDED_WIDTH = 10_000  # columns of a terminal on which nothing is too wide


class AdaptiveTable:
    """Table that drops optional columns on a narrow terminal.

    Args:
        title: the line above the table.
        headings: heading -> "left" or "right".
        optional_columns: headings in the order in which they are dropped.
        wrapped_columns: headings whose cells may be broken between words.
    """

    def __init__(
        self,
        title: str,
        headings: Mapping[str, str],
        optional_columns: Sequence[str],
        wrapped_columns: Sequence[str],
    ) -> None:
        self.title = title
        self.headings = headings
        self.optional_columns = optional_columns
        self.wrapped_columns = wrapped_columns
        self.rows: list[Mapping[str, str]] = []

    def add_row(self, *cells: str) -> None:
        """Add a row, its cells in the order of the headings."""
        self.rows.append(dict(zip(self.headings, cells, strict=True)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        columns = list(self.headings)
        dropped = []
        for heading in (heading for heading in self.optional_columns if heading in self.headings):
            if self._fits_width(columns, console, options):
                break
            columns.remove(heading)
            dropped.append(heading)
        yield self._build_table(columns, fold_cells=not self._fits_width(columns, console, options))
        if dropped:
            yield Text(f"(a wider terminal also shows {', '.join(dropped)})")

    def _fits_width(self, columns: Sequence[str], console: Console, options: ConsoleOptions) -> bool:
        unbounded = options.update(max_width=_UNBOUNDED_WIDTH)
        return console.measure(self._build_table(columns), options=unbounded).minimum <= options.max_width

    def _build_table(self, columns: Sequence[str], fold_cells: bool = False) -> Table:
        """Build the rich table.

        Args:
            columns: the headings to show.
            fold_cells: whether cells may be broken anywhere, if even the required columns do not fit.
        """
        table = Table(title=Text(self.title), title_justify="left", box=None, pad_edge=False)
        for heading in columns:
            no_wrap = not fold_cells and heading not in self.wrapped_columns
            justify: JustifyMethod = "right" if self.headings[heading] == "right" else "left"
            # rich measures a cell as wide as its longest word, even in a column without line breaks
            widths = [cell_len(cell) for cell in (heading, *(row[heading] for row in self.rows))]
            min_width = max(widths) if no_wrap else None
            table.add_column(heading, justify=justify, no_wrap=no_wrap, min_width=min_width, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(row[heading]) for heading in columns))
        return table
