"""The plan of a command: every run composed, checked, matched and named before the first one starts.

An arm is composed once and its seeds are filled in afterwards, as a last override `seed=s` would do it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from attnlab.errors import Refused
from attnlab.sweep import command, match, semantic
from attnlab.sweep import experiment as experiments
from attnlab.sweep.checker import Checker, trainer

SINGLE = "run"  # the arm's name where there is no experiment
_NEUTRAL = ("experiment", "paths", "sweep", "logger", "hydra")  # these change no report


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


@dataclass
class Plan:
    """The runs of one report. `experiment` is None where the command names none.

    `declared` is the experiment as its file has it, `changed` what the command line altered in it.
    """

    experiment: dict[str, Any] | None
    runs: list[Run] = field(default_factory=list)
    declared: dict[str, Any] | None = None
    changed: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()  # the laws that its arms break, where that was let pass

    @property
    def title(self) -> str:
        """`name`, or `name~hash` where the command line changed the experiment."""
        name = self.experiment["name"] if self.experiment else SINGLE
        return f"{name}~{semantic.digest(sorted(self.changed), 8)}" if self.changed else name

    def arms(self) -> dict[str, list[Run]]:
        arms: dict[str, list[Run]] = {}
        for run in self.runs:
            arms.setdefault(run.arm, []).append(run)
        return arms


class Composer:
    """Hydra's config loader, asked for one job of the sweep at a time."""

    def __init__(self, loader: Any, master: DictConfig) -> None:
        self.loader, self.master = loader, master

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        config = self.loader.load_sweep_config(self.master, list(overrides))
        HydraConfig.instance().set_config(config)  # for ${hydra:...}
        return config

    @staticmethod
    def resolve(config: DictConfig) -> dict[str, Any]:
        config = config.copy()
        with open_dict(config):
            config.pop("hydra", None)
        found = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        assert isinstance(found, dict)
        return found


def plan(arguments: Sequence[str], composer: Composer, checker: Checker) -> list[Plan]:
    """One plan per report that the command line asks for. Raises Refused with one line."""
    line = command.read(arguments, composer.loader)
    plans = [_plan(point, line.seeds, composer, checker) for point in line.points]
    titles = [one.title for one in plans if one.experiment]
    if len(set(titles)) < len(titles):
        raise Refused("two values of a swept key give the same report: name each value once")
    return plans


def _plan(point: Sequence[str], seeds: Sequence[int] | None, composer: Composer, checker: Checker) -> Plan:
    base_config = composer.compose(point)
    base = composer.resolve(base_config)
    if "arms" not in base:
        chosen = tuple(seeds) if seeds is not None else (experiments.integer(base.get("seed", 0), "seed"),)
        chosen = experiments.no_repeat(chosen)
        return Plan(None, _arm_runs(SINGLE, base_config, point, chosen, None, composer, checker, {}))
    if seeds is not None:
        base["seeds"] = list(seeds)
    experiment = experiments.complete(base)
    size = (experiment.get("size_overrides") or {}).get(base.get("size")) or []
    runs: list[Run] = []
    target: float | None = None
    order = sorted(
        experiment["arms"], key=lambda arm: arm != experiment["baseline"]
    )  # the baseline sets the target
    for arm in order:
        own = experiment["arm_overrides"][arm]
        command.refuse_hidden(point, arm, own)
        overrides = [*size, *point, *own]
        config = composer.compose(overrides)
        matching = None if arm == experiment["baseline"] or experiment["match"] == "none" else target
        if matching is not None:
            _refuse_matched_key(arm, own, experiment["match_by"])
        found = _arm_runs(
            arm, config, overrides, experiment["seeds"], matching, composer, checker, experiment
        )
        if arm == experiment["baseline"] and experiment["match"] != "none":
            target = found[0].figures[match.FIGURES[experiment["match"]]]
        runs += found
    rank = {arm: i for i, arm in enumerate(experiment["arms"])}
    runs.sort(
        key=lambda run: (run.seed, rank[run.arm])
    )  # seed by seed: an interrupted sweep leaves whole pairs
    runs = _with_parents(runs, set(rank))
    _refuse_twins(runs)
    named = [line for line in point if "experiment" in command.keys([line])]
    declared_config = base_config if len(named) == len(point) else composer.compose(named)
    declared = experiments.keys(composer.resolve(declared_config))
    return Plan(experiment, runs, declared, _changes(point, seeds, declared_config, declared))


