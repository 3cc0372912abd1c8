"""`python -m attnlab check [heads=mine ...]`: do the laws of attention hold? For every shipped value, or
for what is given.

Exit status 0 if no law failed, 1 if one did; what does not compose is refused (2).
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.table import Column, Table

from attnlab.errors import Refused

USAGE = "check takes Hydra overrides and --config-dir DIR, or nothing for all that is shipped"


def main(arguments: Sequence[str] = ()) -> int:
    """Prints what every law says of every variant."""
    overrides, config_dir = _split(arguments)
    from attnlab import testing

    console = Console()
    if overrides or config_dir:
        variants: Iterable[testing.Variant] = testing.composed(overrides, config_dir)
    else:
        variants = testing.one_at_a_time()
    found: dict[str, list[testing.Outcome]] = {}
    with Console(stderr=True).status("checking") as status:
        for variant in variants:
            status.update(f"checking {variant.name}")
            found[variant.name] = testing.outcomes(variant)
    console.print(_by_law(found) if len(found) == 1 else _by_variant(found))
    counts = {kind: sum(o.status == kind for all_ in found.values() for o in all_) for kind in MARKS}
    console.print(f"{len(found)} variants: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["failed"] else 0


MARKS = {"passed": "green", "failed": "bold red", "unsupported": "yellow"}


def _by_law(found: dict) -> Table:
    """One variant: a row per law."""
    ((name, outcomes),) = found.items()
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


def _by_variant(found: dict) -> Group:
    """Many variants: a row of counts each; what did not pass follows, with its case or reason."""
    table = Table(Column("variant", overflow="fold"), *MARKS)
    lines = []
    for name, outcomes in found.items():
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


def _split(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """The overrides, and the folder of --config-dir."""
    overrides, folder, rest = [], None, list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            if not equals and not rest:
                raise Refused(USAGE)
            folder = Path(value if equals else rest.pop(0))
        elif word.startswith("-"):
            raise Refused(f"{word}: {USAGE}")
        else:
            overrides.append(word)
    if folder is not None and not folder.is_dir():
        raise Refused(f"--config-dir {folder}: there is no such folder")
    return overrides, folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
