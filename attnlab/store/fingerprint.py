"""Run id: a hash of everything that can change a run's result, and of nothing else.

Hashed are the config without machine and display keys, the data, the device kind, the source tokens that
training reaches, the files that parts of the user's read, and the minor versions of torch and Lightning.
Observers (schema, loggers, recording callbacks, measurements after training) are not hashed: the result
stores a separate digest of the code that measured each part.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store.experiment_schema import Experiment
from attnlab.store.run_schema import RunEstimate
from attnlab.store.source_digests import hash_file, hash_sources, is_user_name

# These feed interpolations only; the resolved values are hashed.
INTERPOLATED_KEYS = frozenset({"model.n_heads", "model.window"})
EXCLUDED_KEYS = frozenset(
    {
        *Experiment.list_keys(), "paths", "logger", "sweep", "hydra", "launcher", "id", "use",
        *INTERPOLATED_KEYS,
        "data.num_workers", "data.workers", "data.pin_memory", "data.persistent_workers",
        "data.prefetch_factor", "data.cache", "data.folder", "data.path",  # the content is hashed
        "data.validation_path", "data.validation_split", "data.text_key", "data.normalize",  # so is it here
        "data.max_epochs", "data.allow_overlap",  # they only reject runs
        "measure.timing", "trainer.profiler", "trainer.log_every_n_steps", "trainer.detect_anomaly",
    }
)  # fmt: skip
OBSERVER_MODULES = tuple(
    f"attnlab.{name}"
    for name in (
        "errors", "config", "stats", "report", "sweep", "cli", "testing",
        "store.atomic_files", "store.config_groups", "store.disk_cache", "store.experiment_files",
        "store.experiment_schema", "store.file_names", "store.fingerprint", "store.guards", "store.lease",
        "store.remote", "store.remote_files", "store.remote_lease", "store.run_directories",
        "store.process_identity", "store.run_schema", "store.safe_paths", "store.socket_names",
        "store.source_digests",
        "training.callbacks", "training.estimates", "training.final_metrics", "training.loggers",
        "training.measurement_run", "training.preflight", "training.remeasure", "training.run_result",
        "training.targets", "training.validation", "training.validation_watch",
    )
)  # fmt: skip
MEASURE_PACKAGE = "attnlab.measure"  # an observer too, except in measurement runs
GETTER_PREFIX = "hydra.utils.get_"  # get_class, get_method, ...: `path` names their target
VERSIONED_PACKAGES = ("torch", "pytorch-lightning")


def to_canonical_json(value: Any) -> str:
    """Return one text per value: sorted keys, no spaces, no NaN.

    Raises:
        InvalidConfig: A value or key has no canonical text.
    """
    try:
        return json.dumps(_to_plain_value(value, ""), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except InvalidConfig:
        raise
    except ValueError as error:
        raise InvalidConfig(f"a config value is not finite ({error}): use a finite number") from error


def _to_plain_value(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {
            _to_key_string(key, path): _to_plain_value(item, f"{path}{key}.") for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_to_plain_value(item, f"{path}{i}.") for i, item in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise InvalidConfig(
        f"{path.rstrip('.') or 'a value'} is a {type(value).__name__}, but a run id can only "
        "include numbers, strings, lists and mappings: change its type"
    )


def _to_key_string(key: Any, path: str) -> str:
    if key is None or isinstance(key, str | int | float):
        return str(key)
    raise InvalidConfig(
        f"a key of {path.rstrip('.') or 'the config'} is a {type(key).__name__}: use a string"
    )


def compute_digest(value: Any, length: int = 16) -> str:
    return hashlib.sha256(to_canonical_json(value).encode()).hexdigest()[:length]


def compute_run_id(
    config: Mapping[str, Any], estimate: RunEstimate, source: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """Return a run's id and the identity that it hashes; the estimate adds data digest and device kind."""
    identity = {
        "config": strip_excluded_keys(config),
        "data": estimate.data.get("sha256"),
        "device_kind": estimate.device_kind,
        "source": dict(source),
        "versions": get_minor_versions(),
    }
    return compute_digest(identity), identity


@cache
def get_minor_versions() -> dict[str, str]:
    """Return `2.13` for torch 2.13.0+cpu: a patch release does not justify retraining."""
    versions = read_package_versions(VERSIONED_PACKAGES)
    return {name: ".".join(text.split("+")[0].split(".")[:2]) for name, text in versions.items()}


