"""A config's values against the signatures of what they are handed to: `_target_` and its annotations are the
schema of a node.

A parameter without an annotation, or with one that means nothing here, takes anything.
"""

import collections.abc
import inspect
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin

from omegaconf import OmegaConf
from torch import nn

from attnlab.model.build import MIXERS, mixer_configs
from attnlab.store.fingerprint import GETTERS
from attnlab.store.values import LARGEST, shown
from attnlab.training.targets import located

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
_LISTS = (collections.abc.Sequence, collections.abc.Iterable, list, tuple)
_PARTS = ("attnlab", "pytorch_lightning", "lightning_fabric")  # what their classes are is known
_MAPPINGS = (collections.abc.Mapping, dict)


def check(config: Mapping[str, Any]) -> None:
    """ValueError, one line with the key, for the first value that its constructor does not take."""
    for key, node in _nodes(config):
        _check(node, key, {})


def _nodes(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, node in config.items():
        if key == "model" and isinstance(node, Mapping):
            yield key, {name: value for name, value in node.items() if name not in MIXERS}
            where = "model.mixer" if node.get("mixer") else "model.attention"
            for mixer in mixer_configs(config):
                yield where, OmegaConf.to_container(mixer) if OmegaConf.is_config(mixer) else mixer
        else:
            yield key, node


def _check(node: Any, path: str, more: Mapping[str, Any]) -> None:
    """`more`: annotations of keys that the node's own target hands on."""
    if isinstance(node, Mapping):
        target = node.get("_target_")
        if isinstance(target, str) and not target.startswith(GETTERS):
            takes = {**_handed_on(node), **more, **annotations(located(target))}
            for key, value in node.items():
                if key in takes and not fits(value, takes[key]):
                    raise ValueError(f"{path}.{key}={shown(value)}: it must be {words(takes[key])}")
        for key, value in node.items():
            _check(value, f"{path}.{key}", {})
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            _check(value, f"{path}[{i}]", {})


def _handed_on(node: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations of what a part of the node is given by it: a data module's settings are its task's."""
    task = node.get("task")
    if isinstance(task, Mapping) and isinstance(task.get("_target_"), str) and task.get("_partial_"):
        return dict(annotations(located(task["_target_"])))
    return {}


@cache
def annotations(target: Any) -> Mapping[str, Any]:
    """Parameter -> annotation of what a class or function takes; of a function that hands `**options` on,
    also those of the class that it returns.
    """
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # built in: it does not say
        return {}
    written: Any = target
    try:
        hints = typing.get_type_hints(written.__init__ if isinstance(target, type) else target)
    except Exception:  # names that are there for a type checker alone
        hints = {}
    takes = {name: hints[name] for name, one in parameters.items() if name in hints and _named(one)}
    hands_on = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    made: Any = hints.get("return")
    return {**annotations(made), **takes} if hands_on and _is_made(made, None) else takes


def _named(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def fits(value: Any, hint: Any) -> bool:
    """Whether a config's value is what an annotation asks for; what a `_target_` makes may be anything."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object or (isinstance(value, Mapping) and "_target_" in value):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is typing.Annotated or origin is typing.Final:
        return fits(value, inner[0])
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if hint is int:
        return type(value) is int and -(2**63) <= value < 2**63
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value) and abs(value) <= LARGEST
    if hint in (bool, str, type(None)) or hint is None:
        return value is None if hint in (None, type(None)) else type(value) is hint
    if hint in _LISTS or origin in _LISTS:
        return isinstance(value, list | tuple) and _elements_fit(value, origin, inner)
    if hint in _MAPPINGS or origin in _MAPPINGS:
        return isinstance(value, Mapping) and (
            len(inner) < 2 or all(one is None or fits(one, inner[1]) for one in value.values())
        )
    return not _is_made(hint, origin)


def _elements_fit(value: Sequence[Any], origin: Any, inner: tuple[Any, ...]) -> bool:
    if origin is tuple and not (len(inner) == 2 and inner[1] is Ellipsis):
        return len(value) == len(inner) and all(map(fits, value, inner))
    return not inner or all(fits(one, inner[0]) for one in value)


def _is_made(hint: Any, origin: Any) -> bool:
    """Whether no plain value is such a thing: a function, a class, a module, a part with a contract."""
    if origin in (collections.abc.Callable, type):
        return True
    known = isinstance(hint, type) and hint.__module__.partition(".")[0] in _PARTS
    return known or (isinstance(hint, type) and issubclass(hint, nn.Module))


def words(hint: Any) -> str:
    """An annotation in words, as a refusal says it."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _WORDS:
        return f"{_WORDS[hint]} that is not too large" if hint in (int, float) else _WORDS[hint]
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(dict.fromkeys(words(one) for one in inner))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if hint in _LISTS or origin in _LISTS:
        length = f" of {len(inner)}" if origin is tuple and Ellipsis not in inner else ""
        return f"a list{length}"
    if hint in _MAPPINGS or origin in _MAPPINGS:
        return "a mapping of names"
    return "{_target_: package.module.Class, ...}"
