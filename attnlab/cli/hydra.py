"""The line that is Hydra's: every command passes through attnlab's sweeper, and errors become one line."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from attnlab.cli.ending import nothing_to_lose, unread
from attnlab.config import CONF, register_resolvers
from attnlab.errors import Refused, nearest

_TO_RUN = ("--multirun", "-m", "--run", "-r")
_TO_SHOW = ("--cfg", "-c", "--info", "-i", "--shell-completion", "-sc", "--hydra-help")
_WITH_VALUE = (
    "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--package", "-p",
    "--experimental-rerun",
)  # fmt: skip
FLAGS = (*_TO_RUN, *_TO_SHOW, *_WITH_VALUE, "--help", "-h", "--version", "--resolve")


def hydra(line: Sequence[str]) -> int:
    """Hand the line to Hydra, as a multirun unless it asks for something else."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come up here; explain() makes one line of them
    with nothing_to_lose():
        import hydra as hydra_package

        from attnlab.sweep.execute.hydra_job import run
        from attnlab.sweep.plan import config_files, overrides
        from attnlab.sweep.plan.composer import refuse_mixtures

    flags = {word.split("=")[0] for word in line}
    _refuse_unknown_flags(line)
    register_resolvers()
    folders = config_dirs(line)
    if not flags & {"--shell-completion", "-sc"}:  # its line is not whole
        given = overrides.parse(_overrides(line))
        folders += config_files.folders_named(given)
        refuse_mixtures(given, lambda group: any((folder / group).is_dir() for folder in folders))
    config_files.register(folders[1:])
    other = flags & {*_TO_RUN, *_TO_SHOW, "hydra.mode"}
    sys.argv = [sys.argv[0], *line] if other else [sys.argv[0], "--multirun", *line]
    try:
        hydra_package.main(config_path=str(CONF), config_name="config", version_base="1.3")(run)()
    except SystemExit as exit_:
        if unread(exit_):
            raise
        return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 2
    return 0


def _overrides(line: Sequence[str]) -> list[str]:
    """The words of a line that are neither a flag nor the value of one."""
    return [
        word
        for before, word in zip(["", *line], line, strict=False)
        if before not in _WITH_VALUE and not word.startswith("-") and (word[:1] == "~" or "=" in word)
    ]


def _refuse_unknown_flags(line: Sequence[str]) -> None:
    """argparse would answer with the whole usage of Hydra; it takes a flag that is begun, too."""
    for flag in (word.partition("=")[0] for word in line if word.startswith("--")):
        if not any(one.startswith(flag) for one in FLAGS):
            near = nearest(flag, [*FLAGS, "--trust"])
            raise Refused(f"no flag {flag}{near}; see python -m attnlab --help")


def handed_on(options: argparse.Namespace) -> list[str]:
    """The flags of a verb's line that are Hydra's own, to stand first: Hydra wants its overrides in a row."""
    flags = ("config_dir", "config_path", "config_name")
    given = {flag: getattr(options, flag) for flag in flags if getattr(options, flag) is not None}
    return [word for flag, value in given.items() for word in (f"--{flag.replace('_', '-')}", value)]


def explain(error: Exception, line: Sequence[str]) -> str | None:
    """One line for what a user can mend; None for a bug of ours, which deserves its traceback."""
    if isinstance(error, Refused):
        return str(error)
    if type(error).__module__.split(".")[0] in ("hydra", "omegaconf", "antlr4"):
        from attnlab.cli.hydra_errors import one_line

        return one_line(error, config_dirs(line))
    if type(error).__module__.split(".")[0] == "yaml":  # of a folder that a config adds to the search path
        return f"not YAML: {' '.join(str(error).split())}"
    if isinstance(error, ModuleNotFoundError) and error.name and _raised_in(error, ("attnlab",)):
        missing = error.name.partition(".")[0]
        return (
            f"{missing} is not installed for {sys.executable}: use the Python that attnlab is installed in "
            "(after `make experiment`: . .venv/bin/activate), or pip install it"
        )
    if isinstance(error, ValueError) and _raised_in(error, ("attnlab", "hydra")):
        return " ".join(str(error).split())
    return None


def _raised_in(error: Exception, packages: Sequence[str]) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(package in Path(frames[-1].filename).parts for package in packages)


def config_dirs(line: Sequence[str]) -> list[Path]:
    """Where the command takes its config groups from: attnlab's (or --config-path), and --config-dir."""
    folders = {"--config-path": CONF, "--config-dir": None}
    short = {"-cp": "--config-path", "-cd": "--config-dir"}
    for word, after in zip(line, [*line[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        flag = short.get(flag, flag)
        if flag in folders:
            folders[flag] = Path(value if equals else after)
    return [folder for folder in folders.values() if folder is not None]
