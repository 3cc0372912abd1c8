"""Parsing of a verb's `KEY=VALUE` words, with types and one-line errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.errors import InvalidConfig, find_invalid_byte, format_suggestions


@dataclass(frozen=True)
class KeyArgument:
    """A `KEY=VALUE` argument of a verb.

    `parse_value` converts the text or raises ValueError with the requirement. A repeatable key may appear
    more than once, and its values form a list.
    """

    name: str
    description: str
    parse_value: Callable[[str], Any] = str
    default: Any = None
    is_repeatable: bool = False


def parse_text(value: str) -> str:
    """Return non-empty text."""
    if not value:
        raise ValueError("must not be empty")
    return value


def parse_unicode(value: str) -> str:
    """Return text without bytes that are not UTF-8, which Python stores as lone surrogates."""
    if invalid := find_invalid_byte(value):
        position, byte = invalid
        raise ValueError(f"byte {byte:#04x} at character {position} is not UTF-8: set the terminal to UTF-8")
    return value


def parse_integer(value: str) -> int:
    """Parse an integer."""
    try:
        return int(value)
    except ValueError:
        raise ValueError("must be an integer") from None


def parse_positive(value: str) -> int:
    """Parse an integer of at least 1."""
    if not value.isdecimal() or int(value) < 1:
        raise ValueError("must be an integer of at least 1")
    return int(value)


def parse_natural(value: str) -> int:
    """Parse an integer of at least 0."""
    if not value.isdecimal():
        raise ValueError("must be an integer of at least 0")
    return int(value)


def limit_parser(limit: int, parse_value: Callable[[str], int] = parse_positive) -> Callable[[str], int]:
    """Bound an integer parser from above: a larger value is a typing error, or would run forever."""

    def parse_bounded(value: str) -> int:
        if len(value) > 4000 or parse_value(value) > limit:
            raise ValueError(f"must be at most {limit:,}")
        return parse_value(value)

    return parse_bounded


def parse_number(value: str) -> float:
    """Parse a float."""
    try:
        return float(value)
    except ValueError:
        raise ValueError("must be a number") from None


def parse_boolean(value: str) -> bool:
    """Parse `true` or `false`."""
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into those without an equals sign and those with one."""
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def parse_known_keys(words: Sequence[str], keys: Sequence[KeyArgument]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of given or defaulted keys, and the remaining words."""
    by_name = {key.name: key for key in keys}
    values: dict[str, Any] = {}
    other_words = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in by_name:
            other_words.append(word)
            continue
        try:
            parsed_value = by_name[name].parse_value(value)
        except ValueError as error:
            raise InvalidConfig(f"{word}: {error}") from None
        if name in values and not by_name[name].is_repeatable:
            raise InvalidConfig(f"{word}: {name}= is given twice: give it once")
        values[name] = [*values.get(name, []), parsed_value] if by_name[name].is_repeatable else parsed_value
    return {key.name: key.default for key in keys if key.default is not None} | values, other_words


def parse_only_keys(verb: str, words: Sequence[str], keys: Sequence[KeyArgument]) -> dict[str, Any]:
    """Return the key values of a verb that takes no other words; InvalidConfig for any other word."""
    values, other_words = parse_known_keys(words, keys)
    if other_words:
        suggestions = format_suggestions(other_words[0].partition("=")[0], [key.name for key in keys])
        raise InvalidConfig(
            f"{verb}: unknown word {other_words[0]!r}{suggestions}: see python -m attnlab {verb} --help"
        )
    return values


def format_key_table(keys: Sequence[KeyArgument]) -> str:
    """Format one help line per key."""
    width = max(len(key.name) for key in keys) + 1
    lines = []
    for key in keys:
        default_text = ", ".join(key.default) if key.is_repeatable else key.default
        default_note = "" if key.default is None else f" (default {default_text})"
        lines.append(f"  {key.name + '=':{width}}  {key.description}{default_note}")
    return "\n".join(lines)
