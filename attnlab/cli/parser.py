"""argparse for verbs: one-line errors, and flags at any position."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from attnlab import __version__
from attnlab.cli.kv_args import KeyArgument
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
            raise InvalidConfig(
                f"{self.verb_name}: unknown flag {unknown_words[0]}{suggestions}: see {self.prog} --help"
            )
        return options


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
