"""A report as readers and programs see it, without charts: page, Markdown, tables."""

import re
from html import unescape
from pathlib import Path
from typing import Any

from synthetic import World, build_context, build_provenance, build_timing, write_runs

from attnlab.report.charts.chart_renderer import RenderedCharts
from attnlab.report.pages import html, markdown
from attnlab.report.pages.report_page import build_report_page
from attnlab.report.report_builder import build_report
from attnlab.report.schema import Report
from attnlab.report.section import Section, list_tables
from attnlab.report.sections import PageContext, build_sections
from attnlab.report.verdicts.results import Run

REFERENCES = Path(__file__).parents[2] / "reports" / "reference"


def make_report(
    source: Path | list[Run],
    world: World | None = None,
    *,
    is_timed: bool = False,
    provenance: dict[str, Any] | None = None,
    **changes: Any,
) -> Report:
    """The report of runs, or of a world written to a folder; `changes` as in `build_context`."""
    world = world or World()
    runs = write_runs(source, world) if isinstance(source, Path) else source
    timing = build_timing(world) if is_timed else None
    return build_report(build_context(world, **changes), runs, timing, build_provenance(**provenance or {}))


def render_html(report: Report, context: PageContext | None = None) -> str:
    """The page without charts."""
    return html.render_page(build_report_page(report, context), RenderedCharts())


def render_markdown(report: Report) -> str:
    """The Markdown without the escapes."""
    return markdown.render_markdown(build_report_page(report)).replace("\\", "")


def extract_text(page: str) -> str:
    """The visible text of a page, without markup and scripts, with ordinary spaces."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page[max(page.find("<body"), 0) :], flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]+>", "", body)).split())


def render_texts(report: Report) -> tuple[str, str]:
    """The visible text of the page and the Markdown."""
    return extract_text(render_html(report)), render_markdown(report)


def read_table(source: Report | Section, name: str) -> list[dict[str, Any]]:
    """The records of a table of a page or a section; none if it has no such table."""
    table = list_tables(build_sections(source) if isinstance(source, Report) else [source]).get(name)
    return [*table.iterate_records()] if table else []
