"""`report`: pages from data alone, what differs between two, the ledger of many."""

from collections.abc import Sequence
from pathlib import Path

from attnlab.errors import Refused


def report(arguments: Sequence[str]) -> int:
    """The pages of a report, from its data alone; or what differs between two; or the ledger of many."""
    if len(arguments) == 3 and arguments[0] == "--diff":
        from attnlab.report import compare

        print(compare(Path(arguments[1]), Path(arguments[2])))
        return 0
    if len(arguments) == 2 and arguments[0] == "--ledger":
        from attnlab.report import ledger

        print(ledger.write(Path(arguments[1])))
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise Refused(
            "report which? As in: python -m attnlab report reports/NAME, report --diff A B, or "
            "report --ledger reports/reference"
        )
    from attnlab.report import render

    print(render(Path(arguments[0])))
    return 0
