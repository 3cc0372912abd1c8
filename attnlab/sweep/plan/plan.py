"""The plan of a command: every run composed, checked, matched and named before the first one starts.

Two stages. A `Question` is what no stored run changes: an experiment at one place, and its arms, composed,
checked and matched. A `Plan` adds what finished runs say: learning rates, and with them the runs and their
ids. Tuning extends a plan: its questions stay. Until a rate is known, the comparison's runs of its arm stand
in the plan at the lowest rate, and `untuned` names the arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hydra.errors import HydraException

from attnlab.errors import Refused
from attnlab.store import experiment_files, fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.experiment_files import Written
from attnlab.store.schema import RunSpec
from attnlab.sweep.plan import experiment as experiments
from attnlab.sweep.plan import matching as match
from attnlab.sweep.plan import overrides as command
from attnlab.sweep.plan.answerable import refuse_unanswerable
from attnlab.sweep.plan.arm_cache import ArmCache
from attnlab.sweep.plan.arms import Arm, blamed, check_arm, refuse_twins, with_parents
from attnlab.sweep.plan.checks import Checker
from attnlab.sweep.plan.composer import Composed, Composer
from attnlab.sweep.plan.exchange import runs as exchanges
from attnlab.sweep.plan.exchange.told import Exchange
from attnlab.sweep.plan.replications.replication import Replication, replications
from attnlab.sweep.plan.replications.rungs import carried
from attnlab.sweep.plan.tuning import lr_grid
from attnlab.sweep.plan.tuning.found import Tuning
from attnlab.sweep.waiting import waiting

SINGLE = "run"  # the arm's name where there is no experiment


@dataclass(frozen=True)
class Question:
    """An experiment at one place. `size` names the learning rates found for it; `follows` is the question of
    the ladder's rung where rates are tuned for this one. The rest is as in `Plan`.
    """

    experiment: Experiment
    arms: Mapping[str, Arm]
    declared: dict[str, Any] | None
    changed: tuple[str, ...]
    size: str
    point: tuple[str, ...]
    written: Written
    cache: ArmCache
    place: Replication | None = None
    follows: "Question | None" = None


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
    question: Question | None = None  # None of a single run

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
    module: str | None = None,
) -> list[Plan]:
    """One plan per report that the command asks for; `lookup` finds the records of trained runs, `commit`
    is attnlab's and whether it was edited, `module` the trainer whose checked arms are kept in the cache.

    Raises:
        Refused: one line.
    """
    line = command.read(arguments, composer.loader)
    swept = ask_of_sweep(line, composer, checker, module) if len(line.points) > 1 else None
    if swept is not None:
        plans = settle([swept], checker, lookup)
    else:
        asked = [ask(point, line.seeds, composer, checker, module) for point in line.points]
        plans = [
            plan
            for each in asked
            for plan in (each if isinstance(each[0], Plan) else settle(each, checker, lookup))
        ]
    titles = [report_plan.title for report_plan in plans if report_plan.experiment]
    if len(set(titles)) < len(titles):
        raise Refused("two values of a swept key give the same report: name each value once")
    return [_at_commit(report_plan, commit) for report_plan in plans]


def extend(
    plans: Sequence[Plan],
    checker: Checker,
    lookup: lr_grid.Lookup,
    commit: tuple[str | None, bool | None] = (None, None),
) -> list[Plan]:
    """The plans with what tuning has found by now: other learning rates, and with them other ids."""
    questions = [report_plan.question for report_plan in plans if report_plan.question]
    settled = iter(settle(questions, checker, lookup))
    extended = []
    for before in plans:
        after = next(settled) if before.question else before
        extended.append(_at_commit(replace(after, unchecked=before.unchecked), commit))
    return extended


def _at_commit(report_plan: Plan, commit: tuple[str | None, bool | None]) -> Plan:
    def used(runs: Sequence[RunSpec]) -> list[RunSpec]:
        return [run.used(commit=commit[0], dirty=commit[1]) for run in runs]

    trade = report_plan.exchange
    return replace(
        report_plan,
        runs=used(report_plan.runs),
        grid=used(report_plan.grid),
        exchange=trade and trade.but(used(trade.runs)),
    )


def ask(
    point: Sequence[str],
    seeds: Sequence[int] | None,
    composer: Composer,
    checker: Checker,
    module: str | None,
) -> list[Question] | list[Plan]:
    """What a point of a command asks: a question for each text, or each rung, of an experiment; the plan of
    a single run where it names none.
    """
    composed = composer.compose_point(point)
    lines = _size_overrides(composed)
    composed = composer.compose([*lines, *point]) if lines else composed
    written = _written(composed, composer, point, seeds)
    base = composed.values()
    if "arms" not in base and written.file is None:
        return [_plan_single(composed, point, seeds, composer, checker)]
    named = [line for line in point if "experiment" in command.keys([line])]
    other = [key for line in point if line not in named for key in command.keys([line])]
    plainly = composed if {*map(command.root, other)} <= {*command.HOW} else composer.compose(named)
    as_declared = composer.compose([*lines, *named]) if lines and plainly is not composed else plainly
    declared = experiments.keys(as_declared.values())
    changed = command.changes(point, seeds, plainly.choices, plainly.written | plainly.values())
    base = {**command.seeded(base, point, seeds), "name": _name(composed, written)}
    questions: dict[str, Question] = {}
    places = replications(base, [*lines, *point], declared.get("texts"))
    for place in sorted(places, key=lambda place: bool(place and place.rates)):  # after the one they follow
        here = place.keys if place else {}
        try:
            experiment = experiments.complete({**base, **here})
            by_size = [] if place and place.ladder else experiment.size_overrides.get(experiment.size or "")
            overrides = [*(by_size or []), *(place.overrides if place else ()), *point]
            cache = ArmCache(base, composer, module, experiment, overrides)
            arms = cache.load()
            if arms is None:
                arms = _arms(experiment, overrides, point, composer, checker, written, place)
                estimates = {name: arm.estimate for name, arm in arms.items()}
                refuse_unanswerable(experiment, base.get("claims") or [], estimates)
        except Refused as error:
            raise Refused(f"{written.place(error.at)}{error}") from error
        questions[place.name if place else ""] = Question(
            experiment,
            arms,
            {**declared, **here},
            changed,
            size=f"{experiment.size}{place.called}" if place else str(base.get("size")),
            point=tuple(point),
            written=written,
            cache=cache,
            place=place,
            follows=questions[place.rates] if place and place.rates else None,
        )
    return [questions[place.name if place else ""] for place in places]


def ask_of_sweep(
    line: command.Command, composer: Composer, checker: Checker, module: str | None
) -> Question | None:
    """The question of a command that sweeps keys and names no experiment: its arms are the combinations. None
    of another command, and of one that trains nothing.
    """
    first = line.points[0]
    composed = composer.compose(first)
    base = composed.values()
    written = _written(composed, composer, first, line.seeds)
    if "arms" in base or written.file is not None or base.get("measurement"):
        return None
    experiments.refuse_declared(base)
    point, own = command.parted(line.points)
    experiment = experiments.undeclared(base, own, line.seeds)
    cache = ArmCache(base, composer, module, experiment, point)
    arms = cache.load()
    if arms is None:
        arms = _arms(experiment, point, point, composer, checker, written)
        refuse_unanswerable(experiment, [], {name: arm.estimate for name, arm in arms.items()})
    plainly = composer.compose([])
    values = plainly.written | plainly.values() | {"seeds": [base.get("seed")]}
    changed = command.changes(point, line.seeds, plainly.choices, values)
    return Question(experiment, arms, None, changed, str(base.get("size")), tuple(point), written, cache)


def settle(questions: Sequence[Question], checker: Checker, lookup: lr_grid.Lookup) -> list[Plan]:
    """A plan for each question, with the learning rates that finished runs have found."""
    plans: dict[int, Plan] = {}
    for question in sorted(questions, key=lambda question: question.follows is not None):
        rung = plans[id(question.follows)] if question.follows else None
        try:
            plans[id(question)] = _settle(question, rung, checker, lookup)
        except Refused as error:
            raise Refused(f"{question.written.place(error.at)}{error}") from error
    return [plans[id(question)] for question in questions]


def _settle(question: Question, rung: Plan | None, checker: Checker, lookup: lr_grid.Lookup) -> Plan:
    experiment = question.experiment
    arms = dict(question.arms)
    place = question.place
    tuned, grid = lr_grid.tuned(
        experiment, arms, question.size, question.point, checker, lookup, question.written.find
    )
    rates = {name: tuned.picked(name) or tuned.grid.rates[0] for name in arms} if tuned else {}
    if place and place.ladder and rung:
        there = {name: runs[0] for name, runs in rung.arms().items()}
        rates = carried(place.ladder, there, arms, experiment.baseline)
    for name, rate in rates.items():
        arms[name] = arms[name].at(lr_grid.KEY, rate, lr_grid.FIGURE)
    exchange = exchanges.planned(experiment, arms[experiment.baseline], checker)
    runs = [run for arm in arms.values() for run in arm.runs(experiment.seeds)]
    rank = {arm: i for i, arm in enumerate(experiment.arms)}
    runs.sort(key=lambda run: (run.seed, rank[run.arm]))  # an interrupted sweep leaves whole pairs
    runs = with_parents(runs, set(rank))
    refuse_twins(runs)
    recipes = {name: arm.recipe() for name, arm in arms.items()}
    question.cache.keep(question.arms)
    return Plan(
        experiment,
        runs,
        question.declared,
        question.changed,
        grid=grid,
        tuned=tuned,
        recipes=recipes,
        exchange=exchange,
        replication=place,
        rung=rung,
        question=question,
    )


def _plan_single(
    composed: Composed,
    point: Sequence[str],
    seeds: Sequence[int] | None,
    composer: Composer,
    checker: Checker,
) -> Plan:
    base = composed.values()
    experiments.refuse_declared(base)
    chosen = tuple(seeds) if seeds is not None else (experiments.integer(base.get("seed", 0), "seed"),)
    chosen = experiments.no_repeat(chosen)
    composer.refuse_idle(composed, point)
    return Plan(None, check_arm(SINGLE, composed, point, chosen[0], checker).runs(chosen))


def _size_overrides(composed: Composed) -> list[str]:
    """What an experiment sets at its size, the experiment's own keys included. The rungs of a ladder stand in
    the place of the size, and set it themselves.
    """
    sizes = composed.written.get("size_overrides")
    base = composed.values() if isinstance(sizes, dict) else {}
    lines = sizes.get(base.get("size")) if isinstance(sizes, dict) else None
    return lines if isinstance(lines, list) and base.get("ladder") is None else []


def _written(
    composed: Composed, composer: Composer, point: Sequence[str], seeds: Sequence[int] | None
) -> Written:
    """Where the experiment of a composed config was written."""
    given = {key: line for key, line in command.keys(point).items() if key != experiment_files.GROUP}
    seeded = {"seeds": f"seed={','.join(map(str, seeds))}"} if seeds is not None else {}
    chosen = composed.choices.get(experiment_files.GROUP)
    # `compare` writes one, and takes it away
    lasts = chosen and not (composed.written.get("sweep") or {}).get("command")
    file = composer.find(f"{experiment_files.GROUP}/{chosen}") if lasts else None
    return Written(Experiment.key_names(), file, composer.find, {**given, **seeded})


def _name(composed: Composed, written: Written) -> Any:
    """The experiment's name as it is spelt: 2024_05 is no number here."""
    value = composed.written.get("name")
    return (written.text(("name",)) or value) if isinstance(value, int | float) else value


