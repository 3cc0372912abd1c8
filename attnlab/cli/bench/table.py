"""The rows for a terminal."""

import io
import shutil
import sys
from typing import Any

from rich.console import Console

from attnlab.cli.bench import Bench
from attnlab.sweep.status.fitting import Fitting

WIDEST = 130
HEADINGS = ("", "median", "95 % interval", "roofline", "ratio", "its interval", "beside")
SPARE = ("roofline", "95 % interval")  # on a narrow terminal


def table(bench: Bench) -> str:
    """A table per group, and the conditions."""
    text = io.StringIO()
    width = min(WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDEST
    console = Console(width=width, file=text, markup=False, highlight=False)
    headings = {each: "left" if each in ("", "beside") else "right" for each in HEADINGS}
    for group in dict.fromkeys(row.group for row in bench.rows):
        shown = Fitting(group, headings, SPARE, wraps=("beside",))
        for row in (row for row in bench.rows if row.group == group):
            beside = row.note or ", ".join(f"{key} {_short(value)}" for key, value in row.facts.items())
            shown.add(
                row.name,
                "-" if row.median is None else f"{_short(row.median)} {row.unit}",
                _range(row.low, row.high),
                "-" if row.roofline is None else _short(row.roofline),
                "-" if row.ratio is None else f"{row.ratio:.3f}",
                _range(row.ratio_low, row.ratio_high),
                beside,
            )
        console.print(shown)
    console.print(f"bench {bench.subject}: {dict(bench.conditions)}")
    return text.getvalue()


def _short(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 1000
        else (f"{value:,.0f}" if isinstance(value, float) else str(value))
    )


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_short(low)} to {_short(high)}"
