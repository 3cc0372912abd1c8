"""The page of a report: its sections under its name, question and provenance."""

from attnlab.report.charts.comparison_figures import build_styles
from attnlab.report.schema import Report
from attnlab.report.section import Link, Page, Text
from attnlab.report.sections import PageContext, build_sections
from attnlab.report.sections.reproduce_section import DIRTY_WORDS
from attnlab.report.tables.headline import build_headline

FILES = {"json": "report.json", "csv": "runs.csv", "md": "report.md"}


def build_report_page(report: Report, context: PageContext | None = None) -> Page:
    """Build the page of a report."""
    provenance = report.reproduce
    name = f"{report.title}: {build_headline(report)}"
    links: list[str | Link] = []
    for label, file in FILES.items():
        links += [" · ", Link(label, file)] if links else [Link(label, file)]
    return Page(
        name=report.title,
        title=f"{name} · attnlab",
        heading=report.title,
        question=report.experiment.question or "",
        sections=build_sections(report, context),
        meta=[
            Text("attnlab / ", Link("reports", "../index.html"), f" / {report.title}"),
            Text(provenance.date or "date unknown"),
            Text(f"commit {(provenance.commit or 'unknown')[:10]} ({DIRTY_WORDS[provenance.dirty]})"),
            *([Text(f"size {report.experiment.size}")] if report.experiment.size else []),
            Text(*links),
        ],
        properties={"og:title": name, "og:image": "figures/verdict.png"},
        styles=build_styles(report),
        baseline=report.experiment.baseline,
    )
