"""`report`: pages from data alone, of one report or of a folder of them; what differs between two reports."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from attnlab.errors import Refused, printable
from attnlab.sweep.waiting import waiting


def report(options: argparse.Namespace) -> int:
    """Renders a report, or all reports of a folder with their index and ledger; or compares two."""
    if options.now is not None:
        from attnlab.cli.hydra import hydra

        if options.folder or options.diff or options.json:
            raise Refused("report --now takes the words of a command, and nothing else")
        return hydra(["++sweep.show=report", *options.now])
    if (options.folder is None) == (options.diff is None):
        raise Refused(
            "report which? As in: python -m attnlab report reports/NAME, report reports, or report --diff A B"
        )
    if options.diff:
        from attnlab.report.diff import compare, differences

        a, b = map(Path, options.diff)
        print(_json(differences(a, b).plain()) if options.json else printable(compare(a, b), keep="\n"))
        return 0
    from attnlab.report.ladder import LADDER
    from attnlab.report.pages.index import sources

    folder = Path(options.folder)
    if not (folder / "report.json").is_file() and not (folder / LADDER).is_file() and sources(folder):
        return _render_folder(folder, as_json=options.json)
    from attnlab.report.across import page as ladders
    from attnlab.report.pages.files import render

    of_sizes = (folder / LADDER).is_file()
    with waiting("rendering the page"):
        page = (ladders.render if of_sizes else render)(folder)
    shown = {"report": str(page), **({} if of_sizes else _verdicts(folder))}
    print(_json(shown) if options.json else printable(str(page)))
    return 0


def _render_folder(folder: Path, *, as_json: bool) -> int:
    """All reports of a folder, behind a progress bar on stderr; 2 where one of them could not be rendered."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from attnlab.report import folder as together

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    errors = list[str]()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("rendering pages", total=None)
        try:
            for done, total, error in together.render(folder):
                progress.update(bar, completed=done, total=total)
                errors += [error] if error else []
        except ValueError as no_ledger:  # a report that has no page either is named once
            errors += [str(no_ledger)] if str(no_ledger) not in errors else []
    pages = [str(path) for path in sorted(folder.glob("*/report.html"))]
    pages += [str(folder / name) for name in ("index.html", "ledger.html") if (folder / name).is_file()]
    for error in errors:
        print(printable(error), file=sys.stderr)
    print(_json({"pages": pages, "errors": errors}) if as_json else printable("\n".join(pages), keep="\n"))
    return 2 if errors else 0


def _verdicts(path: Path) -> dict[str, Any]:
    """The verdicts of a report, and what decided them."""
    from attnlab.report.pages.files import find
    from attnlab.report.schema import load
    from attnlab.report.tables.wording import describe_claim

    verdict = load(find(path)).verdict
    keys = {"says", "verdict", "arm", "against", "metric", "unit", "threshold", "decision"}
    claims = [
        claim.model_dump(mode="json", include=keys) | {"sentence": describe_claim(claim)}
        for claim in verdict.claims
    ]
    return {"headline": verdict.headline, "exploratory": verdict.exploratory, "claims": claims}


def _json(shown: dict[str, Any]) -> str:
    return json.dumps(shown, indent=1, ensure_ascii=False)
