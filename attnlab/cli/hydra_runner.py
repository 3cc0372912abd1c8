"""Run overrides through Hydra and attnlab's sweeper, and reduce errors to one line."""

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from attnlab.cli.exit_handling import exit_on_interrupt, is_broken_pipe
from attnlab.cli.parser import format_override_hint
from attnlab.config import CONF, register_resolvers
from attnlab.errors import InvalidConfig, describe_exit, describe_path_error, format_suggestions

_RUN_FLAGS = ("--multirun", "-m", "--run", "-r")
_INFO_FLAGS = ("--cfg", "-c", "--info", "-i", "--shell-completion", "-sc", "--hydra-help")
_VALUE_FLAGS = (
    "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--package", "-p",
    "--experimental-rerun",
)  # fmt: skip
_FLAG_CHOICES = {"--cfg": ("job", "hydra", "all"), "-c": ("job", "hydra", "all")}
HYDRA_FLAGS = (*_RUN_FLAGS, *_INFO_FLAGS, *_VALUE_FLAGS, "--help", "-h", "--version", "--resolve")


def run_hydra(line: Sequence[str]) -> int:
    """Pass the line to Hydra as a multirun, unless a flag selects another mode."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let exceptions propagate to explain_error()
    with exit_on_interrupt():
        import hydra as hydra_package

        from attnlab.sweep.execute.hydra_job import run_job
        from attnlab.sweep.plan import config_files, overrides
        from attnlab.sweep.plan.composer import reject_option_lists

    flag_words, override_words = _split_line(line)
    flags = {word.split("=")[0] for word in line}
    _reject_unknown_flags(line)
    register_resolvers()
    folders = list_config_dirs(line)
    if not flags & {"--shell-completion", "-sc"}:  # its line is incomplete
        parsed_overrides = overrides.parse_overrides(override_words)
        folders += config_files.list_searchpath_folders(parsed_overrides)
        reject_option_lists(
            parsed_overrides, lambda group: any((folder / group).is_dir() for folder in folders)
        )
    config_files.register_config_source(folders[1:], folders[0])
    mode_flags = flags & {*_RUN_FLAGS, *_INFO_FLAGS, "hydra.mode"}
    # Hydra's parser accepts overrides only in one piece
    sys.argv = [sys.argv[0], *([] if mode_flags else ["--multirun"]), *flag_words, *override_words]
    try:
        hydra_package.main(config_path=str(CONF), config_name="config", version_base="1.3")(run_job)()
    except SystemExit as exit_error:
        if is_broken_pipe(exit_error):
            raise
        return exit_error.code if isinstance(exit_error.code, int) else 0 if exit_error.code is None else 2
    finally:
        config_files.register_config_source()  # another command of this process has other folders
    return 0


def _split_line(line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a line into flags with their values, and overrides."""
    flags: list[str] = []
    overrides: list[str] = []
    for previous_word, word in zip(["", *line], line, strict=False):
        is_value = previous_word in _VALUE_FLAGS or (
            previous_word in _INFO_FLAGS and word[:1] != "~" and "=" not in word
        )
        (flags if word.startswith("-") or is_value else overrides).append(word)
    return flags, overrides


def _reject_unknown_flags(line: Sequence[str]) -> None:
    """Raise InvalidConfig for an unknown flag or value; prefixes of long flags are valid, as in argparse.

    argparse itself would print Hydra's whole usage.
    """
    for word, next_word in zip(line, [*line[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        value = value if equals else next_word
        if value not in (choices := _FLAG_CHOICES.get(flag, (value,))):
            raise InvalidConfig(f"{flag} {value}: must be one of {', '.join(choices)}")
    for word in (word for word in line if word.startswith("-") and word != "-"):
        flag = word.partition("=")[0]
        is_prefix = flag.startswith("--") and any(known.startswith(flag) for known in HYDRA_FLAGS)
        if not is_prefix and flag not in HYDRA_FLAGS:
            suggestions = format_override_hint(line, word)
            suggestions = suggestions or format_suggestions(flag, [*HYDRA_FLAGS, "--trust"])
            raise InvalidConfig(f"unknown flag {flag}{suggestions}: see python -m attnlab --help")


def extract_hydra_flags(options: argparse.Namespace) -> list[str]:
    """Format the flags of a verb that Hydra parses, to precede the overrides, which must be contiguous."""
    flags = ("config_dir", "config_path", "config_name")
    values = {flag: value for flag in flags if (value := getattr(options, flag, None)) is not None}
    return [word for flag, value in values.items() for word in (f"--{flag.replace('_', '-')}", value)]


def explain_error(error: BaseException, line: Sequence[str]) -> str | None:
    """Format an error that the user can fix as one line; None for a bug, which keeps its traceback."""
    if isinstance(error, SystemExit):
        return describe_exit(error)
    if isinstance(error, InvalidConfig):
        return str(error)
    if type(error).__module__.split(".")[0] in ("hydra", "omegaconf", "antlr4"):
        from attnlab.cli.hydra_errors import format_hydra_error

        return format_hydra_error(error, list_config_dirs(line))
    if type(error).__module__.split(".")[0] == "yaml":  # in a folder that a config adds to the search path
        return f"invalid YAML: {' '.join(str(error).split())}"
    if isinstance(error, ModuleNotFoundError) and error.name and _is_raised_in(error, ("attnlab",)):
        missing = error.name.partition(".")[0]
        return (
            f"{missing} is not installed for {sys.executable}: use the Python environment of "
            "attnlab (after `make experiment`: . .venv/bin/activate), or pip install it"
        )
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = Path(str(error.filename)).name
        return f"{name[:40]}...: a name of {len(name)} characters is too long for a file: use a shorter one"
    if isinstance(error, OSError) and (message := describe_path_error(error)):
        return message
    if isinstance(error, ValueError) and str(error) == "embedded null byte":  # by Python's file functions
        return "a path has a zero byte: remove it"
    if isinstance(error, ValueError) and _is_raised_in(error, ("attnlab", "hydra")):
        return " ".join(str(error).split())
    if isinstance(error, RuntimeError) and _is_raised_in(error, ("hydra",)):
        return f"{' '.join(str(error).split())}: check the overrides of hydra"
    return None


def _is_raised_in(error: BaseException, packages: Sequence[str]) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(package in Path(frames[-1].filename).parts for package in packages)


def list_config_dirs(line: Sequence[str]) -> list[Path]:
    """List the folders of config groups: attnlab's own (or --config-path), then --config-dir."""
    folders = {"--config-path": CONF, "--config-dir": None}
    short = {"-cp": "--config-path", "-cd": "--config-dir"}
    for word, next_word in zip(line, [*line[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        flag = short.get(flag, flag)
        if flag in folders:
            folders[flag] = Path(value if equals else next_word)
    return [folder for folder in folders.values() if folder is not None]
