"""The files of a report: written from runs, and rendered from report.json and attention.npz alone."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import UndefinedError

from attnlab.report.charts.chart_renderer import render_charts
from attnlab.report.pages.html import render_page
from attnlab.report.pages.index import find_report_sources, is_generated_index, render_index
from attnlab.report.pages.markdown import render_markdown
from attnlab.report.pages.report_page import build_report_page
from attnlab.report.pages.summary import render_slide
from attnlab.report.schema import Report, RunRow
from attnlab.report.schema import format_json as format_json
from attnlab.report.section import list_charts
from attnlab.report.sections import PageContext
from attnlab.report.tables import map_archive
from attnlab.report.tables.claim_sources import load_reworded_report
from attnlab.report.tables.source_links import find_bibliography
from attnlab.report.verdicts.results import Run
from attnlab.store.atomic_files import replace_atomically
from attnlab.store.safe_paths import resolve_below

SUMMARY_NAME = "summary"
FORMULA_PREFIXES = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
)  # a cell that begins so is a formula to spreadsheets


def write_report(folder: Path, report: Report, runs: list[Run]) -> Path:
    """Write a report and return its page: run data, report.json, all rendered files, and the folder's index.

    Two commands may end at the same time and write the same report: the pages then show the report.json that
    was written last, whichever command renders them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_curves(folder / "curves.parquet", runs)
    mapped = {(run.arm, run.seed): run.maps for run in runs if run.maps}
    if mapped:
        write_atomically(folder / map_archive.ARCHIVE_NAME, map_archive.build_archive(mapped))
    else:
        (folder / map_archive.ARCHIVE_NAME).unlink(missing_ok=True)  # of an earlier report
    write_atomically(folder / "report.json", format_json(report.to_dict()).encode())
    page = render_report(folder)
    if not (folder.parent / "index.html").exists():
        write_index(folder.parent)
    return page


def render_report(path: Path) -> Path:
    """Render a report from its folder or report.json, and return its page.

    HTML, Markdown, figures and runs.csv come from report.json, attention.npz and the wording of the current
    experiment file, the same bytes every time.
    """
    source = find_report(path)
    render_report_files(source)
    update_index(source.parent)
    return source.parent / "report.html"


def render_report_files(source: Path) -> None:
    """Render the files of one report.json beside it; the index of all reports is unchanged."""
    _repeat_until_unchanged(
        lambda: [source, source.with_name(map_archive.ARCHIVE_NAME)],
        lambda: _render_files_once(source),
    )


@contextmanager
def name_edited_report(source: Path) -> Iterator[None]:
    """Name the file of a stored report or ladder whose values do not fit together.

    Raises:
        ValueError: rendering failed.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, UndefinedError) as error:
        named = {str(source), str(source.parent)} - {"."}
        if isinstance(error, ValueError) and any(name in str(error) for name in named):  # of a file's reader
            raise
        raise ValueError(
            f"{source}: cannot be rendered ({type(error).__name__}: {error}); run its command again"
        ) from error


def _render_files_once(source: Path) -> None:
    report = load_reworded_report(source)
    folder = source.parent
    figures = resolve_below(folder, "figures")
    archive = map_archive.read_archive(source.with_name(map_archive.ARCHIVE_NAME))
    page = build_report_page(report, PageContext(find_bibliography(folder), archive))
    rendered = render_charts(list_charts(page.sections), {SUMMARY_NAME: render_slide(report)})
    html = render_page(page, rendered).encode()
    figures.mkdir(exist_ok=True)
    for old in sorted(figures.glob("*.png")):
        if old.stem not in rendered.pngs and not old.name.startswith("."):  # another command's temporary file
            old.unlink(missing_ok=True)
    for name, picture in rendered.pngs.items():
        write_atomically(folder / f"{name}.png" if name == SUMMARY_NAME else figures / f"{name}.png", picture)
    write_atomically(folder / "report.md", render_markdown(page, rendered).encode())
    write_atomically(folder / "runs.csv", format_runs_csv(report).encode())
    write_atomically(folder / "report.html", html)


def update_index(folder: Path) -> None:
    """Rewrite the index beside a report, if attnlab generated it."""
    if is_generated_index(folder.absolute().parent / "index.html"):
        write_index(folder.absolute().parent)


def write_index(folder: Path) -> None:
    """Write the index of all reports in a folder, unless another page has its name."""
    page = folder / "index.html"
    if is_generated_index(page) or not page.exists():
        _repeat_until_unchanged(
            lambda: find_report_sources(folder),
            lambda: write_atomically(page, render_index(folder).encode(errors="backslashreplace")),
        )


def _repeat_until_unchanged(list_sources: Callable[[], Iterable[Path]], make: Callable[[], None]) -> None:
    """Call `make`, and again while its sources change meanwhile.

    So the last writer of a page has read every source: this needs no lock, on any file system.
    """
    rendered_versions = None
    while (versions := [_get_file_version(path) for path in sorted(list_sources())]) != rendered_versions:
        rendered_versions = versions
        make()


def _get_file_version(path: Path) -> tuple[str, int, int, int] | None:
    """A value that changes with every file renamed to `path`; None where no file exists."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size


