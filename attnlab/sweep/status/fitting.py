"""Tables for terminals of any width: where one does not fit, columns are left out whole; no name is cut."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

_ENOUGH = 10_000  # columns of a terminal on which nothing is too wide


class Fitting:
    """Rows under `headings` (heading -> left or right). Of `spare` the first goes first; the cells of `wraps`
    may be broken between words.
    """

    def __init__(
        self, title: str, headings: Mapping[str, str], spare: Sequence[str], wraps: Sequence[str]
    ) -> None:
        self.title = title
        self.headings = headings
        self.spare = spare
        self.wraps = wraps
        self.rows: list[Mapping[str, str]] = []

    def add(self, *cells: str) -> None:
        """A row, its cells in the order of the headings."""
        self.rows.append(dict(zip(self.headings, cells, strict=True)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        kept = list(self.headings)
        left_out = []
        for heading in (heading for heading in self.spare if heading in self.headings):
            if self._fits(kept, console, options):
                break
            kept.remove(heading)
            left_out.append(heading)
        yield self._of(kept, folds=not self._fits(kept, console, options))
        if left_out:
            yield Text(f"(a wider terminal has {', '.join(left_out)} too)")

    def _fits(self, kept: Sequence[str], console: Console, options: ConsoleOptions) -> bool:
        unbounded = options.update(max_width=_ENOUGH)
        return console.measure(self._of(kept), options=unbounded).minimum <= options.max_width

    def _of(self, kept: Sequence[str], folds: bool = False) -> Table:
        """`folds`: on a terminal too narrow for what may not be left out, its cells are broken anywhere."""
        table = Table(title=Text(self.title), title_justify="left", box=None, pad_edge=False)
        for heading in kept:
            whole = not folds and heading not in self.wraps
            right = self.headings[heading] == "right"
            table.add_column(heading, justify="right" if right else "left", no_wrap=whole, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(row[heading]) for heading in kept))
        return table
