"""Checks the values of a config against the annotations of the constructors that take them, with pydantic.

A parameter without an annotation, or with one that pydantic has no rule for, takes anything.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from omegaconf import OmegaConf
from pydantic import Field, PlainValidator, Strict, TypeAdapter, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError
from torch import nn

from attnlab.model.build import MIXERS, mixer_configs
from attnlab.store.fingerprint import GETTERS
from attnlab.store.values import LARGEST, shown
from attnlab.training.targets import located

_PARTS = ("attnlab", "pytorch_lightning", "lightning_fabric")  # no plain value is one of their classes
_CONTAINERS: Mapping[Any, Any] = {
    typing.Union: typing.Union, types.UnionType: typing.Union, tuple: tuple, list: list, Sequence: list,
    Iterable: list, dict: dict, Mapping: dict,
}  # fmt: skip
_NUMBERS: Mapping[Any, Any] = {
    int: Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)],
    float: Annotated[float, Strict(), Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)],
}


def check(config: Mapping[str, Any]) -> None:
    """ValueError, one line with the key, for the first value that its constructor does not take."""
    for key, node in _nodes(config):
        _check(node, key)


def _nodes(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, node in config.items():
        if key == "model" and isinstance(node, Mapping):
            yield key, {name: value for name, value in node.items() if name not in MIXERS}
            where = "model.mixer" if node.get("mixer") else "model.attention"
            for mixer in mixer_configs(config):
                yield where, OmegaConf.to_container(mixer) if OmegaConf.is_config(mixer) else mixer
        else:
            yield key, node


def _check(node: Any, path: str) -> None:
    if isinstance(node, Mapping):
        target = node.get("_target_")
        task = node.get("task")
        takes: Mapping[str, Any] = {}
        if isinstance(target, str) and not target.startswith(GETTERS):
            takes = annotations(located(target))
            # the keys of a data module are those of its task too
            if isinstance(task, Mapping) and isinstance(task.get("_target_"), str) and task.get("_partial_"):
                takes = {**annotations(located(task["_target_"])), **takes}
        for key, value in node.items():
            if key in takes and (problem := find_problem(value, takes[key])):
                raise ValueError(f"{path}.{key}={shown(value)}: {problem}")
        for key, value in node.items():
            _check(value, f"{path}.{key}")
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            _check(value, f"{path}[{i}]")


@cache
def annotations(target: Any) -> Mapping[str, Any]:
    """Parameter -> annotation of what a class or function takes; of a function that hands `**options` on,
    also those of the class that it returns.
    """
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # built in: it has no signature
        return {}
    written: Any = target
    try:
        hints = typing.get_type_hints(
            written.__init__ if isinstance(target, type) else target, include_extras=True
        )
    except Exception:  # names that are there for a type checker alone
        hints = {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes = {name: hints[name] for name, one in parameters.items() if name in hints and one.kind in named}
    hands_on = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    made: Any = hints.get("return")
    return {**annotations(made), **takes} if hands_on and _is_part(made) else takes


def find_problem(value: Any, hint: Any) -> str | None:
    """Why a config's value is not of an annotated type, in pydantic's words; None where it is."""
    try:
        TypeAdapter(_schema(hint)).validate_python(value)
    except ValidationError as error:
        problems: dict[str, None] = {}
        for fault in error.errors(include_url=False, include_context=False):
            place = "".join(f"[{part}]" for part in fault["loc"] if isinstance(part, int)) or "it"
            missing = fault["type"] == "missing"
            problems[f"{place} is missing" if missing else fault["msg"].replace("Input", place)] = None
        return ", or ".join(problems).replace(", or it should be ", ", or ")
    return None


def _schema(hint: Any) -> Any:
    """The strict annotation that pydantic checks; `{_target_: ...}` may stand for any value in it."""
    origin = get_origin(hint) or hint
    inner = get_args(hint)
    schema: Any = Any
    if origin is typing.Final:
        return _schema(inner[0])
    if origin is Annotated:  # with its ranges, such as pydantic's Field(ge=1)
        schema = Annotated[_schema(inner[0]), *hint.__metadata__]
    elif origin in _CONTAINERS:
        schema = _CONTAINERS[origin]
        parts = tuple(one if one is Ellipsis else _schema(one) for one in inner)
        if parts:
            schema = dict[Any, parts[-1] | None] if schema is dict else schema[parts]  # type: ignore[valid-type]
    elif origin in (bool, str, int, float):
        schema = _NUMBERS.get(hint, Annotated[hint, Strict()])
    elif origin is Literal or origin in (None, type(None)):
        schema = hint
    elif _is_part(origin):
        schema = Annotated[Any, PlainValidator(_require_target)]
    return Annotated[schema, WrapValidator(_accept_target)]


def _is_part(hint: Any) -> bool:
    """Whether no plain value is such a thing: a function, a class, a module, a part with a contract."""
    if not isinstance(hint, type) or hint in (Callable, type):
        return hint in (Callable, type)
    return hint.__module__.partition(".")[0] in _PARTS or issubclass(hint, nn.Module)


def _accept_target(value: Any, check: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping) and "_target_" in value:
        return value
    if isinstance(checked := check(value), bool) != isinstance(value, bool):  # Literal[1] takes true
        raise PydanticCustomError("literal", f"Input should be {checked}")
    return checked


def _require_target(value: Any) -> None:
    raise PydanticCustomError("target", "Input should be {_target_: package.module.Class, ...}")
