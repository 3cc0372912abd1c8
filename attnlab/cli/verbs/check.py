"""`python -m attnlab check`: do the laws of attention hold, for every shipped value or for what is given?

Exit status 0 if no law failed, 1 if one did; what does not compose is refused (2).
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, Group
from rich.table import Column, Table

from attnlab.errors import Refused

MARKS = {"passed": "green", "failed": "bold red", "unsupported": "yellow"}


def main(options: argparse.Namespace) -> int:
    """Prints what every law says of every variant."""
    folder = Path(options.config_dir) if options.config_dir else None
    if folder is not None and not folder.is_dir():
        raise Refused(f"--config-dir {folder}: there is no such folder")
    from attnlab import testing

    console = Console()
    if options.words or folder:
        variants: Iterable[testing.Variant] = testing.composed(options.words, folder)
    else:
        variants = testing.one_at_a_time()
    outcomes: dict[str, list[testing.Outcome]] = {}
    with Console(stderr=True).status("checking") as status:
        for variant in variants:
            status.update(f"checking {variant.name}")
            outcomes[variant.name] = testing.outcomes(variant)
    console.print(_by_law(outcomes) if len(outcomes) == 1 else _by_variant(outcomes))
    statuses: list[str] = [outcome.status for of_variant in outcomes.values() for outcome in of_variant]
    counts = {kind: statuses.count(kind) for kind in MARKS}
    console.print(
        f"{len(outcomes)} variants: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
    )
    return 1 if counts["failed"] else 0


def _by_law(by_variant: dict) -> Table:
    """One variant: a row per law."""
    ((name, outcomes),) = by_variant.items()
    table = Table(
        "law",
        "outcome",
        "what it says, the smallest failing case, or the reason",
        title=name,
        title_justify="left",
    )
    for outcome in outcomes:
        mark = f"[{MARKS[outcome.status]}]{outcome.status}[/]"
        table.add_row(outcome.law, mark, _plain(outcome.detail or outcome.says))
    return table


def _by_variant(by_variant: dict) -> Group:
    """Many variants: a row of counts each; what did not pass follows, with its case or reason."""
    table = Table(Column("variant", overflow="fold"), *MARKS)
    lines = []
    for name, outcomes in by_variant.items():
        counts = [sum(outcome.status == kind for outcome in outcomes) for kind in MARKS]
        table.add_row(name, *(str(count) if count else "" for count in counts))
        laws: dict[tuple[str, str], list[str]] = {}
        for outcome in outcomes:
            if outcome.status != "passed":
                laws.setdefault((outcome.status, outcome.detail), []).append(outcome.law)
        for (status, detail), names in laws.items():
            lines.append(f"[{MARKS[status]}]{status}[/] {name}: {', '.join(names)}\n    {_plain(detail)}")
    return Group(table, *lines)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
