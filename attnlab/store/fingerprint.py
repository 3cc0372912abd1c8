"""A run's id: the hash of everything that can change its result, and of nothing else.

That is its config without what only serves a machine or a reader, its data, the kind of device, the tokens of
the source that training reaches, and the minor versions of torch and Lightning. Surprising: what only looks
(records, loggers, callbacks that look on, measurements at the end) is not in it: what those measured carries
a digest of its own in the record.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any

from attnlab.errors import Refused
from attnlab.store.declarations import Experiment
from attnlab.store.schema import Estimate
from attnlab.store.source import sources

EXCLUDED = frozenset(
    {
        *Experiment.key_names(), "paths", "logger", "sweep", "hydra", "launcher", "id", "use",
        "model.n_heads",  # feeds interpolations only: what it becomes is hashed
        "data.num_workers", "data.workers", "data.pin_memory", "data.persistent_workers",
        "data.prefetch_factor", "data.cache", "data.folder", "data.path",  # their content is hashed
        "data.max_epochs",  # refuses a run, and changes none
        "measure.timing", "trainer.profiler", "trainer.log_every_n_steps", "trainer.detect_anomaly",
    }
)  # fmt: skip
OBSERVERS = tuple(
    f"attnlab.{name}"
    for name in (
        "errors", "config", "stats", "report", "sweep", "cli", "testing",
        "store.answers", "store.declarations", "store.experiment_files", "store.files",
        "store.fingerprint", "store.guards", "store.lease", "store.runs", "store.schema", "store.source",
        "store.temporary", "store.values", "training.again", "training.callbacks", "training.end",
        "training.estimates", "training.loggers", "training.measuring", "training.preflight",
        "training.record", "training.refusals", "training.targets",
    )
)  # fmt: skip
MEASURES = "attnlab.measure"  # an observer too, except of a run that only measures
GETTERS = "hydra.utils.get_"  # get_class, get_method, ...: what they get is named by `path`
VERSIONED = ("torch", "pytorch-lightning")


def canonical(value: Any) -> str:
    """One text per value: sorted keys, no spaces, no NaN. Refused for what has no such text."""
    try:
        return json.dumps(_plain(value, ""), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except Refused:
        raise
    except ValueError as error:
        raise Refused(f"a number is not finite: {error}") from error


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {_key(key, path): _plain(item, f"{path}{key}.") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}{i}.") for i, item in enumerate(value)]
    if isinstance(value, PurePath):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise Refused(
        f"{path.rstrip('.') or 'a value'} is a {type(value).__name__}, and an id is made of numbers, texts, "
        "lists and mappings alone"
    )


def _key(key: Any, path: str) -> str:
    if key is None or isinstance(key, str | int | float):
        return str(key)
    raise Refused(f"a key of {path.rstrip('.') or 'the config'} is a {type(key).__name__}: give a string")


def digest(value: Any, length: int = 16) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def identify(
    config: Mapping[str, Any], estimate: Estimate, source: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """A run's id, and what it is the hash of. Of the estimate: the data's fingerprint, the kind of device."""
    hashed = {
        "config": kept(config),
        "data": estimate.data.get("sha256"),
        "device_kind": estimate.device_kind,
        "source": dict(source),
        "versions": minor_versions(),
    }
    return digest(hashed), hashed


@cache
def minor_versions() -> dict[str, str]:
    """`2.13` of torch 2.13.0+cpu: what a patch release changes is not worth training again."""
    versions = {}
    for name in VERSIONED:
        try:
            versions[name] = ".".join(version(name).split("+")[0].split(".")[:2])
        except PackageNotFoundError:
            continue
    return versions


def source(config: Mapping[str, Any], trainer: str) -> dict[str, str]:
    """The hashed source of a run: its trainer's and its targets', without what only looks on."""
    observers = OBSERVERS if config.get("measurement") else (*OBSERVERS, MEASURES)
    return sources([trainer, *targets(kept(config))], without=observers)


def kept(node: Any) -> Any:
    """A config without what cannot change a result."""
    return _kept(node, "")


def _kept(node: Any, path: str) -> Any:
    if isinstance(node, Mapping):
        return {
            str(key): _kept(value, f"{path}{key}.")
            for key, value in node.items()
            if f"{path}{key}" not in EXCLUDED
        }
    return (
        [_kept(item, f"{path}{i}.") for i, item in enumerate(node)]
        if isinstance(node, list | tuple)
        else node
    )


_SEEDED = ("data", "model", "optim", "measurement")


def unseeded(config: Mapping[str, Any]) -> Any:
    """What a config shares with those that differ from it by their seed, replica or parent alone."""
    rest = {key: value for key, value in config.items() if key not in ("seed", "replica", "parent")}
    seeded = {key: {**(config.get(key) or {}), "seed": None} for key in _SEEDED}
    return kept({**rest, **seeded})


_MACHINES = ("paths", "logger", "sweep", "hydra", "launcher")
_NAMED = {key for key in EXCLUDED if "." in key} - {"model.n_heads"}  # n_heads is told of what is made of it


def outside(message: str) -> str | None:
    """The key that a failure names, where no run's id knows of it: the failure is none of the id's. Our own
    begin with the key; other people's have its last part somewhere, which is telling where it has several
    words.
    """
    first = re.match(r"(?:\w+: )?([a-z_]+(?:\.[a-z_]+)+)", message)
    if first and (first[1] in _NAMED or first[1].partition(".")[0] in _MACHINES):
        return first[1]
    words = set(re.findall(r"\w+", message))
    return next((key for key in sorted(_NAMED) if "_" in key and key.rpartition(".")[2] in words), None)


def flatten(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and leaves of a config; a list is a leaf, an empty mapping too."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from flatten(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


def targets(node: Any) -> Iterator[str]:
    """Every dotted name of `named` that is one."""
    return (name for _, name in named(node) if isinstance(name, str))


def named(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(key, dotted name) of everything that Hydra would locate: `_target_`, and `path` of its getters."""
    if isinstance(node, Mapping):
        prefix = f"{path}." if path else ""
        if "_target_" in node:
            yield f"{prefix}_target_", node["_target_"]
            if str(node["_target_"]).startswith(GETTERS):
                yield f"{prefix}path", node.get("path")
        for key, value in node.items():
            yield from named(value, f"{prefix}{key}")
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from named(value, f"{path}[{i}]")
