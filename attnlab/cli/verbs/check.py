"""`python -m attnlab check`: conformance tests of attention for every shipped option or for given overrides.

Exit status: 0 all passed, 1 a test failed, 2 the overrides do not compose.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, Group
from rich.table import Column, Table

from attnlab.errors import InvalidConfig

STATUS_STYLES = {"passed": "green", "failed": "bold red", "unsupported": "yellow"}


def main(options: argparse.Namespace) -> int:
    """Print the outcome of every invariant for every variant."""
    folder = Path(options.config_dir) if options.config_dir else None
    if folder is not None and not folder.is_dir():
        raise InvalidConfig(f"--config-dir {folder}: folder not found: give an existing one")
    from attnlab import testing

    console = Console()
    if options.words or folder:
        variants: Iterable[testing.Variant] = testing.compose_variants(options.words, folder)
    else:
        variants = testing.iter_single_axis_variants()
    outcomes: dict[str, list[testing.Outcome]] = {}
    with Console(stderr=True).status("checking") as status:
        for variant in variants:
            status.update(f"checking {variant.name}")
            outcomes[variant.name] = testing.evaluate_variant(variant)
    console.print(_build_invariant_table(outcomes) if len(outcomes) == 1 else _build_variant_table(outcomes))
    statuses: list[str] = [
        outcome.status for variant_outcomes in outcomes.values() for outcome in variant_outcomes
    ]
    counts = {kind: statuses.count(kind) for kind in STATUS_STYLES}
    console.print(
        f"{len(outcomes)} variants: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
    )
    return 1 if counts["failed"] else 0


def _build_invariant_table(outcomes_by_variant: dict) -> Table:
    """Build a table of one variant with a row per invariant."""
    ((name, outcomes),) = outcomes_by_variant.items()
    table = Table(
        Column("invariant", no_wrap=True),
        "outcome",
        "statement, smallest failing case, or reason",
        title=name,
        title_justify="left",
    )
    for outcome in outcomes:
        mark = f"[{STATUS_STYLES[outcome.status]}]{outcome.status}[/]"
        table.add_row(outcome.invariant, mark, _escape_markup(outcome.detail or outcome.statement))
    return table


def _build_variant_table(outcomes_by_variant: dict) -> Group:
    """Build a table of variants with a row of counts each, followed by failures and their reasons."""
    table = Table(Column("variant", overflow="fold"), *STATUS_STYLES)
    lines = []
    for name, outcomes in outcomes_by_variant.items():
        counts = [sum(outcome.status == kind for outcome in outcomes) for kind in STATUS_STYLES]
        table.add_row(name, *(str(count) if count else "" for count in counts))
        invariants_by_outcome: dict[tuple[str, str], list[str]] = {}
        for outcome in outcomes:
            if outcome.status != "passed":
                invariants_by_outcome.setdefault((outcome.status, outcome.detail), []).append(
                    outcome.invariant
                )
        for (status, detail), names in invariants_by_outcome.items():
            mark = f"[{STATUS_STYLES[status]}]{status}[/]"
            lines.append(f"{mark} {name}: {', '.join(names)}\n    {_escape_markup(detail)}")
    return Group(table, *lines)


def _escape_markup(text: str) -> str:
    return text.replace("[", r"\[")