def _arms(
    experiment: Experiment,
    overrides: Sequence[str],
    point: Sequence[str],
    composer: Composer,
    checker: Checker,
    written: Written,
    place: Replication | None = None,
) -> dict[str, Arm]:
    """The arms, each composed once of these overrides and its own, checked and matched."""
    figure = match.FIGURES.get(experiment.match)
    arms: dict[str, Arm] = {}
    # the baseline comes first: it sets what the others are matched to
    for name in sorted(experiment.arms, key=lambda name: name != experiment.baseline):
        own = experiment.arm_overrides[name]
        command.refuse_hidden(point, name, own)
        try:
            composed = composer.compose([*overrides, *own])
        except HydraException as error:
            error.add_note(f"{written.place(('arm_overrides', name))}arm {name}: ")
            raise
        target: tuple[str, str, float] | None = None
        if figure is not None and arms and name not in experiment.unmatched:
            by = experiment.match_by
            assert by is not None, "an experiment with `match` names it"
            if by in command.keys(own):
                raise Refused(
                    f"arm {name} sets {by}, which match_by solves for: drop one of the two",
                    ("arm_overrides", name),
                )
            target = (by, figure, arms[experiment.baseline].estimate.get(figure))
        try:
            composer.refuse_idle(composed, own)
            seed = experiment.seeds[0]
            arms[name] = check_arm(name, composed, [*overrides, *own], seed, checker, target=target)
        except ValueError as error:
            where = place.where if place else ""
            raise Refused(f"{where}arm {name}: {error}", blamed(str(error), name, own)) from error
    return arms
