"""Cache of composed, checked and matched arms, so that planning the same command again composes nothing.

Cached arms stay valid while nothing changes that they could depend on: the experiment and the overrides,
every file in the command's config folders, and the inputs of each arm's check (`check_cache`). Nothing is
cached if one of these is unknown, or if a config depends on values that may differ tomorrow (the time,
Hydra's own state). Learning rates are not cached: each plan derives them from finished runs.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlab.errors import InvalidConfig
from attnlab.store import disk_cache, fingerprint
from attnlab.store.experiment_schema import Experiment
from attnlab.store.guards import inputs
from attnlab.store.run_schema import RunEstimate
from attnlab.sweep.plan import check_cache, config_files
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.composer import ComposedConfig, Composer

# resolvers whose values follow from their arguments and the environment
_REPRODUCIBLE_RESOLVERS = {"divide", "times", "eights", "oc.env"}
_RESOLVER = re.compile(r"\$\{\s*([\w.]+)\s*:")


class ArmCache:
    """Cached arms of one experiment at one replication.

    `cache_config` is a config that names the cache folder. `module` is the trainer that checks arms; None
    turns the cache off.
    """

    def __init__(
        self,
        cache_config: Mapping[str, Any],
        composer: Composer,
        module: str | None,
        experiment: Experiment,
        overrides: Sequence[str],
    ) -> None:
        self._cache_config = cache_config
        self._module = module or ""
        self._seed = experiment.seeds[0]
        self._cached_count = -1  # resolved values in the cached file
        self._cache_key: str | None = None
        with suppress(OSError, TypeError, ValueError):  # no working directory; a value without JSON form
            if module is not None and (files := _identify_config_files(composer)) is not None:
                hydra_overrides = composer.hydra_overrides
                content = [experiment.model_dump(mode="json"), list(overrides), hydra_overrides]
                content += [module, files]
                self._cache_key = fingerprint.compute_digest(
                    [content, check_cache.collect_environment_state()], 32
                )

    def load_arms(self) -> dict[str, Arm] | None:
        """Return the cached arms if every check would find them unchanged, else None."""
        if self._cache_key is None:
            return None
        entries = disk_cache.read_cache_entry(self._cache_config, "arms", self._cache_key)
        if not isinstance(entries, dict):
            return None
        try:
            arms = {str(name): _restore_arm(str(name), entry) for name, entry in entries.items()}
            for name, arm in arms.items():
                config = arm.config(self._seed)
                inputs.validate_inputs(config)
                check_key = entries[name]["check_key"]
                if check_key is None or check_cache.make_cache_key(config, self._module) != check_key:
                    return None
        except (KeyError, TypeError, AttributeError, ValidationError, InvalidConfig):
            return None
        self._cached_count = _count_resolved_values(arms)
        return arms

    def save_arms(self, arms: Mapping[str, Arm]) -> None:
        """Cache the arms with all values resolved so far, if any were added since they were loaded."""
        if (
            self._cache_key is None
            or _count_resolved_values(arms) == self._cached_count
            or not all(map(_is_reproducible, arms.values()))
        ):
            return
        content = {
            name: {
                "raw_config": arm.composed.raw_config,
                "choices": arm.composed.choices,
                "resolved_values": arm.composed.resolved_values,
                "changes": arm.changes,
                "overrides": list(arm.overrides),
                "estimate": arm.estimate.model_dump(mode="json"),
                "source": arm.source,
                "check_key": check_cache.make_cache_key(arm.config(self._seed), self._module),
            }
            for name, arm in arms.items()
        }
        with suppress(TypeError, ValueError):
            if json.loads(json.dumps(content, allow_nan=False)) == content:
                disk_cache.write_cache_entry(self._cache_config, "arms", self._cache_key, content)
                self._cached_count = _count_resolved_values(arms)


def _restore_arm(name: str, entry: Mapping[str, Any]) -> Arm:
    return Arm(
        name,
        ComposedConfig(entry["raw_config"], entry["choices"], entry["resolved_values"]),
        entry["changes"],
        tuple(entry["overrides"]),
        RunEstimate.model_validate(entry["estimate"]),
        entry["source"],
    )


def _count_resolved_values(arms: Mapping[str, Arm]) -> int:
    return sum(len(arm.composed.resolved_values) for arm in arms.values())


def _is_reproducible(arm: Arm) -> bool:
    """Whether the arm's values follow from its content, the environment and attnlab's code alone."""
    texts = [text for _, text in arm.composed.iter_interpolations()]
    resolvers = {name for text in texts for name in _RESOLVER.findall(text)}
    return resolvers <= _REPRODUCIBLE_RESOLVERS and not any("${hydra" in text for text in texts)


def _identify_config_files(composer: Composer) -> list[tuple[str | int, ...]] | None:
    """Return the identity of every file in the config folders.

    None if there is another kind of source, a link to a folder, or more than `check_cache.MAX_FILES` files.
    """
    sources = composer.master.hydra.runtime.config_sources
    known_schemes = (config_files.SCHEME, "file", "structured")
    if any(source.schema not in known_schemes and source.path != "hydra.conf" for source in sources):
        return None
    identities: list[tuple[str | int, ...]] = []
    for path in (path for folder in composer.folders for path in _iter_files_below(folder)):
        if path is None or len(identities) >= check_cache.MAX_FILES:
            return None
        identities.append(check_cache.identify_file(path))
    return identities


def _iter_files_below(folder: Path) -> Iterator[Path | None]:
    """Yield all files below a folder, and None for each link to a folder."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        yield from (None for name in folders if os.path.islink(os.path.join(parent, name)))
        yield from (Path(parent, name) for name in sorted(files))
