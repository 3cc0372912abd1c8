"""A run's id: the hash of everything that can change its result, and of nothing else.

Surprising: source code counts. The modules that a run's trainer and `_target_`s reach through static imports
are hashed (attnlab's own and the user's; never installed packages), so an edited variant trains again, and an
edited report does not. Nothing is imported to find them.
"""

import ast
import hashlib
import json
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

EXPERIMENT_KEYS = (
    "name", "question", "arms", "arm_overrides", "baseline", "seeds", "held", "match", "match_by", "metric",
    "direction", "margin", "margin_reason", "claims", "size", "size_overrides", "tune", "tuned",
)  # fmt: skip
EXCLUDED = frozenset(
    {
        *EXPERIMENT_KEYS, "paths", "logger", "sweep", "hydra", "launcher", "id", "use",
        "model.n_heads",  # feeds interpolations only: what it becomes is hashed
        "data.num_workers", "data.workers", "data.pin_memory", "data.persistent_workers",
        "data.prefetch_factor", "data.cache", "data.folder", "data.path",  # their content is hashed
        "measure.timing",
        "trainer.logger", "trainer.callbacks", "trainer.profiler", "trainer.default_root_dir",
        "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.enable_checkpointing",
        "trainer.log_every_n_steps", "trainer.checkpoint_every", "trainer.detect_anomaly",
    }
)  # fmt: skip
# What a run reaches without its result depending on it.
_UNHASHED = tuple(
    f"attnlab.{name}"
    for name in ("sweep", "report", "stats", "errors", "store", "training.loggers", "config", "cli")
)


def canonical(value: Any) -> str:
    """One text per value: sorted keys, no spaces, and no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)


def digest(value: Any, length: int = 16) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def identify(
    config: Mapping[str, Any], figures: Mapping[str, Any], source: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """A run's id, and what it is the hash of. `figures`: the data's fingerprint, the device."""
    hashed = {
        "config": kept(config),
        "data": (figures.get("data") or {}).get("sha256"),
        "device_kind": figures["device_kind"],
        "source": dict(source),
    }
    return digest(hashed), hashed


def source(config: Mapping[str, Any], trainer: str) -> dict[str, str]:
    """The hashed source of a run: its trainer's and its targets'."""
    return sources([trainer, *targets(kept(config))])


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


def flatten(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and leaves of a config; a list is a leaf."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from flatten(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


def targets(node: Any) -> Iterator[str]:
    """Every dotted name that Hydra would locate: `_target_`, and `path` of `hydra.utils.get_*`."""
    if isinstance(node, Mapping):
        target = node.get("_target_")
        if isinstance(target, str):
            yield target
            if target.startswith("hydra.utils.get_") and isinstance(node.get("path"), str):
                yield node["path"]
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, list | tuple) else ()
    for child in children:
        yield from targets(child)


def sources(names: Iterable[str]) -> dict[str, str]:
    """Module name -> hash of its file, for the closure of static imports of all names."""
    found: dict[str, str] = {}
    queue = list(names)
    while queue:
        name = queue.pop()
        for module, file in _modules(name):
            if module in found or module == "attnlab" or _under(module, _UNHASHED):
                continue
            found[module], imports = _read(file, file.stat().st_mtime_ns, module, file.name == "__init__.py")
            queue += imports
    return dict(sorted(found.items()))


def _under(module: str, roots: Iterable[str]) -> bool:
    return any(module == root or module.startswith(root + ".") for root in roots)


def _modules(name: str) -> Iterator[tuple[str, Path]]:
    """The modules that importing a dotted name would run: its packages, then itself. An attribute ends it."""
    path: list[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        module = ".".join(parts[:depth])
        spec = PathFinder.find_spec(module, path)
        if spec is None:
            return
        if spec.has_location and spec.origin and spec.origin.endswith(".py"):
            file = Path(spec.origin)
            if depth == 1 and parts[0] != "attnlab" and not _is_users(file):
                return
            yield module, file
        if spec.submodule_search_locations is None:
            return
        path = list(spec.submodule_search_locations)


def _is_users(file: Path) -> bool:
    """Installed packages and the standard library are recorded by version, not hashed."""
    folder = str(file.resolve().parent)
    if "site-packages" in file.parts or "dist-packages" in file.parts:
        return False
    return not folder.startswith(sysconfig.get_path("stdlib"))


@cache
def _read(file: Path, _modified: int, module: str, is_package: bool) -> tuple[str, tuple[str, ...]]:
    text = file.read_bytes().replace(b"\r\n", b"\n")
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return hashlib.sha256(text).hexdigest()[:16], ()
    package = module if is_package else module.rpartition(".")[0]
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            imports += [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
    return hashlib.sha256(text).hexdigest()[:16], tuple(imports)
