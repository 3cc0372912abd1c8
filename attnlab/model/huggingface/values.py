"""Single values of a config from elsewhere, checked.

It is not trusted: what it puts into ours must be a number or a truth value, since a string or a mapping could
be an interpolation or a `_target_`. Words of refusal go on from the key's name.
"""

from collections.abc import Callable, Mapping
from typing import Any


def number(value: Any) -> Any:
    """`value`; ValueError where it is no finite number, as truth values and what 63 bits do not hold."""
    most = 2**63 if isinstance(value, int) else float("inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < most:
        raise ValueError(f"must be a number, not {value!r}")
    return value


def truth(value: Any) -> bool:
    """`value`; ValueError where it is neither true nor false."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def agreed(claims: Mapping[str, Any], read: Callable[[Any], Any]) -> Any:
    """What keys that mean the same thing say, key -> value; None where all are null.

    ValueError, naming the keys, where `read` refuses a value or two differ.
    """
    found: dict[str, Any] = {}
    for key, value in claims.items():
        try:
            found |= {} if value is None else {key: read(value)}
        except ValueError as error:
            raise ValueError(f"{key} {error}") from error
    first = next(iter(found), "")
    for key, value in found.items():
        if value != found[first]:
            both = f"{first} = {found[first]!r} and {key} = {value!r}"
            raise ValueError(f"{both} disagree: keep the one that the model was trained with")
    return found.get(first)
