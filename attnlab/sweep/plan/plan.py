"""The plan of a command: every run composed, checked, matched and named before the first one starts.

Where learning rates are tuned, what the comparison's runs are is known once that is done: until then they
stand in the plan at the lowest rate, checked, and `untuned` names their arms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from attnlab.errors import Refused
from attnlab.store import experiment_files, fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.experiment_files import Written
from attnlab.store.schema import RunSpec
from attnlab.sweep.plan import experiment as experiments
from attnlab.sweep.plan import matching as match
from attnlab.sweep.plan import overrides as command
from attnlab.sweep.plan.answerable import refuse_unanswerable
from attnlab.sweep.plan.arms import Arm, blamed, refuse_twins, with_parents
from attnlab.sweep.plan.arms import arm as checked_arm
from attnlab.sweep.plan.checks import Checker
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.exchange import runs as exchanges
from attnlab.sweep.plan.exchange.told import Exchange
from attnlab.sweep.plan.replications.replication import Replication, replications
from attnlab.sweep.plan.replications.rungs import carried
from attnlab.sweep.plan.tuning import lr_grid
from attnlab.sweep.plan.tuning.found import Tuning
from attnlab.sweep.waiting import waiting

SINGLE = "run"  # the arm's name where there is no experiment


@dataclass
class Plan:
    """The runs of one report. `experiment` is None where the command names none.

    `declared` is the experiment as its file has it, None of a comparison that is in no file; `changed` what
    the command line altered in it.
    """

    experiment: Experiment | None
    runs: list[RunSpec] = field(default_factory=list)
    declared: dict[str, Any] | None = None
    changed: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()  # the laws that its arms break, where that was let pass
    grid: list[RunSpec] = field(default_factory=list)  # what is trained to tune the learning rate
    tuned: Tuning | None = None
    recipes: dict[str, str] = field(default_factory=dict)  # a digest of each arm's config, whatever its seeds
    exchange: Exchange | None = None  # what tells a difference as training
    replication: Replication | None = None  # where else its experiment is asked; None: at the place it names
    rung: "Plan | None" = None  # of the ladder, where its learning rates are tuned

    @property
    def name(self) -> str:
        """The experiment's, and the place where it is asked once more."""
        name = self.experiment.name if self.experiment else SINGLE
        return f"{name}{self.replication.called}" if self.replication else name

    @property
    def title(self) -> str:
        """`name`, or `name~hash` where the command line changed the experiment; and the place."""
        return f"{self._asked}{self.replication.called}" if self.replication else self._asked

    @property
    def together(self) -> str:
        """The title of what all its places say together."""
        return f"{self._asked}{self.replication.together}" if self.replication else self._asked

    @property
    def _asked(self) -> str:
        name = self.experiment.name if self.experiment else SINGLE
        return f"{name}~{fingerprint.digest(sorted(self.changed), 8)}" if self.changed else name

    @property
    def all_runs(self) -> list[RunSpec]:
        """The grid's runs, those of the exchange and the comparison's."""
        return [*self.grid, *(self.exchange.runs if self.exchange else ()), *self.runs]

    @property
    def untuned(self) -> list[str]:
        """The arms whose learning rate is not known yet."""
        if self.rung is not None:
            return self.rung.untuned
        return [arm for arm in self.tuned.arms if self.tuned.picked(arm) is None] if self.tuned else []

    @property
    def trading(self) -> list[RunSpec]:
        """The runs of the exchange, once the baseline's learning rate is known."""
        return self.exchange.runs if self.exchange and self.exchange.baseline not in self.untuned else []

    def flops(self) -> float:
        """Of its longest run."""
        return max(run.estimate.training_flops for run in self.runs)

    def arms(self) -> dict[str, list[RunSpec]]:
        """The comparison's runs by arm."""
        arms: dict[str, list[RunSpec]] = {}
        for run in self.runs:
            arms.setdefault(run.arm, []).append(run)
        return arms


