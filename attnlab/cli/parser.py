"""What a verb's line is read with: argparse, with errors of one line, and flags at any place."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from attnlab import __version__
from attnlab.cli.words import Key
from attnlab.errors import Refused, nearest

PROGRAM = "python -m attnlab"
VERSION = f"attnlab {__version__}"


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors are Refused."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)
        self.add_argument("--version", action="version", version=VERSION, help="attnlab's, and leave")

    @property
    def verb(self) -> str:
        return self.prog.removeprefix(PROGRAM).strip()

    def flags(self) -> list[str]:
        """What begins with two dashes."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{self.verb}: {message}; see {self.prog} --help")

    def read(self, line: Sequence[str]) -> argparse.Namespace:
        """The options of a line; a flag that is unknown is refused with those that come near."""
        options, others = self.parse_known_intermixed_args(list(line))
        if others:
            known = [action for action in self._actions if action.dest != "help"]
            flags = [name for action in known for name in action.option_strings]
            near = nearest(others[0].partition("=")[0], flags)
            raise Refused(f"{self.verb} does not know {others[0]}{near}; see {self.prog} --help")
        return options


@dataclass(frozen=True)
class Verb:
    """`main` is `module:function` and takes the options; `says` is a line for the list of verbs."""

    main: str
    says: str
    usage: str
    examples: tuple[str, ...]
    declare: Callable[[Parser], None]
    keys: tuple[Key, ...] = ()
    more: str = ""  # what the help adds to `says`
    reads: str | None = None  # the key of what a trained model is given
    overrides: bool = False  # whether words that are none of the keys are for the verb to read
