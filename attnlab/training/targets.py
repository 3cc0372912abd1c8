"""Every dotted name in a config, found before anything is trained: a wrong one costs a line, not a sweep."""

import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from attnlab.errors import nearest
from attnlab.store.fingerprint import named


def check(config: Mapping[str, Any]) -> None:
    """ValueError, one line with the key, for the first `_target_` (or `path` of Hydra's getters) that names
    nothing, or nothing that can be called.
    """
    for key, name in named(config):
        if not isinstance(name, str) or "." not in name:
            raise ValueError(f"{key}={name}: give a dotted name, as in package.module.Class")
        try:
            thing = located(name)
        except LookupError as error:
            raise ValueError(f"{key}={name}: {error.args[0]}") from error
        if not callable(thing) and not key.endswith(".path"):
            raise ValueError(f"{key}={name} is a {type(thing).__name__}, which cannot be called")


def located(name: str) -> Any:
    """What Hydra would find, in the same order: attributes before submodules. LookupError with the reason."""
    first, *rest = name.split(".")
    thing = _module(first)
    path = first
    if thing is None:
        raise LookupError(
            f"there is no module {first}; give the command where it can be imported, or install it"
        )
    for part in rest:
        if hasattr(thing, part):
            thing = getattr(thing, part)
        elif isinstance(thing, ModuleType) and (module := _module(f"{path}.{part}")) is not None:
            thing = module
        else:
            raise LookupError(f"{path} has no {part}{nearest(part, _names(thing))}")
        path = f"{path}.{part}"
    return thing


def _module(path: str) -> ModuleType | None:
    """The module, or None where there is none of that name. LookupError where it is there and broken."""
    try:
        return importlib.import_module(path)
    except Exception as error:  # a user's module may raise anything when it is imported
        if isinstance(error, ModuleNotFoundError) and error.name == path:
            return None
        raise LookupError(f"importing {path} failed: {type(error).__name__}: {error}") from error


def _names(thing: Any) -> set[str]:
    """What could have been meant: public names, and the modules of a package."""
    modules = {module.name for module in pkgutil.iter_modules(getattr(thing, "__path__", []))}
    return {name for name in dir(thing) if not name.startswith("_")} | modules
