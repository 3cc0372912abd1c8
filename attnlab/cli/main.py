"""Entry point: dispatches verbs, and passes every other line, as in `+experiment=NAME`, to Hydra.

Exit status: 0 done, whatever the verdict; 1 a run failed; 2 nothing was started; 130 and 143 interrupted; 141
the reader of the output exited.
Surprising: Hydra always runs in multirun mode, so that every command passes through attnlab's sweeper.
"""

import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from attnlab.cli import exit_handling
from attnlab.cli.commands import VERBS, build_parsers, parse_verb_line
from attnlab.cli.hydra_runner import explain_error, run_hydra
from attnlab.cli.parser import VERSION
from attnlab.errors import InvalidConfig, describe_disk_full, escape_unprintable, format_suggestions
from attnlab.sweep.slow_notice import notify_if_slow

HELP_EPILOG = """\
groups (GROUP=OPTION; any key of the config can be set as KEY=VALUE, KEY=A,B sweeps):
{groups}

Hydra's own flags work too: --hydra-help lists them.
Exit status: 0 done, 1 a run failed, 2 invalid command (nothing was started), 130 or 143 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    line = list(sys.argv[1:] if arguments is None else arguments)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(
            0, os.getcwd()
        )  # user modules are importable from the installed script, as with `python -m`
    try:
        status = _dispatch_line(line)
        sys.stdout.flush()  # while errors can still be reported
        return status
    except KeyboardInterrupt:
        return exit_handling.EXIT_INTERRUPTED
    except BaseException as error:
        status = _report_error(error, line)
        exit_handling.discard_output()
        return status


def _dispatch_line(line: Sequence[str]) -> int:
    has_words = bool(line)
    line = _apply_trust_flags(line)
    if has_words and not line:
        return 0
    if not line or line[0] in ("--help", "-h", "help"):
        print(format_main_help(), end="")
        return 0
    if line[0] == "--version":
        print(VERSION)
        return 0
    if line[0] in VERBS:
        return _run_verb(line[0], line[1:])
    if line[0].isidentifier():
        raise InvalidConfig(
            f"unknown command {line[0]}{format_suggestions(line[0], VERBS)}: see python -m attnlab --help"
        )
    return run_hydra(line)


def _report_error(error: BaseException, line: Sequence[str]) -> int:
    """Print an error on stderr as one line, or a bug with its traceback; return the exit status."""
    if exit_handling.is_broken_pipe(error):
        return exit_handling.EXIT_BROKEN_PIPE
    if not isinstance(error, Exception):
        raise error
    user_message = explain_error(error, line)
    disk_full = describe_disk_full(error)
    with suppress(OSError):  # stderr may be closed too
        if user_message is None and disk_full is None:
            print(escape_unprintable(traceback.format_exc(), allowed="\n\t"), end="", file=sys.stderr)
        else:
            print(f"attnlab: {escape_unprintable(user_message or disk_full or '')}", file=sys.stderr)
    return 1 if user_message is None else 2


def _apply_trust_flags(line: Sequence[str]) -> list[str]:
    """Record each `--trust MODULE` and return the remaining words."""
    remaining: list[str] = []
    words = iter(line)
    for word in words:
        flag, equals, module = word.partition("=")
        if flag != "--trust":
            remaining.append(word)
            continue
        from attnlab.store.guards import trust  # late import keeps the help fast

        module = module if equals else next(words, "")
        package = module.partition(".")[0]
        if package.isidentifier() and importlib.util.find_spec(package) is None:  # imports nothing
            raise InvalidConfig(
                f"--trust {module}: module not found: run the command in a folder where `import "
                f"{module}` works"
            )
        print(f"trusted module {module} recorded in {trust.trust_module(module)}", file=sys.stderr)
    return remaining


def _run_verb(name: str, line: Sequence[str]) -> int:
    """Parse a verb's line, import the verb, and return its exit status."""
    try:
        options = parse_verb_line(name, line)
    except SystemExit:  # argparse printed the requested help
        return 0
    module, _, function = VERBS[name].entry_point.partition(":")
    with exit_handling.exit_on_interrupt(), notify_if_slow(f"loading the modules of {name}"):
        main = getattr(importlib.import_module(module), function)
    return int(main(options) or 0)


def format_main_help() -> str:
    """Format the main help, with verbs and config groups."""
    from attnlab.cli.verbs.list import list_groups

    lines = (f"  {group:15} {', '.join(options)}" for group, options in list_groups().items())
    return build_parsers(HELP_EPILOG.format(groups="\n".join(lines)))[0].format_help()
