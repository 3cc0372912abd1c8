"""index.html of a folder of reports: a row per claim with its verdict and effect, from their report.json.

A report of another version is listed as unreadable.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from attnlab.report.ladder_schema import LADDER_FILE
from attnlab.report.number_format import format_percent
from attnlab.report.pages.html import build_environment, load_asset
from attnlab.report.sections.grid import format_best_cell
from attnlab.report.tables.claim_sources import load_reworded_ladder, load_reworded_report
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.wording import find_claim_effect, format_effect
from attnlab.stats.evidence import CONFIDENCE_LEVEL

GENERATOR_TAG = '<meta name="generator" content="attnlab index">'


@dataclass(frozen=True)
class IndexRow:
    """A claim of a report, or a report or ladder without claims, whose headline it says."""

    href: str
    name: str
    scale: str | None  # size, or the sizes or budgets of a ladder
    question: str  # in the first row of a report
    says: str
    exploratory: bool
    runs: str
    date: str
    verdict: str = ""
    effect: str = ""


def render_index(folder: Path) -> str:
    """The page for all reports and ladders in a folder."""
    rows = list[IndexRow]()
    unreadable = []
    for source in find_report_sources(folder):
        try:
            rows += [_build_ladder_row(source)] if source.name == LADDER_FILE else _build_report_rows(source)
        except ValueError:
            unreadable.append(source.parent.name)
    rows.sort(key=lambda row: row.date, reverse=True)
    return (
        build_environment()
        .get_template("index.html")
        .render(
            rows=rows,
            n_reports=len({row.href for row in rows}),
            unreadable=unreadable,
            level=format_percent(CONFIDENCE_LEVEL),
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


def _build_report_rows(source: Path) -> list[IndexRow]:
    report = load_reworded_report(source)
    verdict = report.verdict
    headline = format_best_cell(report.grid) if report.grid else build_headline(report)
    question = report.experiment.question or ""
    first = IndexRow(
        href=quote(os.fsencode(source.parent.name)) + "/report.html",
        # the reports of a ladder, of several corpora or of sweeps over the same axes share one name
        name=source.parent.name if report.replication or report.grid else report.experiment.name,
        scale=f"size {report.experiment.size}" if report.experiment.size else None,
        question=f"{question} {headline}".strip() if verdict.claims and report.corpora else question,
        says=headline,
        exploratory=verdict.exploratory,
        runs=f"{verdict.finished} of {verdict.planned}",
        date=report.reproduce.date or "unknown",
    )
    rows = [
        replace(
            first,
            question="" if n else first.question,
            says=claim.says,
            verdict=claim.verdict,
            effect=format_effect(find_claim_effect(claim, report.effects) or claim),
        )
        for n, claim in enumerate(verdict.claims)
    ]
    return rows or [first]


def _build_ladder_row(source: Path) -> IndexRow:
    """One experiment at several sizes or budgets."""
    ladder = load_reworded_ladder(source.parent)
    finished, planned = (sum(getattr(size, key) for size in ladder.sizes) for key in ("finished", "planned"))
    return IndexRow(
        href=quote(os.fsencode(source.parent.name)) + "/report.html",
        name=ladder.name,
        scale=f"{ladder.step_name}s {ladder.sizes[0].name} to {ladder.sizes[-1].name}",
        question=f"{ladder.question or ''} {ladder.scope_question}?".strip(),
        says=ladder.headline,
        exploratory=ladder.exploratory,
        runs=f"{finished} of {planned}",
        date=ladder.reproduce.date or "unknown",
    )
