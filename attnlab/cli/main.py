"""Entry point: dispatches verbs, and passes every other line, as in `+experiment=NAME`, to Hydra.

Exit status: 0 done, whatever the verdict; 1 a run failed, or the output could not be written; 2 nothing was
started; 130 and 143 interrupted; 141 the reader of the output exited.
Surprising: Hydra always runs in multirun mode, so that every command passes through attnlab's sweeper.
"""

import importlib.util
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from attnlab.cli import exit_handling
from attnlab.cli.commands import VERBS, build_parsers, parse_verb_line
from attnlab.cli.hydra_runner import explain_error, run_hydra
from attnlab.cli.parser import PROGRAM, VERSION
from attnlab.config import expand_home
from attnlab.errors import (
    InvalidConfig,
    describe_lack_of_resources,
    escape_unprintable,
    find_invalid_byte,
    format_error_line,
    format_suggestions,
)
from attnlab.sweep.slow_notice import notify_if_slow

HELP_EPILOG = """\
groups (GROUP=OPTION; any key of the config can be set as KEY=VALUE, KEY=A,B sweeps):
{groups}

Hydra's own flags work too: --hydra-help lists them.
Exit status: 0 done, 1 a run failed or the output could not be written, 2 invalid command (nothing was
started), 130 or 143 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    line = [expand_home(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    try:
        folder = _get_working_directory()
        if not {"", folder} & {*sys.path}:
            sys.path.insert(0, folder)  # the installed script too imports user modules, as `python -m` does
        _reject_warnings_as_errors()
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
    _reject_folder_names()
    if line[0] in VERBS:
        return _run_verb(line[0], line[1:])
    if line[0].isidentifier():
        raise InvalidConfig(f"unknown command {line[0]}{_suggest_command(line)}")
    for previous, word in pairwise(line):
        if word in VERBS and not previous.startswith("-"):
            others = list(line)
            others.remove(word)
            raise InvalidConfig(f"the verb comes first: write {PROGRAM} {shlex.join([word, *others])}")
    return run_hydra(line)


def _suggest_command(line: Sequence[str]) -> str:
    """Suggest the command for a line whose first word is no verb: `run` and `train` are no verbs either."""
    from attnlab.cli.verbs.list import list_experiments

    experiments = list_experiments()
    words = line[1:] if line[0] in ("run", "train") else line
    if words != line or line[0] in experiments:
        overrides = [f"+experiment={word}" if word in experiments else word for word in words]
        return f": write {PROGRAM} {shlex.join(overrides or ['+experiment=NAME'])}"
    nearest = format_suggestions(line[0], VERBS) or f" (available: {', '.join(VERBS)})"
    return f"{nearest}: see {PROGRAM} --help"


def _reject_warnings_as_errors() -> None:
    """Reject `-W error` without a category: warnings inside torch would be recorded as failures of runs."""
    if "error" in (option.strip().rstrip(":") for option in sys.warnoptions):
        raise InvalidConfig(
            "PYTHONWARNINGS=error (or -W error) makes warnings of other libraries fail runs: unset it, or "
            "name a category, as in error::DeprecationWarning"
        )


def _get_working_directory() -> str:
    """Return the working directory.

    Raises:
        InvalidConfig: it was deleted.
    """
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise InvalidConfig("the working directory was deleted: change to an existing folder") from error


def _reject_folder_names() -> None:
    """Reject a working directory whose name is not UTF-8: libraries could not write the results there."""
    folder = os.getcwd()
    if invalid := find_invalid_byte(folder):
        raise InvalidConfig(
            f"the name of the working directory {folder} is not UTF-8 (byte {invalid[1]:#04x}), and results "
            "cannot be written there: rename it, or start attnlab in another one"
        )


def _report_error(error: BaseException, line: Sequence[str]) -> int:
    """Print an error on stderr as one line, or a bug with its traceback; return the exit status."""
    if exit_handling.is_broken_pipe(error):
        return exit_handling.EXIT_BROKEN_PIPE
    if not isinstance(error, Exception) and type(error) is not SystemExit:  # a subclass is a signal's
        raise error
    resource_message = None if isinstance(error, InvalidConfig) else describe_lack_of_resources(error)
    user_message = None if resource_message else explain_error(error, line)
    message = user_message or resource_message
    with suppress(OSError):  # stderr may be closed too
        if message is None:
            print(escape_unprintable(traceback.format_exc(), allowed="\n\t"), end="", file=sys.stderr)
        else:
            print(f"attnlab: {format_error_line(message)}", file=sys.stderr)
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
        is_unknown = package.isidentifier() and package not in sys.modules
        if is_unknown and importlib.util.find_spec(package) is None:  # imports nothing
            raise InvalidConfig(
                f"--trust {module}: module not found: run the command in a folder where `import "
                f"{module}` works"
            )
        file = trust.trust_module(module)
        print(
            f"trusted module {module} recorded in {file}: stored configs may call everything in it",
            file=sys.stderr,
        )
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
