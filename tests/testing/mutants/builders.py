"""Builders of mutants: shipped parts in small sizes, with one or two custom parts."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from attnlab import testing
from attnlab.testing import Variant

VariantFactory = Callable[[], Variant]


def make_function_node(function: Callable) -> dict[str, Any]:
    """Make a config node that resolves to this function."""
    return {"_target_": "hydra.utils.get_method", "path": _get_dotted_name(function)}


def make_object_node(maker: Callable, **options: Any) -> dict[str, Any]:
    """Make a config node that calls this class or function."""
    return {"_target_": _get_dotted_name(maker), **options}


def make_partial_node(cache: Callable) -> dict[str, Any]:
    """Make a config node that resolves to a factory of such caches."""
    return make_object_node(cache, _partial_=True)


def make_attention_factory(
    axes: Mapping[str, str] | None = None,
    cache: Mapping[str, Any] | None = None,
    positions: Mapping[str, Any] | None = None,
    **parts: Any,
) -> VariantFactory:
    """Combine the shipped values of `axes` with these parts, this cache and these position embeddings.

    The variants have no `choices`, since a user's config names no shipped axis values.
    """

    def make() -> Variant:
        variant = testing.combine_choices(**(axes or {})).with_changes(**parts)
        return dataclasses.replace(
            variant,
            name="own",
            positions=positions or variant.positions,
            cache=cache or variant.cache,
            choices=frozenset(),
            length=0,
        )

    return make


def make_mixer_factory(maker: Callable, cached: bool = True, **options: Any) -> VariantFactory:
    """Make a factory of a mixer, decoded with a dynamic cache or not at all."""
    cache_argument = {} if cached else {"cache": None}
    return lambda: Variant("own", make_object_node(maker, **options), **cache_argument)


def _get_dotted_name(target: Callable) -> str:
    return f"{target.__module__}.{target.__qualname__}"
