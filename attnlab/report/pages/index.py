"""index.html of a folder of reports: the question, claims and verdicts of each, from its report.json.

A report of another version is listed as unreadable.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from attnlab.report.ladder_schema import LADDER_FILE
from attnlab.report.pages.html import build_environment, load_asset
from attnlab.report.schema import ClaimResult
from attnlab.report.tables.claim_sources import load_reworded_ladder, load_reworded_report
from attnlab.report.tables.grid_layout import format_best_cell
from attnlab.report.tables.headline import build_headline

LEDGER_FILE = "ledger.html"
GENERATOR_TAG = '<meta name="generator" content="attnlab index">'


@dataclass(frozen=True)
class IndexRow:
    """A report or a ladder in the index."""

    href: str
    name: str
    scale: str | None  # size, or the sizes or budgets of a ladder
    question: str
    claims: list[ClaimResult]
    headline: str
    has_several_corpora: bool
    exploratory: bool
    finished: int
    planned: int
    date: str


def render_index(folder: Path) -> str:
    """The page for all reports and ladders in a folder."""
    reports = list[IndexRow]()
    unreadable = []
    for source in find_report_sources(folder):
        try:
            reports.append(
                _build_ladder_row(source) if source.name == LADDER_FILE else _build_report_row(source)
            )
        except ValueError:
            unreadable.append(source.parent.name)
    reports.sort(key=lambda row: row.date, reverse=True)
    return (
        build_environment()
        .get_template("index.html")
        .render(
            reports=reports,
            unreadable=unreadable,
            ledger=(folder / LEDGER_FILE).exists(),
            folder=folder.absolute().name,
            css=load_asset("page.css"),
            js=load_asset("page.js"),
        )
    )


def find_report_sources(folder: Path) -> list[Path]:
    """The report.json and ladder.json files directly below a folder, sorted."""
    return sorted(path for name in ("report.json", LADDER_FILE) for path in folder.glob(f"*/{name}"))


def is_generated_index(page: Path) -> bool:
    """Whether the index exists and attnlab wrote it, so that no other page is replaced."""
    return page.is_file() and GENERATOR_TAG in page.read_text("utf-8", errors="replace")[:400]


def _build_report_row(source: Path) -> IndexRow:
    report = load_reworded_report(source)
    verdict = report.verdict
    return IndexRow(
        href=quote(os.fsencode(source.parent.name)) + "/report.html",
        # the reports of a ladder, of several corpora or of sweeps over the same axes share one name
        name=source.parent.name if report.replication or report.grid else report.experiment.name,
        scale=f"size {report.experiment.size}" if report.experiment.size else None,
        question=report.experiment.question or "",
        claims=verdict.claims,
        headline=format_best_cell(report.grid) if report.grid else build_headline(report),
        has_several_corpora=report.corpora is not None,
        exploratory=verdict.exploratory,
        finished=verdict.finished,
        planned=verdict.planned,
        date=report.reproduce.date or "unknown",
    )


def _build_ladder_row(source: Path) -> IndexRow:
    """One experiment at several sizes or budgets."""
    ladder = load_reworded_ladder(source.parent)
    return IndexRow(
        href=quote(os.fsencode(source.parent.name)) + "/report.html",
        name=ladder.name,
        scale=f"{ladder.step_name}s {ladder.sizes[0].name} to {ladder.sizes[-1].name}",
        question=f"{ladder.question or ''} {ladder.scope_question}?".strip(),
        claims=[],
        headline=ladder.headline,
        has_several_corpora=False,
        exploratory=ladder.exploratory,
        finished=sum(rung.finished for rung in ladder.sizes),
        planned=sum(rung.planned for rung in ladder.sizes),
        date=ladder.reproduce.date or "unknown",
    )