@waiting("composing and checking the runs")
def plan(
    arguments: Sequence[str],
    composer: Composer,
    checker: Checker,
    lookup: lr_grid.Lookup = lambda _id: None,
    commit: tuple[str | None, bool | None] = (None, None),
) -> list[Plan]:
    """One plan per report that the command asks for; `lookup` finds the records of trained runs, `commit`
    is attnlab's and whether it was edited.

    Raises Refused with one line.
    """
    line = command.read(arguments, composer.loader)
    asked = (line.seeds, composer, checker, lookup)
    swept = _swept(line, composer, checker) if len(line.points) > 1 else None
    plans = [swept] if swept else [place for point in line.points for place in _places(point, *asked)]
    titles = [report_plan.title for report_plan in plans if report_plan.experiment]
    if len(set(titles)) < len(titles):
        raise Refused("two values of a swept key give the same report: name each value once")
    for report_plan in plans:
        report_plan.runs, report_plan.grid = (
            [_at_commit(run, commit) for run in runs] for runs in (report_plan.runs, report_plan.grid)
        )
        if trade := report_plan.exchange:
            report_plan.exchange = trade.but([_at_commit(run, commit) for run in trade.runs])
    return plans


def _at_commit(run: RunSpec, commit: tuple[str | None, bool | None]) -> RunSpec:
    return run.used(commit=commit[0], dirty=commit[1])


def _places(
    point: Sequence[str],
    seeds: Sequence[int] | None,
    composer: Composer,
    checker: Checker,
    lookup: lr_grid.Lookup,
) -> list[Plan]:
    """A plan for each text, or each rung, of an experiment; one where it is asked once."""
    declared = [line for line in point if "texts" not in command.keys([line])]
    own = None if len(declared) == len(point) else composer.at_size(declared)[0]
    config, at_size = composer.at_size(point)
    base = composer.resolve(config)
    texts = (config if own is None else own).get("texts")
    places = replications(command.seeded(base, point, seeds), [*at_size, *point], texts)
    composed = (config, at_size, base)
    plans = dict[str, Plan]()
    for place in sorted(places, key=lambda place: bool(place and place.rates)):  # after the one they follow
        rung = plans[place.rates] if place and place.rates else None
        found = _plan(point, seeds, composed, composer, checker, lookup, place, rung)
        plans[place.name if place else ""] = found
    return [plans[place.name if place else ""] for place in places]


def _plan(
    point: Sequence[str],
    seeds: Sequence[int] | None,
    composed: tuple[DictConfig, list[str], dict[str, Any]],
    composer: Composer,
    checker: Checker,
    lookup: lr_grid.Lookup,
    place: Replication | None,
    rung: Plan | None,
) -> Plan:
    base_config, at_size, base = composed
    written = _written(base_config, point, seeds)
    if "arms" not in base and written.file is None:
        experiments.refuse_declared(base)
        chosen = tuple(seeds) if seeds is not None else (experiments.integer(base.get("seed", 0), "seed"),)
        chosen = experiments.no_repeat(chosen)
        composer.refuse_idle(base_config, point)
        return Plan(None, checked_arm(SINGLE, base_config, point, chosen[0], checker).runs(chosen))
    try:
        base = command.seeded(base, point, seeds) | (dict(place.keys) if place else {})
        base["name"] = _name(base_config, written)
        experiment = experiments.complete(base)
        arms = _arms(experiment, point, place, composer, checker, written)
        estimates = {name: arm.estimate for name, arm in arms.items()}
        refuse_unanswerable(experiment, base.get("claims") or [], estimates)
        size = f"{experiment.size}{place.called}" if place else base.get("size")
        tuned, grid = lr_grid.tuned(experiment, arms, size, point, checker, lookup, written.find)
        rates = {name: tuned.picked(name) or tuned.grid.rates[0] for name in arms} if tuned else {}
        if place and place.ladder and rung:
            there = {name: runs[0] for name, runs in rung.arms().items()}
            rates = carried(place.ladder, there, arms, experiment.baseline)
        for name, rate in rates.items():
            arms[name] = arms[name].at(lr_grid.KEY, rate, lr_grid.FIGURE)
        exchange = exchanges.planned(experiment, arms[experiment.baseline], checker)
    except Refused as error:
        raise Refused(f"{written.place(error.at)}{error}") from error
    runs = _runs(experiment, arms)
    named = [line for line in point if "experiment" in command.keys([line])]
    alone = composer.compose(named)
    changes = command.changes(point, seeds, alone, experiments.keys(composer.resolve(alone)))
    declared = experiments.keys(composer.resolve(composer.compose([*at_size, *named]) if at_size else alone))
    declared |= place.keys if place else {}
    recipes = {name: arm.recipe() for name, arm in arms.items()}
    return Plan(experiment, runs, declared, changes, (), grid, tuned, recipes, exchange, place, rung)


