"""index.html beside the reports of a folder: what each asked and found, rendered from their report.json.

It reads only a few fields, so that a report of an older version stays listed although it cannot be rendered.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attnlab.report.pages.html import asset, environment

LEDGER = "ledger.html"
LADDER = "ladder.json"
MARK = '<meta name="generator" content="attnlab index">'


def index(folder: Path) -> str:
    """The page for all reports and ladders in a folder."""
    reports = []
    unread = []
    for source in sources(folder):
        try:
            reports.append(_ladder(source) if source.name == LADDER else _row(source))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            unread.append(source.parent.name)
    reports.sort(key=lambda row: row["date"], reverse=True)
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


def _row(source: Path) -> dict[str, Any]:
    report = json.loads(source.read_text("utf-8"))
    experiment = report["experiment"]
    verdict = report["verdict"]
    known = ("SUPPORTED", "REFUTED", "INCONCLUSIVE", "NOT COMPARABLE", "UNTRAINED", "NO RESULT")
    claims = [{"says": str(claim["says"]), "verdict": claim["verdict"]} for claim in verdict["claims"]]
    if not all(claim["verdict"] in known for claim in claims):
        raise ValueError(f"{source}: a verdict outside the vocabulary")
    return {
        "href": quote(source.parent.name) + "/report.html",
        "name": source.parent.name if report.get("place") else str(experiment["name"]),  # of several, which
        "size": experiment.get("size"),
        "question": str(experiment.get("question") or ""),
        "claims": claims,
        "headline": str(verdict["headline"]),
        "exploratory": bool(verdict.get("exploratory")),
        "finished": verdict["finished"],
        "planned": verdict["planned"],
        "date": str(report["reproduce"].get("date") or "unknown"),
    }


def _ladder(source: Path) -> dict[str, Any]:
    """One experiment at several sizes."""
    ladder = json.loads(source.read_text("utf-8"))
    words = [f"{row['arm']} against {row['against']}: {row['word']}" for row in ladder["comparisons"]]
    return {
        "href": quote(source.parent.name) + "/report.html",
        "name": str(ladder["name"]),
        "size": f"{ladder['rungs'][0]['name']} to {ladder['rungs'][-1]['name']}",
        "question": f"{ladder['question'] or ''} Does the answer hold with size?".strip(),
        "claims": [],
        "headline": "; ".join(words) or "NO RESULT",
        "exploratory": bool(ladder["exploratory"]),
        "finished": sum(rung["finished"] for rung in ladder["rungs"]),
        "planned": sum(rung["planned"] for rung in ladder["rungs"]),
        "date": str(ladder["reproduce"].get("date") or "unknown"),
    }
