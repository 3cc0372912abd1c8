"""An arm of a plan: composed once, checked, matched; then a run for each of its seeds.

The seeds are filled in afterwards, as a last override `seed=s` would do it, and so is a learning rate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.sweep.plan import matching as match
from attnlab.sweep.plan.checks import Checker, trainer
from attnlab.sweep.plan.composer import Composer


@dataclass(frozen=True)
class Run:
    """One arm with one seed. `overrides` compose it again, by hand or in another launcher."""

    id: str
    arm: str
    seed: int
    config: dict[str, Any]
    figures: dict[str, Any]
    semantic: dict[str, Any]
    overrides: tuple[str, ...]

    def starting_from(self, parent: str) -> "Run":
        """The same run with its parent's id, which becomes part of its own."""
        config = {**self.config, "parent": parent, "id": None}
        overrides = (*self.overrides, f"parent='{parent}'")
        return _run(self.arm, self.seed, config, self.figures, self.semantic["source"], overrides)


@dataclass(frozen=True)
class Arm:
    """A composed arm that was checked; `overrides` compose it again, whatever its seed."""

    name: str
    config: DictConfig
    overrides: tuple[str, ...]
    figures: dict[str, Any]
    source: dict[str, str]

    def runs(self, seeds: Sequence[int], called: str | None = None) -> list[Run]:
        """A run per seed, under the arm's name or another."""
        found = []
        for seed in seeds:
            OmegaConf.update(self.config, "seed", seed)
            config, overrides = Composer.resolve(self.config), (*self.overrides, f"seed={seed}")
            found.append(_run(called or self.name, seed, config, self.figures, self.source, overrides))
        return found

    def at(self, key: str, value: float, figure: str) -> "Arm":
        """The arm with another value of a key that is one of its figures, and that no other depends on."""
        config = self.config.copy()
        OmegaConf.update(config, key, value)
        figures = self.figures | ({figure: value} if figure in self.figures else {})
        return replace(self, config=config, figures=figures, overrides=(*self.overrides, f"{key}={value}"))


def arm(
    name: str,
    config: DictConfig,
    overrides: Sequence[str],
    seed: int,
    checker: Checker,
    matching: tuple[str, str, float] | None = None,
) -> Arm:
    """Checked, and where `matching` (key, figure, target) asks for it, matched. Refused with one line."""
    overrides = tuple(overrides)
    OmegaConf.update(config, "seed", seed)
    if matching is not None:
        key, figure, target = matching
        overrides += (f"{key}={_match(config, key, figure, target, checker)}",)
    resolved = Composer.resolve(config)
    _refuse_non_finite(resolved)
    figures = checker.check(resolved)
    return Arm(name, config, overrides, figures, fingerprint.source(resolved, trainer(resolved)))


def _run(
    arm: str,
    seed: int,
    config: dict[str, Any],
    figures: dict[str, Any],
    source: dict[str, str],
    overrides: tuple[str, ...],
) -> Run:
    run_id, hashed = fingerprint.identify(config, figures, source)
    return Run(run_id, arm, seed, {**config, "id": run_id}, figures, hashed, overrides)


def _match(config: DictConfig, key: str, figure: str, target: float, checker: Checker) -> int:
    start = OmegaConf.select(config, key)
    if not isinstance(start, int) or isinstance(start, bool) or start < 1:
        raise Refused(f"match_by={key} must name a positive integer, and it is {start!r}")

    def at(value: int) -> float:
        OmegaConf.update(config, key, value)
        return checker.check(Composer.resolve(config))[figure]

    value = match.solve(at, target, start, what=figure)
    OmegaConf.update(config, key, value)
    return value


def _refuse_non_finite(config: Mapping[str, Any]) -> None:
    for key, leaf in fingerprint.flatten(config):
        for value in leaf if isinstance(leaf, list) else [leaf]:
            if isinstance(value, float) and not math.isfinite(value):
                raise Refused(f"{key}={value} is not a finite number")
