"""The one entry: `python -m attnlab +experiment=NAME`, and the verbs. Everything else on the line is Hydra's.

Exit status: 0 done, whatever the verdict; 1 a run failed; 2 nothing was started; 130 and 143 interrupted.
Surprising: Hydra is always asked for a multirun, so that every command passes through attnlab's sweeper.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from attnlab.cli.hydra import explain, hydra
from attnlab.errors import Refused, nearest

# verb -> where it lives, what it does. A verb whose module is absent does not exist.
VERBS = {
    "list": ("attnlab.cli.verbs.list:main", "the experiments and what they cost; the values of every axis"),
    "plan": (
        "attnlab.cli.verbs.plan:plan",
        "what a command would train, with figures, and what is done already",
    ),
    "status": (
        "attnlab.cli.verbs.plan:status",
        "where the runs of a command stand now; --watch until they end",
    ),
    "compare": (
        "attnlab.cli.verbs.compare:main",
        "arms from the command line, as in compare heads=mha heads=gqa",
    ),
    "clean": (
        "attnlab.cli.verbs.clean:main",
        "the store's size; removes what nothing refers to, after asking",
    ),
    "report": (
        "attnlab.cli.verbs.report:report",
        "render a report again from its FOLDER; --diff A B compares two; --ledger FOLDER lists their claims",
    ),
    "claims": (
        "attnlab.cli.verbs.claims:main",
        "run again what reference reports found, and fail where it is not so",
    ),
    "inspect": ("attnlab.cli.verbs.inspect:main", "where a trained model looks in a text of yours"),
    "check": (
        "attnlab.cli.verbs.check:main",
        "run the conformance laws over the shipped variants, or over your own",
    ),
    "generate": (
        "attnlab.cli.verbs.generate:main",
        "what a trained model writes after a prompt, as it writes it",
    ),
    "bench": ("attnlab.cli.bench:main", "decode, train, attention or memory, side by side; --json"),
}


HELP = """\
attnlab: experiments on attention. One command trains all arms over all seeds and writes a report.

  python -m attnlab +experiment=NAME                  run an experiment; the same command again carries on
  python -m attnlab +experiment=NAME size=S seed=0,1  at another size, with other seeds
  python -m attnlab +experiment=NAME arms=[mha,gqa]   some of its arms
  python -m attnlab heads=gqa position=rope           one run, stored like any other
  python -m attnlab --cfg job +experiment=NAME        print the composed config
  python -m attnlab --config-dir DIR heads=mine       with config groups of your own

Commands:
{verbs}

Groups (GROUP=OPTION; any key of the config can be set as KEY=VALUE, KEY=A,B sweeps):
{groups}

Hydra's own flags work as everywhere: --hydra-help lists them.
Exit status: 0 done, 1 a run failed, 2 nothing was started, 130 and 143 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit status."""
    line = list(sys.argv[1:] if arguments is None else arguments)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the installed script finds a user's modules as `python -m` does
    try:
        if not line or line[0] in ("--help", "-h", "help"):
            print(help_text())
            return 0
        if line[0] in verbs():
            module, _, function = verbs()[line[0]][0].partition(":")
            return int(getattr(importlib.import_module(module), function)(line[1:]) or 0)
        if line[0].isidentifier():
            raise Refused(f"no command {line[0]}{nearest(line[0], verbs())}: see python -m attnlab --help")
        return hydra(line)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        told = explain(error, line)
        if told is None:
            traceback.print_exc()
            return 1
        print(f"attnlab: {told}", file=sys.stderr)
        return 2


def verbs() -> dict[str, tuple[str, str]]:
    """The verbs whose modules exist, found without importing them."""
    home = Path(__file__).parents[2]

    def exists(where: str) -> bool:
        module = home / where.partition(":")[0].replace(".", "/")
        return module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()

    return {verb: told for verb, told in VERBS.items() if exists(told[0])}


def help_text() -> str:
    from attnlab.cli.verbs.list import groups

    found = groups()
    lines = {verb: told for verb, (_, told) in verbs().items()}
    return HELP.format(
        verbs="\n".join(f"  python -m attnlab {verb:8} {told}" for verb, told in lines.items()),
        groups="\n".join(f"  {group:15} {', '.join(options)}" for group, options in found.items()),
    )
