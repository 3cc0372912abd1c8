"""Resolve every dotted name in a config before training: a wrong one costs one line, not a sweep."""

import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from attnlab.errors import format_suggestions
from attnlab.store.fingerprint import find_targets


def validate_targets(config: Mapping[str, Any]) -> None:
    """Check that every `_target_` (and `path` of Hydra's getters) exists and can be called."""
    for key, name in find_targets(config):
        if not isinstance(name, str) or "." not in name:
            raise ValueError(f"{key}={name} is not a dotted name, as in package.module.Class")
        try:
            target = locate_target(name)
        except LookupError as error:
            raise ValueError(f"{key}={name}: {error.args[0]}") from error
        if not callable(target) and not key.endswith(".path"):
            raise ValueError(f"{key}={name} is a {type(target).__name__}, which is not callable")


def locate_target(name: str) -> Any:
    """Return the object that Hydra would find, in the same order: attributes before submodules.

    Raises:
        LookupError: With the reason.
    """
    root, *attributes = name.split(".")
    target = _import_module(root)
    path = root
    if target is None:
        raise LookupError(
            f"there is no module {root}; install it, or add the folder that contains it to PYTHONPATH"
        )
    for part in attributes:
        if hasattr(target, part):
            target = getattr(target, part)
        elif isinstance(target, ModuleType) and (module := _import_module(f"{path}.{part}")) is not None:
            target = module
        else:
            raise LookupError(f"{path} has no {part}{format_suggestions(part, _list_public_names(target))}")
        path = f"{path}.{part}"
    return target


def _import_module(path: str) -> ModuleType | None:
    """Import a module; None if there is none of that name.

    Raises:
        LookupError: The module exists and fails to import.
    """
    try:
        return importlib.import_module(path)
    except Exception as error:  # a user's module may raise anything when it is imported
        if isinstance(error, ModuleNotFoundError) and error.name == path:
            return None
        raise LookupError(f"importing {path} failed: {type(error).__name__}: {error}") from error


def _list_public_names(target: Any) -> set[str]:
    """Return candidates for a suggestion: public names, and the modules of a package."""
    modules = {module.name for module in pkgutil.iter_modules(getattr(target, "__path__", []))}
    return {name for name in dir(target) if not name.startswith("_")} | modules
