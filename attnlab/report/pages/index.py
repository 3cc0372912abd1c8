"""index.html of a folder of reports: a row per claim with its verdict and effect, from their report.json.

A report of another version is listed as unreadable.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from attnlab.report.ladder_schema import LADDER_FILE
from attnlab.report.number_format import format_percent
from attnlab.report.pages.html import render_page
from attnlab.report.section import Cell, Column, Page, Section, Table, Text, join_text, note
from attnlab.report.sections.grid_section import format_best_cell
from attnlab.report.tables.claim_sources import load_reworded_ladder, load_reworded_report
from attnlab.report.tables.headline import build_headline
from attnlab.report.tables.wording import find_claim_effect, format_effect
from attnlab.stats.evidence import CONFIDENCE_LEVEL

GENERATOR_TAG = '<meta name="generator" content="attnlab index">'


def render_index(folder: Path) -> str:
    """The page for all reports and ladders in a folder: a row per claim, or for the headline."""
    rows = list[list[Cell | str]]()
    unreadable = []
    sources = find_report_sources(folder)
    for source in sources:
        try:
            rows += _build_ladder_rows(source) if source.name == LADDER_FILE else _build_report_rows(source)
        except ValueError:
            unreadable.append(note(f"{source.parent.name} cannot be read as a report."))
    rows.sort(key=lambda row: str(row[-1]), reverse=True)
    effect = f"effect, {format_percent(CONFIDENCE_LEVEL)}% CI"
    table = Table(
        "index",
        "Claims of each experiment with their verdicts and effects. Open a report for its deciding "
        "intervals and caveats.",
        [*map(Column, ("experiment", "claim", "verdict", effect, "runs", "date"))],
        rows,
    )
    page = Page(
        "reports",
        "Reports · attnlab",
        "Reports",
        f"{len(sources) - len(unreadable)} in this folder, newest first.",
        [Section("reports", "Claims", [table, *unreadable])],
        meta=[Text("attnlab")],
        properties={"generator": "attnlab index"},
    )
    return render_page(page)


def find_report_sources(folder: Path) -> list[Path]:
    """The report.json and ladder.json files directly below a folder, sorted."""
    return sorted(path for name in ("report.json", LADDER_FILE) for path in folder.glob(f"*/{name}"))


def is_generated_index(page: Path) -> bool:
    """Whether the index exists and attnlab wrote it, so that no other page is replaced."""
    return page.is_file() and GENERATOR_TAG in page.read_text("utf-8", errors="replace")[:1000]


def _build_report_rows(source: Path) -> list[list[Cell | str]]:
    report = load_reworded_report(source)
    verdict = report.verdict
    headline = format_best_cell(report.grid) if report.grid else build_headline(report)
    claims = [
        (claim.says, str(claim.verdict), format_effect(find_claim_effect(claim, report.effects) or claim))
        for claim in verdict.claims
    ]
    return _build_rows(
        source,
        # the reports of a ladder, of several corpora or of sweeps over the same axes share one name
        source.parent.name if report.replication or report.grid else report.experiment.name,
        f"size {report.experiment.size}" if report.experiment.size else "",
        join_text(report.experiment.question or "", headline if claims and report.corpora else ""),
        claims or [(headline, "", "")],
        exploratory=verdict.exploratory,
        runs=f"{verdict.finished} of {verdict.planned}",
        date=report.reproduce.date,
    )


def _build_ladder_rows(source: Path) -> list[list[Cell | str]]:
    """One experiment at several sizes or budgets."""
    ladder = load_reworded_ladder(source.parent)
    finished, planned = (sum(getattr(size, key) for size in ladder.sizes) for key in ("finished", "planned"))
    return _build_rows(
        source,
        ladder.name,
        f"{ladder.step_name}s {ladder.sizes[0].name} to {ladder.sizes[-1].name}",
        join_text(ladder.question or "", f"{ladder.scope_question}?"),
        [(ladder.headline, "", "")],
        exploratory=ladder.exploratory,
        runs=f"{finished} of {planned}",
        date=ladder.reproduce.date,
    )


def _build_rows(
    source: Path,
    name: str,
    scale: str,
    question: str,
    claims: Sequence[tuple[str, str, str]],
    *,
    exploratory: bool,
    runs: str,
    date: str | None,
) -> list[list[Cell | str]]:
    """A row per claim: its wording, verdict and effect; the first one has the question.

    Args:
        scale: size, or the sizes or budgets of a ladder.
    """
    href = quote(os.fsencode(source.parent.name)) + "/report.html"
    remark = "EXPLORATORY" if exploratory else ""
    return [
        [
            Cell(name, href=href, note=" · ".join(filter(None, (scale, "" if n else question)))),
            Cell(says, kind="prose"),
            Cell(verdict, kind="verdict", value=verdict, note=remark) if verdict else Cell("", note=remark),
            effect,
            runs,
            date or "unknown",
        ]
        for n, (says, verdict, effect) in enumerate(claims)
    ]
