"""`python -m attnlab check`: conformance tests of attention for every shipped option or for given overrides.

One line if all tests pass; `-v` prints the outcome of each. Exit status: 0 all passed, 1 a test failed or
nothing of a variant could be checked, 2 the overrides do not compose. `--module` checks a module of another
project (`attnlab.cli.verbs.check_module`).
"""

import argparse
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from attnlab.cli.exit_handling import is_broken_pipe
from attnlab.cli.own_options import resolve_config_dir
from attnlab.cli.step_progress import show_steps
from attnlab.cli.verbs.check_module import check_target
from attnlab.errors import InvalidConfig, describe_exit
from attnlab.training.targets import validate_targets

if TYPE_CHECKING:
    pass

STATUS_STYLES = {"passed": "green", "failed": "bold red", "unsupported": "yellow"}


def main(options: argparse.Namespace) -> int:
    """Print failures and a summary, or with `-v` the outcome of every invariant for every variant."""
    if options.module:
        with _report_exits():
            return check_target(options)
    for flag in ("adapter", "bidirectional", "json"):
        if getattr(options, flag):
            raise InvalidConfig(f"--{flag} needs --module MODULE:FACTORY: add it, or remove --{flag}")
    folder = next(iter(resolve_config_dir(options.config_dir)), None)
    with _report_exits():
        return _check_variants(options, folder)


@contextmanager
def _report_exits() -> Iterator[None]:
    """Report a part that ends the program, as by `exit()`, as an invalid config; Ctrl-C passes through.

    Raises:
        InvalidConfig: SystemExit or KeyboardInterrupt was raised, and not by a signal.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt(signal.SIGINT)

    has_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if has_default:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        is_signal = isinstance(error, KeyboardInterrupt) and (not has_default or error.args)
        if is_signal or is_broken_pipe(error):
            raise
        raise InvalidConfig(describe_exit(error)) from None
    finally:
        if has_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_variants(options: argparse.Namespace, folder: Path | None) -> int:
    from attnlab import testing

    console = Console()
    total = None
    if options.words or folder:
        variants: Iterable[testing.Variant] = testing.compose_variants(options.words, folder)
    else:
        variants, total = testing.iter_single_axis_variants(), testing.count_single_axis_variants()
    outcomes: dict[str, list[testing.Outcome]] = {}
    with show_steps("checking", total) as steps:
        for variant in variants:
            steps.start_step(variant.name)
            validate_targets({"model": {"attention": variant.attention, "positions": variant.positions}})
            outcomes[variant.name] = testing.evaluate_variant(variant)
            steps.finish_step(variant.name)
    if options.verbose:
        tables = _build_invariant_table if len(outcomes) == 1 else _build_variant_table
        console.print(tables(outcomes))
    for line in _list_problems(outcomes, include_unsupported=options.verbose and len(outcomes) > 1):
        console.print(line)
    unchecked = [
        name
        for name, variant_outcomes in outcomes.items()
        if all(outcome.status == "unsupported" for outcome in variant_outcomes)
    ]
    for name in unchecked:
        reason = next((outcome.detail for outcome in outcomes[name]), "no invariant applies")
        console.print(f"[bold red]nothing could be checked[/] {name}: {_escape_markup(reason)}")
    statuses = [outcome.status for variant_outcomes in outcomes.values() for outcome in variant_outcomes]
    console.print(_format_summary(len(outcomes), statuses, options.verbose))
    return 1 if "failed" in statuses or unchecked or not outcomes else 0


def _format_summary(n_variants: int, statuses: Sequence[str], verbose: bool) -> str:
    """Format `34 conformance tests passed, 2 unsupported (-v lists them)`."""
    counts = {kind: statuses.count(kind) for kind in STATUS_STYLES}
    prefix = "" if n_variants == 1 else f"{n_variants} variants: "
    parts = [f"{counts['passed']:,} conformance tests passed"]
    parts += [f"{counts['failed']:,} failed"] if counts["failed"] else []
    hint = "" if verbose else " (-v lists them)"
    parts += [f"{counts['unsupported']:,} unsupported{hint}"] if counts["unsupported"] else []
    return prefix + ", ".join(parts)


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


def _build_variant_table(outcomes_by_variant: dict) -> Table:
    """Build a table of variants with a row of counts each."""
    table = Table(Column("variant", overflow="fold"), *STATUS_STYLES)
    for name, outcomes in outcomes_by_variant.items():
        counts = [sum(outcome.status == kind for outcome in outcomes) for kind in STATUS_STYLES]
        table.add_row(name, *(str(count) if count else "" for count in counts))
    return table


def _list_problems(outcomes_by_variant: dict, include_unsupported: bool) -> Iterator[str]:
    """Yield a line per variant and reason: the invariants that fail, or are unsupported too."""
    for name, outcomes in outcomes_by_variant.items():
        invariants_by_outcome: dict[tuple[str, str], list[str]] = {}
        for outcome in outcomes:
            if outcome.status == "failed" or (include_unsupported and outcome.status == "unsupported"):
                invariants_by_outcome.setdefault((outcome.status, outcome.detail), []).append(
                    outcome.invariant
                )
        for (status, detail), names in invariants_by_outcome.items():
            mark = f"[{STATUS_STYLES[status]}]{status}[/]"
            yield f"{mark} {name}: {', '.join(names)}\n    {_escape_markup(detail)}"


def _escape_markup(text: str) -> str:
    return text.replace("[", r"\[")
