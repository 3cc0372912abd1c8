"""The one entry: `python -m attnlab +experiment=NAME`, and the verbs. Everything else on the line is Hydra's.

Exit status: 0 done, whatever the verdict; 1 a run failed; 2 nothing was started; 130 and 143 interrupted; 141
nobody reads the output.
Surprising: Hydra is always asked for a multirun, so that every command passes through attnlab's sweeper.
"""

import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from attnlab.cli import ending
from attnlab.cli.commands import VERBS, parse, parsers
from attnlab.cli.hydra import explain, hydra
from attnlab.cli.parser import VERSION
from attnlab.errors import Refused, nearest, no_space, printable
from attnlab.sweep.waiting import waiting

EPILOG = """\
groups (GROUP=OPTION; any key of the config can be set as KEY=VALUE, KEY=A,B sweeps):
{groups}

Hydra's own flags work as everywhere: --hydra-help lists them.
Exit status: 0 done, 1 a run failed, 2 nothing was started, 130 and 143 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit status."""
    line = list(sys.argv[1:] if arguments is None else arguments)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the installed script finds a user's modules as `python -m` does
    try:
        status = _command(line)
        sys.stdout.flush()  # here, where what goes wrong can still be told
        return status
    except KeyboardInterrupt:
        return ending.INTERRUPTED
    except BaseException as error:
        status = _told(error, line)
        ending.silence()
        return status


def _command(line: Sequence[str]) -> int:
    asked = bool(line)
    line = _trusting(line)
    if asked and not line:
        return 0
    if not line or line[0] in ("--help", "-h", "help"):
        print(help_text(), end="")
        return 0
    if line[0] == "--version":
        print(VERSION)
        return 0
    if line[0] in VERBS:
        return _verb(line[0], line[1:])
    if line[0].isidentifier():
        raise Refused(f"no command {line[0]}{nearest(line[0], VERBS)}: see python -m attnlab --help")
    return hydra(line)


def _told(error: BaseException, line: Sequence[str]) -> int:
    """Says on stderr why a command has ended, in a line; a bug of ours with its traceback."""
    if ending.unread(error):
        return ending.UNREAD
    if not isinstance(error, Exception):
        raise error
    complaint = explain(error, line)
    full = no_space(error)
    with suppress(OSError):  # nobody hears that either
        if complaint is None and full is None:
            print(printable(traceback.format_exc(), keep="\n\t"), end="", file=sys.stderr)
        else:
            print(f"attnlab: {printable(complaint or full or '')}", file=sys.stderr)
    return 1 if complaint is None else 2


def _trusting(line: Sequence[str]) -> list[str]:
    """The line without its `--trust MODULE`, which is remembered; alone that is a whole command."""
    rest: list[str] = []
    words = iter(line)
    for word in words:
        flag, equals, module = word.partition("=")
        if flag != "--trust":
            rest.append(word)
            continue
        from attnlab.store.guards import trust  # late: most lines have none, and a help text costs nothing

        module = module if equals else next(words, "")
        whole = module.partition(".")[0]
        if whole.isidentifier() and importlib.util.find_spec(whole) is None:  # imports nothing
            raise Refused(
                f"--trust {module}: there is no such module here: say it where `import {module}` works"
            )
        print(f"{module} is trusted from now on: {trust.trust(module)}", file=sys.stderr)
    return rest


def _verb(name: str, line: Sequence[str]) -> int:
    """Only a line that can be read has its verb imported."""
    try:
        options = parse(name, line)
    except SystemExit:  # argparse has printed the help that was asked for
        return 0
    module, _, function = VERBS[name].main.partition(":")
    with ending.nothing_to_lose(), waiting(f"loading what {name} works with"):
        main = getattr(importlib.import_module(module), function)
    return int(main(options) or 0)


def help_text() -> str:
    """The help of the whole, with the verbs and the groups of the config."""
    from attnlab.cli.verbs.list import groups

    lines = (f"  {group:15} {', '.join(options)}" for group, options in groups().items())
    return parsers(EPILOG.format(groups="\n".join(lines)))[0].format_help()
