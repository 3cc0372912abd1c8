"""`report`: pages from data alone, what differs between two, the ledger of many."""

import argparse
from pathlib import Path

from attnlab.errors import Refused, printable


def report(options: argparse.Namespace) -> int:
    """The pages of a report, from its data alone; or what differs between two; or the ledger of many."""
    if sum(asked is not None for asked in (options.folder, options.diff, options.ledger)) != 1:
        raise Refused(
            "report which? As in: python -m attnlab report reports/NAME, report --diff A B, or "
            "report --ledger reports/reference"
        )
    if options.diff:
        from attnlab.report import compare

        print(printable(compare(*map(Path, options.diff)), keep="\n"))
    elif options.ledger:
        from attnlab.report import ledger

        for page in ledger.write(Path(options.ledger)):
            print(printable(str(page)))
    else:
        from attnlab.report import render
        from attnlab.report.across import page as ladders

        folder = Path(options.folder)
        again = ladders.render if (folder / ladders.NAME).is_file() else render
        print(printable(str(again(folder))))
    return 0
