"""`python -m attnlab check --module my_attention:MyAttention`: checks of an attention module of any project.

Exit status: 0 all checks passed or were skipped, 1 a check failed or all were skipped, 2 the module cannot be
imported, the factory is missing, or no adapter fits.
"""

import argparse
import dataclasses
import importlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from attnlab.errors import InvalidConfig, format_suggestions

if TYPE_CHECKING:
    from attnlab.testing import CheckResult

STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def check_target(options: argparse.Namespace) -> int:
    """Check the module of `--module` and print a table, or JSON."""
    if options.words or options.config_dir or options.verbose:
        extra = " ".join([*options.words, "--config-dir" if options.config_dir else ""]).strip() or "-v"
        raise InvalidConfig(f"check --module takes no {extra}: remove it")
    factory = load_factory(options.module)
    from attnlab.testing import check_module
    from attnlab.testing.module_checks.runner import has_checked

    results = check_module(
        factory, adapter=options.adapter, causal=not options.bidirectional, on_fail="return"
    )
    counts = {kind: sum(result.outcome == kind for result in results) for kind in STYLES}
    if options.json:
        records = [dataclasses.asdict(result) for result in results]
        print(json.dumps({"module": options.module, **counts, "results": records}, indent=2, allow_nan=False))
    else:
        _print_results(options.module, results, counts)
    return 0 if not counts["failed"] and has_checked(results) else 1


def load_factory(target: str) -> Callable[[], Any]:
    """Import the factory of a target such as `my_attention:MyAttention`.

    Raises:
        InvalidConfig: the target has another form, its module cannot be imported, or has no such function.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name.isidentifier():
        raise InvalidConfig(f"--module {target}: give MODULE:FACTORY, as in my_attention:MyAttention")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        message = " ".join(str(error).split())
        raise InvalidConfig(
            f"--module {target}: importing {module_name} raises {type(error).__name__}: {message}: run the "
            "command in a folder where the import works"
        ) from error
    factory = getattr(module, name, None)
    if not callable(factory):
        functions = [other for other, value in vars(module).items() if callable(value)]
        raise InvalidConfig(
            f"--module {target}: {module_name} has no function {name}{format_suggestions(name, functions)}"
        )
    return factory


def _print_results(target: str, results: list["CheckResult"], counts: dict[str, int]) -> None:
    console = Console()
    table = Table(
        Column("check", no_wrap=True),
        "outcome",
        "measured, smallest failing case, or reason",
        title=target,
        title_justify="left",
    )
    for result in results:
        table.add_row(result.name, Text(result.outcome, STYLES[result.outcome]), Text(result.detail))
    console.print(table)
    parts = [f"{counts['passed']} checks passed"]
    parts += [f"{counts[kind]} {kind}" for kind in ("failed", "skipped") if counts[kind]]
    if not counts["passed"] and not counts["failed"]:
        parts = ["nothing could be checked"]
    console.print(", ".join(parts))
