"""Names that a stored config may use in `_target_` and Hydra's getters.

Trusted are parts of attnlab, some classes of torch and Lightning, the names that this process's command
composed itself, and modules that the user has trusted once, remembered in the user's configuration. A run
folder, result or report may come from anybody, and its names are imported and called. Configs of the user's
own command line are code like any other, and are not checked here. A command declares their names in its
environment, which its workers inherit, on other hosts too: no name counts as declared because a file has it.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint, run_directories
from attnlab.store.atomic_files import replace_atomically
from attnlab.store.experiment_schema import Experiment
from attnlab.store.run_schema import RunConfig

TRUSTED_PACKAGES = (
    "attnlab.attention", "attnlab.data.ar_hits", "attnlab.data.copying", "attnlab.data.synthetic_task",
    "attnlab.data.induction", "attnlab.data.data_module", "attnlab.data.names", "attnlab.data.needle",
    "attnlab.data.recall", "attnlab.data.synthetic", "attnlab.data.text", "attnlab.data.tokenizers",
    "attnlab.measure.studies",
    "attnlab.model.block", "attnlab.model.experts", "attnlab.model.parametrization",
    "attnlab.model.pooling", "attnlab.model.recurrent", "attnlab.model.residual",
    "attnlab.model.transformer", "attnlab.training.loggers", "attnlab.training.language_model",
    "attnlab.training.optim",
)  # fmt: skip
TRUSTED_LIBRARIES = {  # prefix of a dotted name -> modules that may define its class
    "torch.nn": ("torch.nn.modules",),
    "pytorch_lightning.Trainer": ("pytorch_lightning.trainer.trainer",),
    "pytorch_lightning.callbacks": ("pytorch_lightning.callbacks",),
    "pytorch_lightning.loggers": ("pytorch_lightning.loggers",),
    "pytorch_lightning.profilers": ("pytorch_lightning.profilers",),
}
GETTER_TARGETS = tuple(f"hydra.utils.get_{kind}" for kind in ("class", "method", "object", "static_method"))
DEFAULT_TRAINER = "attnlab.training.run"
DECLARED_VARIABLE = "ATTNLAB_TARGETS"  # the names that a command composed, for all its processes
_NEVER_TRUSTED = frozenset({"__main__", "attnlab", "hydra_plugins", *sys.stdlib_module_names})
_INSTALLERS = ("pip", "setuptools", "wheel", "uv")
_KEYS_WITHOUT_OBJECTS = frozenset({*Experiment.list_keys(), "hydra"})  # no objects are built from them


def declare_names(configs: Iterable[Mapping[str, Any]]) -> None:
    """Declare the names in the configs that this command composed, for this process and its workers."""
    names = {name for config in configs for name in _collect_config_names(config)}
    os.environ[DECLARED_VARIABLE] = " ".join(sorted(names))


def load_trusted_run(folder: Path) -> RunConfig:
    """Load the config of a run of which something is built, and check all names in it."""
    run_config = run_directories.load_run_config(folder)
    require_trusted_objects(run_config.config, folder / "spec.json")
    return run_config


def require_trusted_names(config: Mapping[str, Any], file: Path) -> None:
    """Check all names in a stored config without importing anything."""
    for key, name in _find_undeclared_names(config, file):
        if any(part.startswith("__") or not part.isidentifier() for part in name.split(".")):
            raise InvalidConfig(f"{file}: {key} = {name} is not a valid dotted name for a stored config")
        if not (
            _is_under(name, (*TRUSTED_PACKAGES, *TRUSTED_LIBRARIES))
            or _is_under(name, _collect_trusted_modules())
        ):
            raise InvalidConfig(_format_untrusted_error(file, key, name, name))


def require_trusted_objects(config: Mapping[str, Any], file: Path) -> None:
    """Check all names in a stored config and the objects that they lead to.

    A module may expose another module's objects under its own name. Imports every module that is named and
    not declared, including torch.
    """
    require_trusted_names(config, file)
    for key, name in _find_undeclared_names(config, file):
        target = _import_object(name, f"{file}: {key} = {name}")
        owner = target.__name__ if isinstance(target, ModuleType) else str(getattr(target, "__module__", ""))
        if (
            _is_under(name, TRUSTED_PACKAGES)
            and _is_under(owner, TRUSTED_PACKAGES)
            and "." not in str(getattr(target, "__qualname__", ""))  # methods accept any object as self
        ) or _is_under(owner, _collect_trusted_modules()):
            continue
        homes = next((homes for start, homes in TRUSTED_LIBRARIES.items() if _is_under(name, [start])), ())
        if not (isinstance(target, type) and _is_under(owner, homes)):
            raise InvalidConfig(
                _format_untrusted_error(
                    file, key, name, f"{owner}.{getattr(target, '__name__', '')}".strip(".")
                )
            )


def _collect_config_names(config: Mapping[str, Any]) -> set[str]:
    trainer = str((config.get("sweep") or {}).get("train") or DEFAULT_TRAINER)
    return {
        trainer,
        *(name for name in fingerprint.find_target_names(config) if not name.startswith("hydra.")),
    }


def load_trusted_modules() -> tuple[str, ...]:
    """Return the modules that the user has trusted."""
    try:
        return tuple(_get_trust_file().read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return ()


def trust_module(module: str) -> Path:
    """Remember a module as trusted; return the file that stores it.

    Raises:
        InvalidConfig: Not a module name, part of Python, attnlab or a library that attnlab uses, or the file
            cannot be written.
    """
    if not all(part.isidentifier() for part in module.split(".")):
        raise InvalidConfig(f"--trust {module}: not a module name; give one, as in --trust mine")
    if library := _find_library(module):
        raise InvalidConfig(
            f"--trust {module}: it is part of {library}, of which not everything is safe to call: give your "
            "own module, which may import the classes that you need"
        )
    file = _get_trust_file()
    if module not in load_trusted_modules():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with replace_atomically(file) as temporary:
                temporary.write_text(
                    "".join(f"{name}\n" for name in (*load_trusted_modules(), module)), encoding="utf-8"
                )
        except OSError as error:
            raise InvalidConfig(f"--trust {module}: {file} cannot be written ({error.strerror})") from error
    return file


def _get_trust_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "attnlab" / "trusted"


def _collect_trusted_modules() -> tuple[str, ...]:
    """Return the trusted modules besides attnlab: those that the user trusts or composes."""
    own_modules = {name.rpartition(".")[0] or name for name in _load_declared_names()}
    return tuple(sorted(root for root in {*load_trusted_modules(), *own_modules} if not _find_library(root)))


def _load_declared_names() -> frozenset[str]:
    return frozenset(os.environ.get(DECLARED_VARIABLE, "").split())


def _find_library(module: str) -> str | None:
    """Return the library that a module is part of: Python, attnlab, or a package that attnlab uses."""
    package = module.partition(".")[0]
    if package in _NEVER_TRUSTED:
        return "attnlab" if package in ("attnlab", "hydra_plugins") else "Python"
    return _map_library_packages().get(package)


@cache
def _map_library_packages() -> Mapping[str, str]:
    """Map the packages of attnlab's dependencies, with theirs in turn, and of installers to their projects.

    Where attnlab is not installed, so that its dependencies are unknown, every installed package counts.
    """
    projects_by_package = metadata.packages_distributions()
    libraries = set[str]()
    try:
        queue = [*_INSTALLERS, *_list_dependencies("attnlab")]
    except metadata.PackageNotFoundError:
        queue = [_normalize_name(name) for names in projects_by_package.values() for name in names]
    while queue:
        if (project := queue.pop()) not in libraries:
            libraries.add(project)
            with suppress(metadata.PackageNotFoundError):  # an extra that is not installed
                queue += _list_dependencies(project)
    return {
        package: name
        for package, names in projects_by_package.items()
        for name in names
        if _normalize_name(name) in libraries - {"attnlab"}
    }


def _list_dependencies(project: str) -> list[str]:
    """Return the projects that an installed project requires, extras included."""
    return [
        _normalize_name(re.match(r"[\w.-]+", each)[0])  # type: ignore[index]
        for each in metadata.requires(project) or []
    ]


def _normalize_name(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()


def _find_undeclared_names(config: Mapping[str, Any], file: Path) -> Iterator[tuple[str, str]]:
    """Yield what `_find_built_names` does, without the names that this command composed."""
    declared = _load_declared_names()
    return ((key, name) for key, name in _find_built_names(config, file) if name not in declared)


def _find_built_names(config: Mapping[str, Any], file: Path) -> Iterator[tuple[str, str]]:
    """Yield (key, dotted name) for everything built from a stored config, with layer patches applied.

    Raises:
        InvalidConfig: A name that only building would reveal: a non-string, or an interpolation.
    """
    built_config = {key: value for key, value in config.items() if key not in _KEYS_WITHOUT_OBJECTS}
    model = built_config.get("model")
    if isinstance(model, Mapping) and model.get("layers"):
        mixer = model.get("mixer") or model.get("attention")
        built_config["model"] = {key: value for key, value in model.items() if key != "layers"}
        built_config["layers"] = _apply_layer_patches(mixer, model["layers"], file)
    try:
        yield from _find_names(built_config, "")
    except ValueError as error:
        raise InvalidConfig(f"{file}: {error}") from error


def _apply_layer_patches(mixer: Any, layers: Any, file: Path) -> list[Any]:
    """Return each layer's mixer config, as it will be built."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return [OmegaConf.to_container(OmegaConf.merge(mixer, patch)) for patch in layers]
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise InvalidConfig(f"{file}: model.layers cannot be read: {' '.join(str(error).split())}") from error


