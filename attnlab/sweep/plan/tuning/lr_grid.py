"""The learning rate, tuned for every arm alike on seeds of its own: what is declared, and the runs that it
takes.

An experiment declares `tune: {lr: [...], seeds: [...]}`. What is trained for it is stored like any run, and
what it found is written beside the report as tuned.yaml. Committed as conf/tuned/NAME.yaml that is read back
for the size that it was trained at, and nothing is trained for it again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from attnlab.errors import Refused
from attnlab.store import fingerprint
from attnlab.store.declarations import Experiment
from attnlab.store.experiment_files import Find
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.sweep.plan import overrides as command
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.checks import Checker
from attnlab.sweep.plan.overrides import leaf
from attnlab.sweep.plan.tuning.found import ANEW, Entry, Kept, Tuning, kept
from attnlab.sweep.plan.tuning.search import Grid, Search

KEY = "optim.lr"
FIGURE = "lr"
STEPS = "trainer.max_steps"
SEEDS = 3  # at least: of two, one bad one picks
APART = 0.01  # nearer rates are one, and would be once those beyond them are rounded
Lookup = Callable[[str], RunRecord | None]  # a run's id to its record, None where there is none


def tuned(
    experiment: Experiment,
    arms: Mapping[str, Arm],
    size: Any,
    point: Sequence[str],
    checker: Checker,
    lookup: Lookup,
    find: Find,
) -> tuple[Tuning | None, list[RunSpec]]:
    """What tuning has found for each arm, and the runs that it asks for; none where it was committed."""
    _refuse_unfound(point, find)
    declared = grid(experiment)
    if declared is None:
        return None, []
    _refuse_untunable(experiment, arms, point)
    tuning = Tuning(declared, experiment.metric, experiment.direction, str(size))
    before = kept(experiment, tuning)
    tuning.committed = before is not None
    runs = list[RunSpec]()
    for name, arm in arms.items():
        today = settings(arm.config(declared.seeds[0]))
        comparison = (arm.estimate.tokens or 0) * len(experiment.seeds)
        if before is None:
            short = _short(arm, declared, checker)
            search, tried = _tried(short, tuning, lookup)
            tokens = short.estimate.tokens or 0
            spent = tokens * len(tried)
            most = tokens * declared.most
            tuning.arms[name] = Entry(search, today, today, spent, most, comparison)
            runs += tried
        elif (found := before.arms.get(name)) is None or (search := _again(found, tuning)).best is None:
            raise Refused(f"tuned of {experiment.name} at size {size} has no rate for arm {name}; {ANEW}")
        else:
            tuning.arms[name] = Entry(search, found.settings, today, found.tokens, found.tokens, comparison)
    return tuning, runs


def grid(experiment: Experiment) -> Grid | None:
    """The declared rates and seeds, checked; None where the experiment tunes nothing."""
    declared = experiment.tune
    name = experiment.name
    if declared is None:
        return None
    rates = declared.lr
    seeds = declared.seeds
    apart = all(b > (1 + APART) * a > 0 for a, b in pairwise(sorted(rates)))
    if len(rates) < 2 or not apart:
        raise Refused(
            f"tune.lr={rates} of {name}: give two or more rates above 0, each {APART:.0%} or more above the "
            "one before",
            ("tune", "lr"),
        )
    if not len(set(seeds)) == len(seeds) >= SEEDS:
        raise Refused(
            f"tune.seeds={seeds} of {name}: give {SEEDS} or more different seeds, or one bad one picks the "
            "rate",
            ("tune", "seeds"),
        )
    if twice := set(seeds) & set(experiment.seeds):
        raise Refused(
            f"tune.seeds of {name} has seed {min(twice)} of the comparison: give tuning seeds of its own, "
            "or rates are picked on the runs that they are judged by",
            ("tune", "seeds"),
        )
    return Grid(
        tuple(float(rate) for rate in sorted(rates)),
        tuple(seeds),
        declared.widen,
        declared.share,
        declared.steady,
    )


def _refuse_unfound(point: Sequence[str], find: Find) -> None:
    """`optional /tuned` lets pass what is not there; what was asked for by name is."""
    for override in command.parse(point):
        name = override.value() if override.key_or_group == "tuned" else None
        if isinstance(name, str) and find(f"tuned/{name}") is None:
            raise Refused(f"{override.input_line}: there is no tuned/{name}.yaml; {ANEW}")


def _refuse_untunable(experiment: Experiment, arms: Mapping[str, Arm], point: Sequence[str]) -> None:
    given = [*point, *(line for name in arms for line in experiment.arm_overrides[name])]
    if (line := command.keys(given).get(KEY)) is not None:
        raise Refused(f"{line} and tune, which picks it for every arm: drop it, or set tune=null")
    for name, arm in arms.items():
        config = arm.config(experiment.seeds[0])
        if (parent := config.get("parent")) in arms:
            raise Refused(f"arm {name} continues from {parent}, and tune trains no parents: tune=null")
        if config.get("measurement"):
            raise Refused(f"arm {name} trains nothing, so it has no rate to tune: tune=null")


def settings(config: Mapping[str, Any]) -> str:
    """A word for an arm's configuration; its seeds, its learning rate and what is measured aside."""
    optim = {key: value for key, value in config.get("optim", {}).items() if key not in ("lr", "min_lr")}
    rest = fingerprint.unseeded({**config, "optim": optim, "measure": None})
    return f"config-{fingerprint.digest(rest, 8)}"  # a digest alone may read as a number, 1e5 for one


def _short(arm: Arm, grid: Grid, checker: Checker) -> Arm:
    """The arm as it is tried, checked at the lowest rate: with a whole schedule over a share of the steps."""
    steps = leaf(arm.config(grid.seeds[0]), STEPS)
    if type(steps) is not int:
        raise Refused(
            f"tune of arm {arm.name} tries rates for a share of {STEPS}, which is {steps!r}: tune=null"
        )
    few = max(1, math.floor(grid.share * steps + 1e-6))  # downwards: `Grid.most` is kept
    changes = {STEPS: few, KEY: grid.rates[0]}
    try:
        return arm.check_at(changes, [f"{STEPS}={few}"], grid.seeds[0], checker)
    except ValueError as error:
        raise Refused(f"arm {arm.name} as it is tuned, {STEPS}={few}: {error}") from error


def _tried(arm: Arm, tuning: Tuning, lookup: Lookup) -> tuple[Search, list[RunSpec]]:
    """How far the stored runs bring the search for an arm's rate, and all runs that it asks for."""
    runs = list[RunSpec]()
    at = dict[float, Arm]()

    def found(rate: float, seed: int) -> float | None:
        if rate not in at:
            at[rate] = arm.at(KEY, rate, FIGURE)
        runs.extend(at[rate].runs((seed,), f"{arm.name} lr={rate:g}"))
        return _value(lookup(runs[-1].id), tuning.metric)

    return tuning.search(found), runs


def _value(record: RunRecord | None, metric: str) -> float | None:
    """Infinite where the run diverged; None where there is none, or a machine may be why it failed."""
    if record is not None and record.status == "diverged":
        return math.inf
    return record.metrics.get(metric) if record is not None and record.done else None


def _again(found: Kept, tuning: Tuning) -> Search:
    """The search over what was committed."""
    values = {
        (row.lr, seed): math.inf if value == "diverged" else value
        for row in found.rows
        for seed, value in zip(tuning.grid.seeds, row.values, strict=False)
    }
    return tuning.search(lambda rate, seed: values.get((rate, seed)))
