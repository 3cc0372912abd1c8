"""The runs that tell what a difference is as training: the baseline at half and at twice its steps.

An experiment declares `exchange: {seeds: [...]}`. They are trained before anything is compared, once the
baseline's learning rate is known, stay in the store like any run and are no part of the comparison.
"""

from attnlab.errors import Refused
from attnlab.store.declarations import Experiment, canonical
from attnlab.store.schema import RunSpec
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.checks import Checker
from attnlab.sweep.plan.exchange.told import Exchange, half
from attnlab.sweep.plan.overrides import leaf

STEPS = "trainer.max_steps"
INSTEAD = "set exchange=null and give the margin as a number"


def planned(experiment: Experiment, baseline: Arm, checker: Checker) -> Exchange | None:
    """The runs that an experiment declares, checked; Refused where its loss cannot tell of training."""
    name = experiment.name
    if experiment.exchange is None:
        if words := next(iter(experiment.in_training), None):
            raise Refused(
                f"{name} says {words}, and trains nothing that tells what that is in nats: declare "
                "exchange: {seeds: [200, 201, 202]}, or give a number",
                ("margin",),
            )
        return None
    seeds = _seeds(experiment)
    _refuse_untold(experiment, baseline)
    steps = leaf(baseline.config(seeds[0]), STEPS)
    if type(steps) is not int or steps < 2:
        raise Refused(f"exchange of {name}: half of {STEPS}={steps} is no training; {INSTEAD}", ("exchange",))
    short, long = (
        _at(baseline, count, words, seeds, checker)
        for count, words in ((half(steps), "half"), (2 * steps, "twice"))
    )
    runs = [run for pair in zip(short, long, strict=True) for run in pair]
    return Exchange(baseline.name, canonical(experiment.metric), steps, runs)


def _at(baseline: Arm, steps: int, words: str, seeds: list[int], checker: Checker) -> list[RunSpec]:
    """The baseline with its whole schedule over other steps."""
    called = f"{baseline.name} {words} training"
    try:
        arm = baseline.check_at({STEPS: steps}, [f"{STEPS}={steps}"], seeds[0], checker)
        return arm.runs(seeds, called)
    except ValueError as error:
        raise Refused(f"exchange, {called} ({STEPS}={steps}): {error}; {INSTEAD}", ("exchange",)) from error


def _seeds(experiment: Experiment) -> list[int]:
    assert experiment.exchange is not None
    name = experiment.name
    seeds = experiment.exchange.seeds
    at = ("exchange", "seeds")
    if len(set(seeds)) < max(2, len(seeds)):
        raise Refused(f"exchange.seeds={seeds} of {name}: give two or more different seeds, better three", at)
    others = {"the comparison": experiment.seeds, "tune": experiment.tune.seeds if experiment.tune else []}
    for whose, theirs in others.items():
        if twice := set(seeds) & set(theirs):
            raise Refused(
                f"exchange.seeds of {name} has seed {min(twice)} of {whose}: give it seeds of its own", at
            )
    return seeds


def _refuse_untold(experiment: Experiment, baseline: Arm) -> None:
    """Refused where the metric is no loss in nats that training lowers."""
    name = experiment.name
    metric = canonical(experiment.metric)
    said = baseline.estimate.declared.get(metric)
    config = baseline.config(experiment.seeds[0])
    if config.get("measurement"):
        why = f"the baseline {baseline.name} only measures and trains nothing"
    elif config.get("parent"):
        why = f"the baseline {baseline.name} goes on from another run, whose training would count too"
    elif (
        said is None or said.unit != "nats" or experiment.direction == "higher" or said.direction == "higher"
    ):
        unit = f"in {said.unit}" if said and said.unit else "without a unit"
        why = f"{metric} is no loss in nats (it is declared {unit}, {experiment.direction} is better)"
    else:
        return
    raise Refused(
        f"exchange of {name}: {why}, so a difference is no amount of training: {INSTEAD}", ("exchange",)
    )