def read_package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages from their metadata, without those that are not installed."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def hash_run_source(config: Mapping[str, Any], trainer: str) -> dict[str, str]:
    """Return module -> source digest for the trainer and the config's targets, without observers.

    Keys that name a file which a part of the user's may read are entries too, with the digest of its content.

    Raises:
        InvalidConfig: A file that a module declares cannot be read.
    """
    observers = OBSERVER_MODULES if config.get("measurement") else (*OBSERVER_MODULES, MEASURE_PACKAGE)
    modules = hash_sources(
        [trainer, *find_target_names(strip_excluded_keys(config))], excluded_packages=observers
    )
    return modules | hash_named_files(config)


def hash_named_files(config: Mapping[str, Any]) -> dict[str, str]:
    """Return key -> digest of the content of each file in `find_named_files`."""
    return {key: hash_file(path) for key, path in find_named_files(config)}


def find_named_files(config: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yield key and path of each string that names a file, in the groups that have a part of the user's."""
    groups = {
        key: value
        for key, value in config.items()
        if key not in _UNHASHED_GROUPS and any(map(is_user_name, find_target_names(value)))
    }
    for key, text in iterate_possible_paths(groups):
        if (path := Path(text)).is_file():
            yield key, path


def strip_excluded_keys(node: Any) -> Any:
    """Return a config without the keys that cannot change a result."""
    return _strip_excluded_keys(node, "")


def _strip_excluded_keys(node: Any, path: str) -> Any:
    if isinstance(node, Mapping):
        return {
            str(key): _strip_excluded_keys(value, f"{path}{key}.")
            for key, value in node.items()
            if f"{path}{key}" not in EXCLUDED_KEYS
        }
    return (
        [_strip_excluded_keys(item, f"{path}{i}.") for i, item in enumerate(node)]
        if isinstance(node, list | tuple)
        else node
    )


_SEEDED_GROUPS = ("data", "model", "optim", "measurement")


def strip_seeds(config: Mapping[str, Any]) -> Any:
    """Return the config without seeds, replica, parent and excluded keys: equal for runs of one arm."""
    seedless = {key: value for key, value in config.items() if key not in ("seed", "replica", "parent")}
    seeded = {key: {**(config.get(key) or {}), "seed": None} for key in _SEEDED_GROUPS}
    return strip_excluded_keys({**seedless, **seeded})


_UNHASHED_GROUPS = ("paths", "logger", "sweep", "hydra", "launcher")
# Error messages about derived values name interpolated keys, and these values are hashed.
_UNHASHED_KEYS = {key for key in EXCLUDED_KEYS if "." in key} - INTERPOLATED_KEYS


def find_unhashed_key(message: str) -> str | None:
    """Return the unhashed config key that a failure message names, else None.

    Such a failure does not belong to the run id. attnlab's messages begin with the key. Messages of other
    libraries contain its last part somewhere, which is conclusive if that part has several words.
    """
    leading_key = re.match(r"(?:\w+: )?([a-z_]+(?:\.[a-z_]+)+)", message)
    if leading_key and (
        leading_key[1] in _UNHASHED_KEYS or leading_key[1].partition(".")[0] in _UNHASHED_GROUPS
    ):
        return leading_key[1]
    words = set(re.findall(r"\w+", message))
    return next(
        (key for key in sorted(_UNHASHED_KEYS) if "_" in key and key.rpartition(".")[2] in words), None
    )


def iterate_possible_paths(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and text of every string in a config, also in lists, that could be the path of a file."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from iterate_possible_paths(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from iterate_possible_paths(value, f"{path}[{i}]")
    elif isinstance(node, str) and node and len(node) < 4096 and "\0" not in node:
        yield path, node


def flatten_config(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and leaves of a config; lists and empty mappings are leaves."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from flatten_config(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


def find_target_names(node: Any) -> Iterator[str]:
    """Yield the names of `find_targets` that are strings."""
    return (name for _, name in find_targets(node) if isinstance(name, str))


def get_target_name(node: Mapping[str, Any]) -> Any:
    """Return the dotted name that a node with a `_target_` builds from: `path` for a getter of Hydra."""
    is_getter = str(node["_target_"]).startswith(GETTER_PREFIX)
    return node.get("path") if is_getter else node["_target_"]


def find_targets(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, dotted name) for everything that Hydra locates: `_target_`, and `path` of its getters."""
    if isinstance(node, Mapping):
        prefix = f"{path}." if path else ""
        if "_target_" in node:
            yield f"{prefix}_target_", node["_target_"]
            if str(node["_target_"]).startswith(GETTER_PREFIX):
                yield f"{prefix}path", node.get("path")
        for key, value in node.items():
            yield from find_targets(value, f"{prefix}{key}")
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from find_targets(value, f"{path}[{i}]")
