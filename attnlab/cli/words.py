"""The `KEY=VALUE` words of a verb: known keys with their types, one line for what is none of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.errors import Refused, nearest


@dataclass(frozen=True)
class Key:
    """A word that a verb knows. `kind` makes a value of its text, or raises ValueError: what it must be.

    With `many` it may be given more than once, and its values are a list.
    """

    name: str
    says: str
    kind: Callable[[str], Any] = str
    default: Any = None
    many: bool = False


def text(value: str) -> str:
    """Some text."""
    if not value:
        raise ValueError("it must not be empty")
    return value


def whole(value: str) -> int:
    """A whole number."""
    try:
        return int(value)
    except ValueError:
        raise ValueError("it must be a whole number") from None


def positive(value: str) -> int:
    """A whole number of at least 1."""
    if not value.isdecimal() or int(value) < 1:
        raise ValueError("it must be a whole number of at least 1")
    return int(value)


def natural(value: str) -> int:
    """A whole number of at least 0."""
    if not value.isdecimal():
        raise ValueError("it must be a whole number of at least 0")
    return int(value)


def at_most(limit: int, kind: Callable[[str], int] = positive) -> Callable[[str], int]:
    """A kind of whole number that has an end: more of it is a slip, or would never end."""

    def bounded(value: str) -> int:
        if len(value) > 4000 or kind(value) > limit:
            raise ValueError(f"it must be at most {limit:,}")
        return kind(value)

    return bounded


def number(value: str) -> float:
    """Any number."""
    try:
        return float(value)
    except ValueError:
        raise ValueError("it must be a number") from None


def flag(value: str) -> bool:
    """`true` or `false`."""
    if value.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return value.lower() == "true"


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without an equals sign, and those with one."""
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def known(words: Sequence[str], keys: Sequence[Key]) -> tuple[dict[str, Any], list[str]]:
    """The values of the keys that are given or have a default, and the words that are none of them."""
    by_name = {key.name: key for key in keys}
    values: dict[str, Any] = {}
    others = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in by_name:
            others.append(word)
            continue
        try:
            given = by_name[name].kind(value)
        except ValueError as error:
            raise Refused(f"{word}: {error}") from None
        if name in values and not by_name[name].many:
            raise Refused(f"{word}: {name}= is given twice, name it once")
        values[name] = [*values.get(name, []), given] if by_name[name].many else given
    return {key.name: key.default for key in keys if key.default is not None} | values, others


def read(verb: str, words: Sequence[str], keys: Sequence[Key]) -> dict[str, Any]:
    """The values of a verb that takes its keys and nothing else."""
    values, others = known(words, keys)
    if others:
        near = nearest(others[0].partition("=")[0], [key.name for key in keys])
        raise Refused(f"{verb} does not know {others[0]!r}{near}: see python -m attnlab {verb} --help")
    return values


def table(keys: Sequence[Key]) -> str:
    """A line for each key, as a help text has them."""
    width = max(len(key.name) for key in keys) + 1
    lines = []
    for key in keys:
        shown = ", ".join(key.default) if key.many else key.default
        default = "" if key.default is None else f" (default {shown})"
        lines.append(f"  {key.name + '=':{width}}  {key.says}{default}")
    return "\n".join(lines)
