"""Progress of a command in steps, on stderr: a bar with the time left, or a line per step in a pipe."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attnlab.errors import escape_unprintable


class StepProgress:
    """Progress of steps; stdout stays free for the command's result."""

    def __init__(self, title: str, total: int | None, bar: Any) -> None:
        self.title = title
        self.total = total
        self.n_done = 0
        self._bar = bar  # a started rich.progress.Progress; None in a pipe
        self._task = bar.add_task(title, total=total) if bar is not None else None

    def start_step(self, name: str) -> None:
        """Show the name of the step that runs now."""
        if self._bar is not None:
            self._bar.update(self._task, description=escape_unprintable(f"{self.title} {name}"))

    def finish_step(self, name: str) -> None:
        """Count a step; in a pipe, print its line."""
        self.n_done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self.n_done, total=self.total)
        else:
            number = f"{self.n_done}/{self.total}" if self.total else f"{self.n_done}"
            print(escape_unprintable(f"[{number}] {self.title} {name}"), file=sys.stderr, flush=True)

    def skip_steps(self, number: int, total: int) -> None:
        """Count steps that are done already, without lines, and set the total."""
        self.n_done, self.total = number, total
        if self._bar is not None:
            self._bar.update(self._task, completed=number, total=total)


@contextmanager
def show_steps(title: str, total: int | None = None) -> Iterator[StepProgress]:
    """Show steps on stderr within the block.

    Args:
        title: the verb of every step, as in "checking".
        total: the number of steps; None if it is not known yet.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not sys.stderr.isatty() or not console.is_interactive:  # a pipe, or TERM=dumb
        yield StepProgress(title, total, None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1))
    columns = (words, BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, expand=True, redirect_stdout=False) as bar:
        console.show_cursor(True)  # so that a killed command leaves no terminal without a cursor
        yield StepProgress(title, total, bar)
