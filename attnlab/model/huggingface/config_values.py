"""Validation of single values in a foreign config.

The config is not trusted: only numbers and booleans may enter our config, because a string or a mapping could
be an interpolation or a `_target_`. Error messages continue after the key's name.
"""

from collections.abc import Callable, Mapping
from typing import Any


def require_number(value: Any) -> Any:
    """Return `value`; ValueError for booleans, integers beyond 63 bits and anything but a finite number."""
    limit = 2**63 if isinstance(value, int) else float("inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < limit:
        raise ValueError(f"must be a number, not {value!r}")
    return value


def require_integer(value: Any) -> int:
    """Return `value`; ValueError for anything but an integer of at most 63 bits."""
    if not isinstance(require_number(value), int):
        raise ValueError(f"must be an integer, not {value!r}")
    return int(value)


def require_bool(value: Any) -> bool:
    """Return `value`; ValueError for anything but true and false."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def require_agreement(values: Mapping[str, Any], read: Callable[[Any], Any]) -> Any:
    """Return the common value of synonymous keys (key -> value); None if all are null.

    Raises:
        ValueError: `read` rejects a value, or two values differ. The message names the keys.
    """
    results: dict[str, Any] = {}
    for key, value in values.items():
        try:
            results |= {} if value is None else {key: read(value)}
        except ValueError as error:
            raise ValueError(f"{key} {error}") from error
    first = next(iter(results), "")
    for key, value in results.items():
        if value != results[first]:
            conflict = f"{first} = {results[first]!r} and {key} = {value!r}"
            raise ValueError(f"{conflict} disagree: keep the one that the model was trained with")
    return results.get(first)
