"""Validation of config values against the annotations of their constructors, with pydantic.

A parameter without an annotation, or with one that pydantic does not support, accepts any value.
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

from attnlab.model.build import MIXER_KEYS, list_mixer_configs
from attnlab.store.config_groups import MAX_FLOAT32, format_value
from attnlab.store.fingerprint import GETTER_PREFIX
from attnlab.training.targets import locate_target

# No plain config value is an instance of a class of these packages.
_PART_PACKAGES = ("attnlab", "pytorch_lightning", "lightning_fabric")
_CONTAINER_TYPES: Mapping[Any, Any] = {
    typing.Union: typing.Union, types.UnionType: typing.Union, tuple: tuple, list: list, Sequence: list,
    Iterable: list, dict: dict, Mapping: dict,
}  # fmt: skip
_NUMBER_ANNOTATIONS: Mapping[Any, Any] = {
    int: Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)],
    float: Annotated[float, Strict(), Field(ge=-MAX_FLOAT32, le=MAX_FLOAT32, allow_inf_nan=False)],
}


def validate_signatures(config: Mapping[str, Any]) -> None:
    """Validate all values that a constructor annotates."""
    for key, node in _iterate_groups(config):
        _validate_node(node, key)


def _iterate_groups(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, node in config.items():
        if key == "model" and isinstance(node, Mapping):
            yield key, {name: value for name, value in node.items() if name not in MIXER_KEYS}
            mixer_key = "model.mixer" if node.get("mixer") else "model.attention"
            for mixer in list_mixer_configs(config):
                yield mixer_key, OmegaConf.to_container(mixer) if OmegaConf.is_config(mixer) else mixer
        else:
            yield key, node


def _validate_node(node: Any, path: str) -> None:
    if isinstance(node, Mapping):
        target = node.get("_target_")
        task = node.get("task")
        annotations: Mapping[str, Any] = {}
        if isinstance(target, str) and not target.startswith(GETTER_PREFIX):
            annotations = get_annotations(locate_target(target))
            # A data module also has the keys of its task.
            if isinstance(task, Mapping) and isinstance(task.get("_target_"), str) and task.get("_partial_"):
                annotations = {**get_annotations(locate_target(task["_target_"])), **annotations}
        for key, value in node.items():
            if key in annotations and (problem := find_problem(value, annotations[key])):
                raise ValueError(f"{path}.{key}={format_value(value)}: {problem}")
        for key, value in node.items():
            _validate_node(value, f"{path}.{key}")
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            _validate_node(value, f"{path}[{i}]")


@cache
def get_annotations(target: Any) -> Mapping[str, Any]:
    """Return parameter -> annotation of a class or function.

    A function that passes `**options` on also gets the annotations of the class that it returns.
    """
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # built-in without a signature
        return {}
    untyped_target: Any = target
    try:
        hints = typing.get_type_hints(
            untyped_target.__init__ if isinstance(target, type) else target, include_extras=True
        )
    except Exception:  # names imported only for type checkers
        hints = {}
    keyword_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    annotations = {
        name: hints[name]
        for name, parameter in parameters.items()
        if name in hints and parameter.kind in keyword_kinds
    }
    passes_options = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    returned: Any = hints.get("return")
    return (
        {**get_annotations(returned), **annotations} if passes_options and _is_part(returned) else annotations
    )


def find_problem(value: Any, hint: Any) -> str | None:
    """Explain in pydantic's words why a config value violates an annotation; None if it does not."""
    try:
        TypeAdapter(_make_strict_annotation(hint)).validate_python(value)
    except ValidationError as error:
        problems: dict[str, None] = {}
        for fault in error.errors(include_url=False, include_context=False):
            subject = "".join(f"[{part}]" for part in fault["loc"] if isinstance(part, int)) or "it"
            is_missing = fault["type"] == "missing"
            problems[f"{subject} is missing" if is_missing else fault["msg"].replace("Input", subject)] = None
        return ", or ".join(problems).replace(", or it should be ", ", or ")
    return None


def _make_strict_annotation(hint: Any) -> Any:
    """Return the strict annotation that pydantic checks; `{_target_: ...}` may replace any value in it."""
    origin = get_origin(hint) or hint
    arguments = get_args(hint)
    schema: Any = Any
    if origin is typing.Final:
        return _make_strict_annotation(arguments[0])
    if origin is Annotated:  # may hold ranges, such as pydantic's Field(ge=1)
        schema = Annotated[_make_strict_annotation(arguments[0]), *hint.__metadata__]
    elif origin in _CONTAINER_TYPES:
        schema = _CONTAINER_TYPES[origin]
        strict_arguments = tuple(
            argument if argument is Ellipsis else _make_strict_annotation(argument) for argument in arguments
        )
        if strict_arguments:
            schema = dict[Any, strict_arguments[-1] | None] if schema is dict else schema[strict_arguments]  # type: ignore[valid-type]
    elif origin in (bool, str, int, float):
        schema = _NUMBER_ANNOTATIONS.get(hint, Annotated[hint, Strict()])
    elif origin is Literal or origin in (None, type(None)):
        schema = hint
    elif _is_part(origin):
        schema = Annotated[Any, PlainValidator(_require_target)]
    return Annotated[schema, WrapValidator(_accept_target)]


def _is_part(hint: Any) -> bool:
    """Whether no plain value is of this type: a function, class, module or part with a contract."""
    if not isinstance(hint, type) or hint in (Callable, type):
        return hint in (Callable, type)
    return hint.__module__.partition(".")[0] in _PART_PACKAGES or issubclass(hint, nn.Module)


def _accept_target(value: Any, check: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping) and "_target_" in value:
        return value
    if isinstance(checked := check(value), bool) != isinstance(value, bool):  # Literal[1] takes true
        raise PydanticCustomError("literal", f"Input should be {checked}")
    return checked


def _require_target(value: Any) -> None:
    raise PydanticCustomError("target", "Input should be {_target_: package.module.Class, ...}")
