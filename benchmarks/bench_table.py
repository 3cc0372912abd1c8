"""Formatting of bench rows for a terminal."""

import io
import shutil
import sys
from typing import Any

from rich.console import Console

from attnlab.sweep.status.adaptive_table import AdaptiveTable
from benchmarks import BenchResult

MAX_WIDTH = 130
HEADINGS = ("", "median", "95% interval", "roofline", "ratio", "ratio interval", "details")
OPTIONAL_COLUMNS = ("roofline", "95% interval")  # dropped on a narrow terminal


def format_bench(bench: BenchResult) -> str:
    """Format a table per group, followed by the conditions."""
    text = io.StringIO()
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else MAX_WIDTH
    console = Console(width=width, file=text, markup=False, highlight=False)
    headings = {heading: "left" if heading in ("", "details") else "right" for heading in HEADINGS}
    for group in dict.fromkeys(row.group for row in bench.rows):
        table = AdaptiveTable(group, headings, OPTIONAL_COLUMNS, wrapped_columns=("details",))
        for row in (row for row in bench.rows if row.group == group):
            note = row.note or ", ".join(f"{key} {_format_value(value)}" for key, value in row.facts.items())
            table.add_row(
                row.name,
                "-" if row.median is None else f"{_format_value(row.median)} {row.unit}",
                _format_range(row.low, row.high),
                "-" if row.roofline is None else _format_value(row.roofline),
                "-" if row.ratio is None else f"{row.ratio:.3f}",
                _format_range(row.ratio_low, row.ratio_high),
                note,
            )
        console.print(table)
    console.print(f"bench {bench.subject}: {dict(bench.conditions)}")
    return text.getvalue()


def _format_value(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 1000
        else (f"{value:,.0f}" if isinstance(value, float) else str(value))
    )


def _format_range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_format_value(low)} to {_format_value(high)}"
