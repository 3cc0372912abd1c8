"""`report`: pages from data alone, what differs between two, the ledger of many."""

import argparse
import json
from pathlib import Path
from typing import Any

from attnlab.errors import Refused, printable
from attnlab.sweep.waiting import waiting


def report(options: argparse.Namespace) -> int:
    """The pages of a report, from its data alone; or what differs between two; or the ledger of many."""
    if options.now is not None:
        from attnlab.cli.hydra import hydra

        if options.folder or options.diff or options.ledger or options.json:
            raise Refused("report --now takes the words of a command, and nothing else")
        return hydra(["++sweep.show=report", *options.now])
    if sum(asked is not None for asked in (options.folder, options.diff, options.ledger)) != 1:
        raise Refused(
            "report which? As in: python -m attnlab report reports/NAME, report --diff A B, or "
            "report --ledger reports/reference"
        )
    if options.diff:
        from attnlab.report.diff import compare, differences

        a, b = map(Path, options.diff)
        print(_json(differences(a, b)) if options.json else printable(compare(a, b), keep="\n"))
    elif options.ledger:
        from attnlab.report import ledger

        with waiting("reading the reports"):
            pages = [str(page) for page in ledger.write(Path(options.ledger))]
        print(_json({"pages": pages}) if options.json else printable("\n".join(pages), keep="\n"))
    else:
        from attnlab.report import render
        from attnlab.report.across import page as ladders
        from attnlab.report.pages.index import LADDER

        folder = Path(options.folder)
        of_sizes = (folder / LADDER).is_file()
        with waiting("drawing the pages"):
            page = (ladders.render if of_sizes else render)(folder)
        told = {"report": str(page), **({} if of_sizes else _verdicts(folder))}
        print(_json(told) if options.json else printable(str(page)))
    return 0


def _verdicts(path: Path) -> dict[str, Any]:
    """The verdicts of a report, and what decided them."""
    from attnlab.report.pages.files import find
    from attnlab.report.schema import load

    verdict = load(find(path))["verdict"]
    keys = ("says", "verdict", "arm", "against", "metric", "unit", "threshold", "decision", "sentence")
    claims = [{key: claim[key] for key in keys} for claim in verdict["claims"]]
    return {"headline": verdict["headline"], "exploratory": verdict["exploratory"], "claims": claims}


def _json(told: dict[str, Any]) -> str:
    return json.dumps(told, indent=1, ensure_ascii=False)