def find_report(path: Path) -> Path:
    """The report.json in a folder, or the file itself.

    Raises:
        ValueError: it does not exist.
    """
    source = path / "report.json" if path.is_dir() else path
    if not source.is_file():
        raise ValueError(f"{path}: report.json not found: give the folder of a report, or the file itself")
    return source


def format_runs_csv(report: Report) -> str:
    """A row per planned run, a column per number that any run has.

    Of each head score there are the mean over all heads and the maximum.
    """
    fixed = ["arm", "seed", "id", "status", "seconds"]
    groups = ("axes", "metrics", "budget", "memory", "speed", "heads")
    runs = [
        run.to_dict() | {"axes": report.axes.get(run.arm, {}), "heads": _summarize_head_scores(run)}
        for run in report.runs
    ]
    names = [
        f"{group}.{key}" for group in groups for key in sorted({key for run in runs for key in run[group]})
    ]
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow([*fixed, *names])
    for run in runs:
        cells = (name.split(".", 1) for name in names)
        row = [run[key] for key in fixed] + [run[group].get(key) for group, key in cells]
        table.writerow([_escape_formula(cell) for cell in row])
    return buffer.getvalue()


def _summarize_head_scores(run: RunRow) -> dict[str, float]:
    """The mean and maximum of each head score of a run."""
    summary: dict[str, float] = {}
    for name, table in run.head_scores.items():
        if values := [value for layer in table for value in layer if value is not None]:
            summary[f"{name}.mean"] = sum(values) / len(values)
            summary[f"{name}.most"] = max(values)
    return summary


def _escape_formula(cell: Any) -> Any:
    """Prefix text that a spreadsheet would evaluate with an apostrophe (OWASP, "CSV injection").

    Text that is a number is unchanged.
    """
    if not isinstance(cell, str) or not cell.startswith(FORMULA_PREFIXES):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def write_atomically(path: Path, content: bytes) -> None:
    """Write all or nothing: a reader never sees half a page."""
    with replace_atomically(path, sync=False) as temporary:
        temporary.write_bytes(content)


def _write_curves(path: Path, runs: list[Run]) -> None:
    tables = []
    for run in runs:
        if run.curves is not None:
            table = run.curves
            for i, (name, value) in enumerate((("arm", run.arm), ("seed", run.seed))):
                table = table.add_column(i, name, pa.array([value] * table.num_rows))
            tables.append(table)
    if tables:
        buffer = io.BytesIO()
        pq.write_table(pa.concat_tables(tables), buffer)
        write_atomically(path, buffer.getvalue())
