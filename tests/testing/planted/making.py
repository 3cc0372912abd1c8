"""How the zoo makes its variants: shipped parts in small sizes, and one or two of its own among them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from attnlab import testing
from attnlab.testing import Variant

Make = Callable[[], Variant]


def found(function: Callable) -> dict[str, Any]:
    """A config node that gives this function itself."""
    return {"_target_": "hydra.utils.get_method", "path": _dotted(function)}


def made(maker: Callable, **options: Any) -> dict[str, Any]:
    """A config node that calls this class or function."""
    return {"_target_": _dotted(maker), **options}


def anew(cache: Callable) -> dict[str, Any]:
    """A config node that gives a function which makes such a cache."""
    return made(cache, _partial_=True)


def attention(
    axes: Mapping[str, str] | None = None,
    cache: Mapping[str, Any] | None = None,
    positions: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Make:
    """The shipped values of `axes`, with these parts of the layer, this cache and these embedded positions in
    their places. The kit is told no axis values: a stranger's config names none that it knows.
    """

    def make() -> Variant:
        shipped = testing.combination(**(axes or {})).but(**parts)
        return dataclasses.replace(
            shipped,
            name="own",
            positions=positions or shipped.positions,
            cache=cache or shipped.cache,
            choices=frozenset(),
            length=0,
        )

    return make


def mixer(maker: Callable, cached: bool = True, **options: Any) -> Make:
    """A whole mixer, decoded with a growing cache or not at all."""
    kept = {} if cached else {"cache": None}
    return lambda: Variant("own", made(maker, **options), **kept)


def _dotted(thing: Callable) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
