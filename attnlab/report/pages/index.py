"""index.html beside the reports of a folder: what each asked and found, rendered from their report.json.

A report of another version is listed as one that cannot be read.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from attnlab.report import ladder as ladders
from attnlab.report.ladder import LADDER
from attnlab.report.pages.html import asset, environment
from attnlab.report.schema import ClaimResult, load

LEDGER = "ledger.html"
MARK = '<meta name="generator" content="attnlab index">'


@dataclass(frozen=True)
class IndexRow:
    """A report or a ladder in the index."""

    href: str
    name: str
    size: str | None
    question: str
    claims: list[ClaimResult]
    headline: str
    exploratory: bool
    finished: int
    planned: int
    date: str


def index(folder: Path) -> str:
    """The page for all reports and ladders in a folder."""
    reports = list[IndexRow]()
    unread = []
    for source in sources(folder):
        try:
            reports.append(_ladder(source) if source.name == LADDER else _row(source))
        except ValueError:
            unread.append(source.parent.name)
    reports.sort(key=lambda row: row.date, reverse=True)
    return (
        environment()
        .get_template("index.html")
        .render(
            reports=reports,
            unread=unread,
            ledger=(folder / LEDGER).exists(),
            folder=folder.absolute().name,
            css=asset("page.css"),
            js=asset("page.js"),
        )
    )


def sources(folder: Path) -> list[Path]:
    """What the index is made of."""
    return sorted(path for name in ("report.json", LADDER) for path in folder.glob(f"*/{name}"))


def ours(page: Path) -> bool:
    """Whether an index is there and was written by us, so that nobody else's page is replaced."""
    return page.is_file() and MARK in page.read_text("utf-8", errors="replace")[:400]


def _row(source: Path) -> IndexRow:
    report = load(source)
    verdict = report.verdict
    return IndexRow(
        href=quote(source.parent.name) + "/report.html",
        name=source.parent.name if report.place else report.experiment.name,  # of several, which
        size=report.experiment.size,
        question=report.experiment.question or "",
        claims=verdict.claims,
        headline=verdict.headline,
        exploratory=verdict.exploratory,
        finished=verdict.finished,
        planned=verdict.planned,
        date=report.reproduce.date or "unknown",
    )


def _ladder(source: Path) -> IndexRow:
    """One experiment at several sizes."""
    ladder = ladders.load(source.parent)
    return IndexRow(
        href=quote(source.parent.name) + "/report.html",
        name=ladder.name,
        size=f"{ladder.rungs[0].name} to {ladder.rungs[-1].name}",
        question=f"{ladder.question or ''} Does the answer hold with size?".strip(),
        claims=[],
        headline=ladder.headline,
        exploratory=ladder.exploratory,
        finished=sum(rung.finished for rung in ladder.rungs),
        planned=sum(rung.planned for rung in ladder.rungs),
        date=ladder.reproduce.date or "unknown",
    )
