"""argparse for verbs: one-line errors, and flags at any position."""

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from attnlab import __version__
from attnlab.cli.kv_args import KeyArgument
from attnlab.config import CONF
from attnlab.errors import InvalidConfig, format_suggestions

PROGRAM = "python -m attnlab"
VERSION = f"attnlab {__version__}"


class VerbParser(argparse.ArgumentParser):
    """An ArgumentParser that raises InvalidConfig instead of exiting."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)
        self.add_argument("--version", action="version", version=VERSION, help="print the version and exit")

    @property
    def verb_name(self) -> str:
        return self.prog.removeprefix(PROGRAM).strip()

    def list_flags(self) -> list[str]:
        """List the long options (`--name`)."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        raise InvalidConfig(f"{self.verb_name}: {message}: see {self.prog} --help")

    def parse_line(self, line: Sequence[str]) -> argparse.Namespace:
        """Parse a line; raise InvalidConfig with suggestions for an unknown flag."""
        options, unknown_words = self.parse_known_intermixed_args(list(line))
        if unknown_words:
            actions = [action for action in self._actions if action.dest != "help"]
            flags = [name for action in actions for name in action.option_strings]
            suggestions = format_suggestions(unknown_words[0].partition("=")[0], flags)
            if {"words", "config_dir"} <= {action.dest for action in actions}:  # the verb composes overrides
                suggestions = format_override_hint(line, unknown_words[0]) or suggestions
            raise InvalidConfig(
                f"{self.verb_name}: unknown flag {unknown_words[0]}{suggestions}: see {self.prog} --help"
            )
        return options


def format_override_hint(line: Sequence[str], flag: str) -> str:
    """Format `: write size=debug` for the flag `--size` of a line; empty if the config has no such key."""
    import yaml  # late imports keep the help fast

    from attnlab.cli.verbs.list import list_groups
    from attnlab.store.experiment_schema import Experiment

    roots = {*yaml.safe_load((CONF / "config.yaml").read_text("utf-8")), *list_groups(), "experiment"}
    name, equals, value = flag.removeprefix("--").partition("=")
    if not flag.startswith("--") or name.partition(".")[0] not in roots | {*Experiment.model_fields}:
        return ""
    if not equals:
        value = next(iter(line[line.index(flag) + 1 :]), "VALUE")
    key = f"+{name}" if name == "experiment" else name
    return f": write {shlex.quote(f'{key}={value}')}"


@dataclass(frozen=True)
class Verb:
    """A verb: `entry_point` is `module:function`, called with the options; `summary` is its help line."""

    entry_point: str
    summary: str
    usage: str
    examples: tuple[str, ...]
    add_arguments: Callable[[VerbParser], None]
    keys: tuple[KeyArgument, ...] = ()
    details: str = ""  # paragraphs that the help adds to `summary`
    input_key: str | None = None  # the required key of a verb on a trained model, as in `prompt`
    accepts_overrides: bool = False  # whether the verb also takes overrides