def _runs(experiment: Experiment, arms: Mapping[str, Arm]) -> list[RunSpec]:
    """Seed by seed: an interrupted sweep leaves whole pairs."""
    runs = [run for arm in arms.values() for run in arm.runs(experiment.seeds)]
    rank = {arm: i for i, arm in enumerate(experiment.arms)}
    runs.sort(key=lambda run: (run.seed, rank[run.arm]))
    runs = with_parents(runs, set(rank))
    refuse_twins(runs)
    return runs


def _swept(line: command.Command, composer: Composer, checker: Checker) -> Plan | None:
    """The plan of a command that sweeps keys and names no experiment: its arms are the combinations. None of
    another command, and of one that trains nothing.
    """
    config = composer.compose(line.points[0])
    base = composer.resolve(config)
    written = _written(config, line.points[0], line.seeds)
    if "arms" in base or written.file is not None or base.get("measurement"):
        return None
    experiments.refuse_declared(base)
    point, own = command.parted(line.points)
    experiment = experiments.undeclared(base, own, line.seeds)
    arms = _arms(experiment, point, None, composer, checker, written)
    refuse_unanswerable(experiment, [], {name: arm.estimate for name, arm in arms.items()})
    recipes = {name: arm.recipe() for name, arm in arms.items()}
    changed = command.changes(point, line.seeds, composer.compose([]), {"seeds": [base.get("seed")]})
    return Plan(experiment, _runs(experiment, arms), changed=changed, recipes=recipes)


def _written(config: DictConfig, point: Sequence[str], seeds: Sequence[int] | None) -> Written:
    """Where the experiment of a composed config was written."""
    runtime = config.hydra.runtime
    folders = [Path(source.path) for source in runtime.config_sources if source.schema == "file"]
    find = partial(experiment_files.find, folders)
    given = {key: line for key, line in command.keys(point).items() if key != experiment_files.GROUP}
    seeded = {"seeds": f"seed={','.join(map(str, seeds))}"} if seeds is not None else {}
    chosen = runtime.choices.get(experiment_files.GROUP)
    # `compare` writes one, and takes it away
    lasts = chosen and not OmegaConf.select(config, "sweep.command")
    file = find(f"{experiment_files.GROUP}/{chosen}") if lasts else None
    return Written(Experiment.key_names(), file, find, {**given, **seeded})


def _name(config: DictConfig, written: Written) -> Any:
    """The experiment's name as it is spelt: 2024_05 is no number here."""
    name = OmegaConf.to_container(OmegaConf.masked_copy(config, ["name"]), resolve=False)
    assert isinstance(name, dict)
    value = name.get("name")
    return (written.text(("name",)) or value) if isinstance(value, int | float) else value


def _arms(
    experiment: Experiment,
    point: Sequence[str],
    place: Replication | None,
    composer: Composer,
    checker: Checker,
    written: Written,
) -> dict[str, Arm]:
    laddered = place is not None and place.ladder is not None
    by_size = [] if laddered else experiment.size_overrides.get(experiment.size or "") or []
    by_size = [*by_size, *(place.overrides if place else ())]
    figure = match.FIGURES.get(experiment.match)
    arms: dict[str, Arm] = {}
    # the baseline comes first: it sets what the others are matched to
    for name in sorted(experiment.arms, key=lambda name: name != experiment.baseline):
        own = experiment.arm_overrides[name]
        command.refuse_hidden(point, name, own)
        overrides = [*by_size, *point, *own]
        try:
            config = composer.compose(overrides)
        except HydraException as error:
            error.add_note(f"{written.place(('arm_overrides', name))}arm {name}: ")
            raise
        composer.refuse_idle(config, own)
        matching: tuple[str, str, float] | None = None
        if figure is not None and arms and name not in experiment.unmatched:
            by = experiment.match_by
            assert by is not None, "an experiment with `match` names it"
            if by in command.keys(own):
                raise Refused(
                    f"arm {name} sets {by}, which match_by solves for: drop one of the two",
                    ("arm_overrides", name),
                )
            matching = (by, figure, arms[experiment.baseline].estimate.get(figure))
        try:
            arms[name] = checked_arm(name, config, overrides, experiment.seeds[0], checker, matching)
        except ValueError as error:
            where = place.where if place else ""
            raise Refused(f"{where}arm {name}: {error}", blamed(str(error), name, own)) from error
    return arms