def _arm_runs(
    arm: str,
    config: DictConfig,
    overrides: Sequence[str],
    seeds: Sequence[int],
    target: float | None,
    composer: Composer,
    checker: Checker,
    experiment: Mapping[str, Any],
) -> list[Run]:
    overrides = tuple(overrides)
    try:
        OmegaConf.update(config, "seed", seeds[0])
        if target is not None:
            by, figure = experiment["match_by"], match.FIGURES[experiment["match"]]
            value = _match(config, by, figure, target, composer, checker)
            overrides += (f"{by}={value}",)
        resolved = composer.resolve(config)
        _refuse_non_finite(resolved)
        figures = checker.check(resolved)
    except ValueError as error:
        raise Refused(f"arm {arm}: {error}" if experiment else str(error)) from error
    source = semantic.source(resolved, trainer(resolved))
    runs = []
    for seed in seeds:
        OmegaConf.update(config, "seed", seed)
        resolved = composer.resolve(config)
        runs.append(_run(arm, seed, resolved, figures, source, (*overrides, f"seed={seed}")))
    return runs


def _run(
    arm: str,
    seed: int,
    config: dict[str, Any],
    figures: dict[str, Any],
    source: dict[str, str],
    overrides: tuple[str, ...],
) -> Run:
    run_id, hashed = semantic.identify(config, figures, source)
    return Run(run_id, arm, seed, {**config, "id": run_id}, figures, hashed, overrides)


def _match(
    config: DictConfig, by: str, figure: str, target: float, composer: Composer, checker: Checker
) -> int:
    start = OmegaConf.select(config, by)
    if not isinstance(start, int) or isinstance(start, bool) or start < 1:
        raise Refused(f"match_by={by} must name a positive integer, and it is {start!r}")

    def at(value: int) -> float:
        OmegaConf.update(config, by, value)
        return checker.check(composer.resolve(config))[figure]

    value = match.solve(at, target, start, what=figure)
    OmegaConf.update(config, by, value)
    return value


def _refuse_matched_key(arm: str, own: Sequence[str], by: str) -> None:
    if by in command.keys(own):
        raise Refused(f"arm {arm} sets {by}, which match_by solves for: drop one of the two")


def _refuse_non_finite(config: Mapping[str, Any]) -> None:
    for key, leaf in semantic.flatten(config):
        for value in leaf if isinstance(leaf, list) else [leaf]:
            if isinstance(value, float) and not math.isfinite(value):
                raise Refused(f"{key}={value} is not a finite number")


def _refuse_twins(runs: Sequence[Run]) -> None:
    seen: dict[str, Run] = {}
    for run in runs:
        other = seen.setdefault(run.id, run)
        if other is not run:
            raise Refused(
                f"arms {other.arm} and {run.arm} are one and the same run ({run.id}): "
                f"make them differ, or set replica=1 in one for a deliberate twin"
            )


def _with_parents(runs: list[Run], arms: set[str]) -> list[Run]:
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
            parent = done[run.config["parent"], run.seed].id
            config = {**run.config, "parent": parent, "id": None}
            overrides = (*run.overrides, f"parent='{parent}'")
            source = run.semantic["source"]
            done[run.arm, run.seed] = _run(run.arm, run.seed, config, run.figures, source, overrides)
    return [done[run.arm, run.seed] for run in runs]


def _changes(
    point: Sequence[str], seeds: Sequence[int] | None, declared: DictConfig, keys: Mapping[str, Any]
) -> tuple[str, ...]:
    """The overrides of the command line that make this report another than the declared one."""
    choices = declared.hydra.runtime.choices
    changes = []
    for override in command.parse(point):
        key = override.key_or_group
        same = choices[key] if key in choices else OmegaConf.select(declared, key, default=None)
        same = OmegaConf.to_container(same) if OmegaConf.is_config(same) else same
        neutral = key.split(".")[0].split("/")[0] in _NEUTRAL
        if not neutral and not (same is not None and same == override.value()):
            changes.append(str(override.input_line))
    if seeds is not None and list(seeds) != keys.get("seeds"):
        changes.append(f"seeds={list(seeds)}")
    return tuple(changes)
