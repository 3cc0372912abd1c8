"""An arm of a plan: composed once, checked, matched; then a run for each of its seeds.

The seeds are filled in afterwards, as a last override `seed=s` would do it, and so is a learning rate.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnlab.errors import Refused
from attnlab.store import fingerprint, values
from attnlab.store.guards import parents
from attnlab.store.schema import Estimate, RunSpec, Use
from attnlab.sweep.plan import matching
from attnlab.sweep.plan.checks import Checker
from attnlab.sweep.plan.composer import Composed
from attnlab.sweep.plan.overrides import keys as keys_of
from attnlab.sweep.plan.overrides import leaf
from attnlab.sweep.plan.trainer import trainer_of


@dataclass(frozen=True)
class Arm:
    """A composed arm that was checked, with some leaves changed; `overrides` compose the same, whatever its
    seed.
    """

    name: str
    composed: Composed
    changes: dict[str, Any]
    overrides: tuple[str, ...]
    estimate: Estimate
    source: dict[str, str]

    def config(self, seed: int) -> dict[str, Any]:
        """Its values at a seed."""
        return self.composed.values({**self.changes, "seed": seed})

    def runs(self, seeds: Sequence[int], called: str | None = None) -> list[RunSpec]:
        """A run per seed, under the arm's name or another."""
        chosen = self.composed.axes
        specs = []
        for seed in seeds:
            use = Use(arm=called or self.name, axes=chosen, overrides=(*self.overrides, f"seed={seed}"))
            specs.append(identified(self.config(seed), self.estimate, self.source, use))
        return specs

    def recipe(self) -> str:
        """A digest of its config at one seed, whatever the seeds that it is trained with."""
        return fingerprint.digest(fingerprint.kept(self.config(1)))  # not 0: what is made of the seed shows

    def at(self, key: str, value: float, figure: str) -> "Arm":
        """The arm with another value of a key that is one of its estimates, and that no other depends on."""
        known = self.estimate.get(figure) is not None
        estimate = self.estimate.model_copy(update={figure: value}) if known else self.estimate
        overrides = (*self.overrides, f"{key}={value}")
        return replace(self, changes={**self.changes, key: value}, estimate=estimate, overrides=overrides)

    def check_at(
        self, changes: Mapping[str, Any], overrides: Sequence[str], seed: int, checker: Checker
    ) -> "Arm":
        """The arm with other numbers, which its runs name by `overrides`, checked anew."""
        changed = replace(self, changes={**self.changes, **changes}, overrides=(*self.overrides, *overrides))
        return replace(changed, estimate=checker.check(changed.config(seed)))


def check_arm(
    name: str,
    composed: Composed,
    overrides: Sequence[str],
    seed: int,
    checker: Checker,
    target: tuple[str, str, float] | None = None,
) -> Arm:
    """A composed arm, checked, and matched where there is a `target` (key, figure, value).

    Raises:
        Refused: one line, where it cannot be trained.
    """
    arm = Arm(name, composed, {}, tuple(overrides), Estimate(), {})
    if target is not None:
        key, figure, value = target
        matched = _match(composed, seed, key, figure, value, checker)
        arm = replace(arm, changes={key: matched}, overrides=(*overrides, f"{key}={matched}"))
    config = arm.config(seed)
    _refuse_non_finite(config)
    values.refuse(config, values.SWEEP)
    estimate = checker.check(config)
    return replace(arm, estimate=estimate, source=fingerprint.source(config, trainer_of(config)))


def identified(config: dict[str, Any], estimate: Estimate, source: dict[str, str], use: Use) -> RunSpec:
    """The run of a resolved config, under the id that this gives it."""
    run_id, identity = fingerprint.identify(config, estimate, source)
    config = {**config, "id": run_id}
    return RunSpec(id=run_id, config=config, identity=identity, estimate=estimate, use=use)


def _starting_from(run: RunSpec, parent: RunSpec) -> RunSpec:
    """The same run with its parent's id, which becomes part of its own. Refused where their token ids mean
    different tokens.
    """
    try:
        parents.refuse_other_vocabulary(run.config["parent"], parent.estimate.data, run.estimate.data)
    except Refused as error:
        raise Refused(f"arm {run.arm}: {error}") from error
    config = {**run.config, "parent": parent.id, "id": None}
    use = run.use.model_copy(update={"overrides": (*run.use.overrides, f"parent='{parent.id}'")})
    return identified(config, run.estimate, run.identity["source"], use)


def with_parents(runs: list[RunSpec], arms: set[str]) -> list[RunSpec]:
    """`parent: <arm>` means the run of that arm with the same seed; its id becomes part of the child's."""
    done = {(run.arm, run.seed): run for run in runs if run.config.get("parent") not in arms}
    while len(done) < len(runs):
        ready = [
            run
            for run in runs
            if (run.arm, run.seed) not in done and (run.config["parent"], run.seed) in done
        ]
        if not ready:
            raise Refused("parent: the arms continue from one another in a circle")
        for run in ready:
            done[run.arm, run.seed] = _starting_from(run, done[run.config["parent"], run.seed])
    return [done[run.arm, run.seed] for run in runs]


def _match(composed: Composed, seed: int, key: str, figure: str, target: float, checker: Checker) -> int:
    start = leaf(composed.values({"seed": seed}), key)
    if not isinstance(start, int) or isinstance(start, bool) or start < 1:
        raise Refused(f"match_by={key} must name a positive integer, and it is {start!r}")

    def at(value: int) -> float:
        return checker.count_resource(composed.values({"seed": seed, key: value}), figure)

    return matching.solve(at, target, start, what=figure)


def _refuse_non_finite(config: Mapping[str, Any]) -> None:
    for key, content in fingerprint.flatten(config):
        for value in content if isinstance(content, list) else [content]:
            if isinstance(value, float) and not math.isfinite(value):
                raise Refused(f"{key}={value} is not a finite number")


def blamed(complaint: str, arm: str, own: Sequence[str]) -> tuple[str | int, ...]:
    """The key that a complaint begins with, as in `trainer.max_steps=0: ...`, where the file or the arm sets
    it.
    """
    word = re.match(r"[\w.]*\w", complaint)
    key = word[0] if word else ""
    if key in keys_of(own):
        return "arm_overrides", arm, list(keys_of(own)).index(key)
    return tuple(key.split("."))


def refuse_twins(runs: Sequence[RunSpec]) -> None:
    """Refused where two arms are one and the same run."""
    seen: dict[str, RunSpec] = {}
    for run in runs:
        other = seen.setdefault(run.id, run)
        if other is not run:
            raise Refused(
                f"arms {other.arm} and {run.arm} are one and the same run ({run.id}): "
                f"make them differ, or set replica=1 in one for a deliberate twin"
            )