def _find_names(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, str) and "${" in node:
        raise ValueError(f"{path} = {node!r} is an interpolation, which a stored config must not contain")
    if isinstance(node, list | tuple):
        for i, item in enumerate(node):
            yield from _find_names(item, f"{path}[{i}]")
    if not isinstance(node, Mapping):
        return
    prefix = f"{path}." if path else ""
    if "_target_" in node:
        target = node["_target_"]
        if not isinstance(target, str):
            raise ValueError(f"{prefix}_target_ = {target!r} is not a string")
        if target in GETTER_TARGETS:
            if set(node) != {"_target_", "path"} or not isinstance(node["path"], str):
                raise ValueError(f"{prefix}_target_ = {target} takes only `path`, a string")
            yield f"{prefix}path", node["path"]
        else:
            yield f"{prefix}_target_", target
    for key, value in node.items():
        if path == "sweep" and key == "train" and value not in (None, DEFAULT_TRAINER):
            yield "sweep.train", str(value)  # the trainer module
        if "${" in str(key):
            raise ValueError(f"{prefix}{key} is an interpolation, which a stored config must not contain")
        yield from _find_names(value, f"{prefix}{key}")


def _import_object(name: str, where: str) -> Any:
    """Import the object that Hydra finds under a name, with its own function."""
    from hydra.utils import get_object

    try:
        return get_object(name)
    except Exception as error:  # a module may raise anything while it is imported
        raise InvalidConfig(f"{where} cannot be found: {' '.join(str(error).split())[:200]}") from error


def _is_under(name: str, roots: Iterable[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _format_untrusted_error(file: Path, key: str, name: str, leads_to: str) -> str:
    alias = "" if leads_to == name else f", which refers to {leads_to or 'an unknown module'}"
    text = (
        f"{file}: {key} = {name}{alias}: not trusted; a stored config may only use attnlab and "
        "modules that you trust"
    )
    module = leads_to.rpartition(".")[0]
    if not module.replace(".", "_").isidentifier() or _find_library(module):
        return text
    return f"{text}: if you trust the module {module}, run attnlab --trust {module} once"
