"""Arms of a plan: each is composed once, checked and matched, then gives one run per seed.

Seeds are filled in afterwards, as a last override `seed=s` would do it, and so is a learning rate.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store import config_groups, fingerprint
from attnlab.store.guards import parent_split, parent_vocabulary
from attnlab.store.run_schema import RunConfig, RunEstimate, Use
from attnlab.sweep.plan import budget_matching
from attnlab.sweep.plan.checker import Checker
from attnlab.sweep.plan.composer import ComposedConfig
from attnlab.sweep.plan.overrides import get_leaf, index_by_key
from attnlab.sweep.plan.trainer import get_trainer_name


@dataclass(frozen=True)
class Arm:
    """A composed and checked arm, with some leaves changed.

    `overrides` compose the same config again, up to the seed.
    """

    name: str
    composed: ComposedConfig
    changes: dict[str, Any]
    overrides: tuple[str, ...]
    estimate: RunEstimate
    source: dict[str, str]

    def config(self, seed: int) -> dict[str, Any]:
        """Return the resolved config at a seed."""
        return self.composed.resolve_values({**self.changes, "seed": seed})

    def make_run_configs(self, seeds: Sequence[int], arm_name: str | None = None) -> list[RunConfig]:
        """Make one run config per seed, under the arm's name or `arm_name`."""
        axes = self.composed.axes
        run_configs = []
        for seed in seeds:
            use = Use(
                arm=arm_name or self.name,
                base_arm=self.name,
                axes=axes,
                overrides=(*self.overrides, f"seed={seed}"),
            )
            run_configs.append(make_run_config(self.config(seed), self.estimate, self.source, use))
        return run_configs

    def compute_config_digest(self) -> str:
        """Return a digest of the config at one fixed seed, whichever seeds the arm is trained with."""
        # seed 1, not 0: values derived from the seed then differ from their defaults
        return fingerprint.compute_digest(fingerprint.strip_excluded_keys(self.config(1)))

    def with_value(self, key: str, value: float, figure: str) -> "Arm":
        """Return the arm with another value of `key`, which is also the entry `figure` of its estimate.

        No other value of the config or of the estimate may depend on the key.
        """
        is_estimated = self.estimate.get(figure) is not None
        estimate = self.estimate.model_copy(update={figure: value}) if is_estimated else self.estimate
        overrides = (*self.overrides, f"{key}={value}")
        return replace(self, changes={**self.changes, key: value}, estimate=estimate, overrides=overrides)

    def recheck_with_changes(
        self, changes: Mapping[str, Any], overrides: Sequence[str], seed: int, checker: Checker
    ) -> "Arm":
        """Return the arm with changed values, checked anew; its runs list the changes as `overrides`."""
        arm = replace(self, changes={**self.changes, **changes}, overrides=(*self.overrides, *overrides))
        return replace(arm, estimate=checker.check(arm.config(seed)))


def check_arm(
    name: str,
    composed: ComposedConfig,
    overrides: Sequence[str],
    seed: int,
    checker: Checker,
    target: tuple[str, str, float] | None = None,
) -> Arm:
    """Check a composed arm; with a `target` (key, figure, value), first solve the key for that value."""
    arm = Arm(name, composed, {}, tuple(overrides), RunEstimate(), {})
    if target is not None:
        key, figure, value = target
        matched = _match_budget(composed, seed, key, figure, value, checker)
        arm = replace(arm, changes={key: matched}, overrides=(*overrides, f"{key}={matched}"))
    config = arm.config(seed)
    _reject_non_finite_values(config)
    config_groups.validate_groups(config, config_groups.SWEEP_GROUPS)
    estimate = checker.check(config)
    return replace(
        arm, estimate=estimate, source=fingerprint.hash_run_source(config, get_trainer_name(config))
    )


def make_run_config(
    config: dict[str, Any], estimate: RunEstimate, source: dict[str, str], use: Use
) -> RunConfig:
    """Make the run config of a resolved config, with the run id that follows from it."""
    run_id, identity = fingerprint.compute_run_id(config, estimate, source)
    config = {**config, "id": run_id}
    return RunConfig(id=run_id, config=config, identity=identity, estimate=estimate, use=use)


def _link_parent(run: RunConfig, parent: RunConfig) -> RunConfig:
    """Return the run with its parent's id, which becomes part of its own id.

    Raises:
        InvalidConfig: Parent and child map token ids to different tokens, or split their text differently.
    """
    facts = (run.config["parent"], parent.estimate.data, run.estimate.data)
    try:
        parent_vocabulary.require_same_vocabulary(*facts)
        parent_split.require_same_split(*facts)
    except InvalidConfig as error:
        raise InvalidConfig(f"arm {run.arm}: {error}") from error
    config = {**run.config, "parent": parent.id, "id": None}
    use = run.use.model_copy(update={"overrides": (*run.use.overrides, f"parent='{parent.id}'")})
    return make_run_config(config, run.estimate, run.identity["source"], use)


def link_parents(runs: list[RunConfig], arms: set[str]) -> list[RunConfig]:
    """Replace `parent: <arm>` by the id of that arm's run with the same seed.

    The parent's id becomes part of the child's.
    """
    linked = {(run.arm, run.seed): run for run in runs if run.config.get("parent") not in arms}
    while len(linked) < len(runs):
        linkable = [
            run
            for run in runs
            if (run.arm, run.seed) not in linked and (run.config["parent"], run.seed) in linked
        ]
        if not linkable:
            raise InvalidConfig(
                "parent: the arms continue from each other in a cycle: set parent=null in one"
            )
        for run in linkable:
            linked[run.arm, run.seed] = _link_parent(run, linked[run.config["parent"], run.seed])
    return [linked[run.arm, run.seed] for run in runs]


def _match_budget(
    composed: ComposedConfig, seed: int, key: str, figure: str, target: float, checker: Checker
) -> int:
    """Return the value of `key` at which the arm's `figure` is closest to the target."""
    start = get_leaf(composed.resolve_values({"seed": seed}), key)
    if not isinstance(start, int) or isinstance(start, bool) or start < 1:
        raise InvalidConfig(
            f"match_by={key}: the value {start!r} of this key is not a positive integer; choose another key"
        )

    def count_at(value: int) -> float:
        return checker.count_resource(composed.resolve_values({"seed": seed, key: value}), figure)

    return budget_matching.solve_for_target(count_at, target, start, figure_name=figure)


def _reject_non_finite_values(config: Mapping[str, Any]) -> None:
    for key, content in fingerprint.flatten_config(config):
        for value in content if isinstance(content, list) else [content]:
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidConfig(f"{key}={value} is not a finite number: change it")


def locate_invalid_key(message: str, arm: str, arm_overrides: Sequence[str]) -> tuple[str | int, ...]:
    """Return the path of the key that an error message starts with, as in `trainer.max_steps=0: ...`.

    The path leads into the arm's overrides if they set the key, else to the key in the experiment file.
    """
    match = re.match(r"[\w.]*\w", message)
    key = match[0] if match else ""
    lines_by_key = index_by_key(arm_overrides)
    if key in lines_by_key:
        return "arm_overrides", arm, list(lines_by_key).index(key)
    return tuple(key.split("."))


def reject_duplicate_runs(runs: Sequence[RunConfig]) -> None:
    """Check that every arm has runs of its own."""
    run_by_id: dict[str, RunConfig] = {}
    for run in runs:
        other = run_by_id.setdefault(run.id, run)
        if other is not run:
            raise InvalidConfig(
                f"arms {other.arm} and {run.arm} are the same run ({run.id}): make them differ, or "
                "set replica=1 in one for a deliberate duplicate"
            )
