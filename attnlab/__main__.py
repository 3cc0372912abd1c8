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

from attnlab.config import CONF, register_resolvers
from attnlab.errors import Refused, nearest

# verb -> where it lives, what it does. A verb whose module is absent does not exist.
VERBS = {
    "list": ("attnlab.sweep.listing:main", "the experiments and what they cost; the values of every axis"),
    "plan": ("attnlab.__main__:plan", "what a command would train, with figures, and what is done already"),
    "status": ("attnlab.__main__:status", "where the runs of a command stand now; --watch until they end"),
    "compare": (
        "attnlab.sweep.compare:main",
        "arms from the command line, as in compare heads=mha heads=gqa",
    ),
    "clean": ("attnlab.sweep.clean:main", "the store's size; removes what nothing refers to, after asking"),
    "report": (
        "attnlab.__main__:report",
        "render a report again from its FOLDER; --diff A B compares two; --ledger FOLDER lists their claims",
    ),
    "claims": (
        "attnlab.sweep.standing:main",
        "run again what reference reports found, and fail where it is not so",
    ),
    "inspect": ("attnlab.inspection:main", "where a trained model looks in a text of yours"),
    "check": ("attnlab.check:main", "run the conformance laws over the shipped variants, or over your own"),
    "generate": ("attnlab.generate:main", "what a trained model writes after a prompt, as it writes it"),
    "bench": ("attnlab.bench:main", "decode, train, attention or memory, side by side; --json"),
}
_HYDRAS_OWN = (
    "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc", "--hydra-help", "--version", "--multirun",
    "-m", "--run", "-r",
)  # fmt: skip

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
    home = Path(__file__).parent.parent

    def exists(where: str) -> bool:
        module = home / where.partition(":")[0].replace(".", "/")
        return module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()

    return {verb: told for verb, told in VERBS.items() if exists(told[0])}


def help_text() -> str:
    from attnlab.sweep.listing import groups

    found = groups()
    lines = {verb: told for verb, (_, told) in verbs().items()}
    return HELP.format(
        verbs="\n".join(f"  python -m attnlab {verb:8} {told}" for verb, told in lines.items()),
        groups="\n".join(f"  {group:15} {', '.join(options)}" for group, options in found.items()),
    )


def plan(arguments: Sequence[str]) -> int:
    """The plan of a command, with nothing trained."""
    return _show("plan", arguments)


def status(arguments: Sequence[str]) -> int:
    """How the runs of a command stand now; `--watch` until all have ended."""
    watch = "--watch" in arguments
    return _show("watch" if watch else "status", [word for word in arguments if word != "--watch"])


def _show(kind: str, arguments: Sequence[str]) -> int:
    if not arguments:
        raise Refused(f"{kind} what? As in: python -m attnlab {kind} +experiment=NAME")
    overrides = (i for i, word in enumerate(arguments) if "=" in word and not word.startswith("-"))
    at = next(overrides, len(arguments))  # argparse wants overrides in a row
    return hydra([*arguments[:at], f"++sweep.show={kind}", *arguments[at:]])


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


def hydra(line: Sequence[str]) -> int:
    """Hand the line to Hydra, as a multirun unless it asks for something else."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come up here; explain() makes one line of them
    import hydra as hydra_package

    from attnlab.sweep.task import run

    register_resolvers()
    other = any(word.split("=")[0] in (*_HYDRAS_OWN, "hydra.mode") for word in line)
    sys.argv = [sys.argv[0], *line] if other else [sys.argv[0], "--multirun", *line]
    try:
        hydra_package.main(config_path=str(CONF), config_name="config", version_base="1.3")(run)()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 2
    return 0


def explain(error: Exception, line: Sequence[str]) -> str | None:
    """One line for what a user can mend; None for a bug of ours, which deserves its traceback."""
    if isinstance(error, Refused):
        return str(error)
    if type(error).__module__.split(".")[0] in ("hydra", "omegaconf", "antlr4"):
        from attnlab.sweep.complaint import complaint

        return complaint(error, config_dirs(line))
    if isinstance(error, ValueError) and _raised_in(error, ("attnlab", "hydra")):
        return " ".join(str(error).split())
    return None


def _raised_in(error: Exception, packages: Sequence[str]) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(package in Path(frames[-1].filename).parts for package in packages)


def config_dirs(line: Sequence[str]) -> list[Path]:
    """Where the command takes its config groups from: attnlab's (or --config-path), and --config-dir."""
    found = {"--config-path": CONF, "--config-dir": None}
    short = {"-cp": "--config-path", "-cd": "--config-dir"}
    for word, after in zip(line, [*line[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        flag = short.get(flag, flag)
        if flag in found:
            found[flag] = Path(value if equals else after)
    return [folder for folder in found.values() if folder is not None]


if __name__ == "__main__":
    sys.exit(main())
