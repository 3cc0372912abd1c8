"""Composed, checked and matched arms in the cache: who plans again what was planned composes nothing.

Arms hold for as long as nothing changes that they could depend on: the experiment and the overrides, every
file of the command's config folders, and of each arm what its check depends on (`kept`). Where one of these
cannot be known, or a config is made of anything that is not known to be the same tomorrow (the time, Hydra's
own state), nothing is kept. Learning rates are no part of it: they are found anew in the store each time.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnlab.errors import Refused
from attnlab.store import answers, fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.guards import inputs
from attnlab.store.schema import Estimate
from attnlab.sweep.plan import config_files, kept
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.composer import Composed, Composer

_STEADY = {"divide", "times", "eights", "oc.env"}  # resolvers whose values are those of what the name has
_RESOLVER = re.compile(r"\$\{\s*([\w.]+)\s*:")


class ArmCache:
    """The arms of one experiment at one place. `where` is a config that names the cache, `module` the
    trainer that checks; None keeps nothing.
    """

    def __init__(
        self,
        where: Mapping[str, Any],
        composer: Composer,
        module: str | None,
        experiment: Experiment,
        overrides: Sequence[str],
    ) -> None:
        self._where = where
        self._module = module or ""
        self._seed = experiment.seeds[0]
        self._kept = -1  # values that the file has
        self._name: str | None = None
        with suppress(OSError, TypeError, ValueError):  # no working folder; a value that JSON does not have
            if module is not None and (files := _files(composer)) is not None:
                hydras = composer.hydra_overrides
                what = [experiment.model_dump(mode="json"), list(overrides), hydras, module, files]
                self._name = fingerprint.digest([what, kept.surroundings()], 32)

    def load(self) -> dict[str, Arm] | None:
        """The arms that were kept, each as its check would find it today; None where one is not."""
        found = None if self._name is None else answers.kept(self._where, "arms", self._name)
        if not isinstance(found, dict):
            return None
        try:
            arms = {str(name): _arm(str(name), entry) for name, entry in found.items()}
            for name, arm in arms.items():
                config = arm.config(self._seed)
                inputs.check(config)
                if (
                    found[name]["checked"] is None
                    or kept.name(config, self._module) != found[name]["checked"]
                ):
                    return None
        except (KeyError, TypeError, AttributeError, ValidationError, Refused):
            return None
        self._kept = _count(arms)
        return arms

    def keep(self, arms: Mapping[str, Arm]) -> None:
        """Keeps the arms with all values of theirs that are known by now."""
        if self._name is None or _count(arms) == self._kept or not all(map(_is_steady, arms.values())):
            return
        content = {
            name: {
                "written": arm.composed.written,
                "choices": arm.composed.choices,
                "known": arm.composed.known,
                "changes": arm.changes,
                "overrides": list(arm.overrides),
                "estimate": arm.estimate.model_dump(mode="json"),
                "source": arm.source,
                "checked": kept.name(arm.config(self._seed), self._module),
            }
            for name, arm in arms.items()
        }
        with suppress(TypeError, ValueError):
            if json.loads(json.dumps(content, allow_nan=False)) == content:
                answers.keep(self._where, "arms", self._name, content)
                self._kept = _count(arms)


def _arm(name: str, entry: Mapping[str, Any]) -> Arm:
    return Arm(
        name,
        Composed(entry["written"], entry["choices"], entry["known"]),
        entry["changes"],
        tuple(entry["overrides"]),
        Estimate.model_validate(entry["estimate"]),
        entry["source"],
    )


def _count(arms: Mapping[str, Arm]) -> int:
    return sum(len(arm.composed.known) for arm in arms.values())


def _is_steady(arm: Arm) -> bool:
    """Whether its values are those of its content, the environment and attnlab's code alone."""
    texts = [text for _, text in arm.composed.interpolations()]
    resolvers = {name for text in texts for name in _RESOLVER.findall(text)}
    return resolvers <= _STEADY and not any("${hydra" in text for text in texts)


def _files(composer: Composer) -> list[tuple[str | int, ...]] | None:
    """The identity of every file in the config folders; None where there is another kind of source, a link
    to a folder, or too many files.
    """
    sources = composer.master.hydra.runtime.config_sources
    plain = (config_files.SCHEME, "file", "structured")
    if any(source.schema not in plain and source.path != "hydra.conf" for source in sources):
        return None
    found: list[tuple[str | int, ...]] = []
    for path in (path for folder in composer.folders for path in _below(folder)):
        if path is None or len(found) >= kept.MANY:
            return None
        found.append(kept.identity(path))
    return found


def _below(folder: Path) -> Iterator[Path | None]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        yield from (None for name in folders if os.path.islink(os.path.join(where, name)))
        yield from (Path(where, name) for name in sorted(files))
