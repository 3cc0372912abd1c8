"""The files of a report: written from runs, and rendered from report.json and attention.npz alone."""

import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnlab.report.charts import figures
from attnlab.report.charts.drawing import draw
from attnlab.report.pages.html import html, inline
from attnlab.report.pages.index import index, ours, sources
from attnlab.report.pages.markdown import markdown
from attnlab.report.pages.summary import slide
from attnlab.report.schema import Report, load
from attnlab.report.tables import maps
from attnlab.report.verdicts.runs import Run
from attnlab.store.files import replacing

SUMMARY = "summary"
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # how a cell begins that spreadsheets take for a formula


def write(folder: Path, report: Report, runs: list[Run]) -> Path:
    """Writes a report and returns its page: the data of its runs, report.json, everything that is rendered
    from these, and the index beside the folder.

    Two commands may end together and write the same report: the pages then show the report.json that was
    written last, whichever command renders them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_curves(folder / "curves.parquet", runs)
    mapped = {(run.arm, run.seed): run.maps for run in runs if run.maps}
    if mapped:
        put(folder / maps.ARCHIVE, maps.archive(mapped))
    else:
        (folder / maps.ARCHIVE).unlink(missing_ok=True)  # an earlier report's
    put(folder / "report.json", dumps(report.plain()).encode())
    page = render(folder)
    if not (folder.parent / "index.html").exists():
        refresh(folder.parent)
    return page


def dumps(document: Any) -> str:
    """JSON with sorted keys and one record a line, so that a diff shows the records that changed.

    Mappings and lists that contain records are spread over lines; everything else is compact.
    """
    return _layout(document, "") + "\n"


def _layout(value: Any, indent: str) -> str:
    inner = indent + " "
    if isinstance(value, dict) and value and (not indent or any(map(_has_records, value.values()))):
        lines = [f"{_compact(key)}: {_layout(value[key], inner)}" for key in sorted(value)]
        return "{\n" + ",\n".join(inner + line for line in lines) + f"\n{indent}}}"
    if _has_records(value):
        return "[\n" + ",\n".join(inner + _layout(item, inner) for item in value) + f"\n{indent}]"
    return _compact(value)


def _has_records(value: Any) -> bool:
    """Whether a value is, or contains, a list of mappings."""
    if isinstance(value, dict):
        return any(map(_has_records, value.values()))
    return isinstance(value, list) and any(isinstance(item, dict) or _has_records(item) for item in value)


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def render(path: Path) -> Path:
    """Renders a report from its folder or report.json, and returns its page: HTML, Markdown, figures and
    runs.csv from report.json and attention.npz alone, the same bytes every time.
    """
    source = find(path)
    render_alone(source)
    list_again(source.parent)
    return source.parent / "report.html"


def render_alone(source: Path) -> None:
    """Renders the files of one report.json beside it; the index of all reports stays as it is."""
    _until_still(lambda: [source, source.with_name(maps.ARCHIVE)], lambda: _render_files(source))


def _render_files(source: Path) -> None:
    report = load(source)
    pictures = pngs(report)
    drawn = draw(inline(report), pictures, {SUMMARY: slide(report)})
    page = html(report, drawn, maps.read(source.with_name(maps.ARCHIVE))).encode()
    folder = source.parent
    (folder / "figures").mkdir(exist_ok=True)
    for old in sorted((folder / "figures").glob("*.png")):
        if old.stem not in drawn.pngs and not old.name.startswith("."):  # another command's temporary file
            old.unlink(missing_ok=True)
    for name, picture in drawn.pngs.items():
        put(folder / f"{name}.png" if name == SUMMARY else folder / "figures" / f"{name}.png", picture)
    put(folder / "report.md", markdown(report, drawn.sentences).encode())
    put(folder / "runs.csv", runs_csv(report).encode())
    put(folder / "report.html", page)


def list_again(folder: Path) -> None:
    """The index beside a report, where it is ours, lists it as it is now."""
    if ours(folder.absolute().parent / "index.html"):
        refresh(folder.absolute().parent)


def refresh(folder: Path) -> None:
    """Writes the index of all reports in a folder, unless somebody else's page has its name."""
    page = folder / "index.html"
    if ours(page) or not page.exists():
        _until_still(lambda: sources(folder), lambda: put(page, index(folder).encode()))


def _until_still(sources: Callable[[], Iterable[Path]], make: Callable[[], None]) -> None:
    """Makes a page, and again while its sources were changed under way.

    Whoever writes a page last has then read all that was there before it: needs no lock, on any file system.
    """
    made_of = None
    while (now := [_version(path) for path in sorted(sources())]) != made_of:
        made_of = now
        make()


def _version(path: Path) -> tuple[str, int, int, int] | None:
    """Another one for every file that was renamed to `path`; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size


def find(path: Path) -> Path:
    """The report.json that a user means by its folder or by itself."""
    source = path / "report.json" if path.is_dir() else path
    if not source.is_file():
        raise ValueError(f"{path}: no report.json here; give the folder of a report, or the file itself")
    return source


def pngs(report: Report) -> list[figures.Figure]:
    """The figures that travel with the Markdown: verdict, effects of the primary metric, budget."""
    named = [("verdict", figures.verdicts(report, 720)[:1]), ("effects", figures.forests(report, 720)[:1])]
    pictures = [figures.Figure(name, some[0].spec, some[0].label) for name, some in named if some]
    return [*pictures, figures.budget(report)]


def runs_csv(report: Report) -> str:
    """A row per planned run, a column per number that any of them has; of each head score the mean over all
    heads, and the most.
    """
    fixed = ["arm", "seed", "id", "status", "seconds"]
    groups = ("axes", "metrics", "budget", "memory", "speed", "heads")
    heads = _heads(report)
    runs = [run.plain() | {"heads": heads.get((run.arm, run.seed), {})} for run in report.runs]
    names = [
        f"{group}.{key}" for group in groups for key in sorted({key for run in runs for key in run[group]})
    ]
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow([*fixed, *names])
    for run in runs:
        cells = (name.split(".", 1) for name in names)
        row = [run[key] for key in fixed] + [run[group].get(key) for group, key in cells]
        table.writerow([_no_formula(cell) for cell in row])
    return out.getvalue()


def _heads(report: Report) -> dict[tuple[str, int], dict[str, float]]:
    """Of each run what its head scores come to."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for score in report.heads.scores if report.heads else ():
        for run in score.runs:
            values = [value for layer in run.values for value in layer if value is not None]
            if values:
                of_run = found.setdefault((run.arm, run.seed), {})
                of_run[f"{score.name}.mean"] = sum(values) / len(values)
                of_run[f"{score.name}.most"] = max(values)
    return found


def _no_formula(cell: Any) -> Any:
    """A text that a spreadsheet would work out gets an apostrophe in front (OWASP, "CSV injection"); what is
    a number stays one.
    """
    if not isinstance(cell, str) or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def put(path: Path, content: bytes) -> None:
    """Whole or not at all: a reader never meets half a page."""
    with replacing(path, sync=False) as part:
        part.write_bytes(content)


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
        put(path, buffer.getvalue())
