"""What a difference is as training: the baseline at half and at twice its steps, before anything is compared.

An experiment declares `exchange: {seeds: [...]}`. Its runs are trained once the baseline's learning rate is
known, stay in the store like any run and are no part of the comparison. The slope between them, in nats per
doubling of training, says what a margin that is declared in training is in nats.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import OmegaConf

from attnlab.errors import Refused
from attnlab.store.declarations import LESS, MARGIN, Claim, Experiment, canonical
from attnlab.store.experiment_files import Key
from attnlab.store.schema import RunRecord, RunSpec
from attnlab.sweep.plan.arms import Arm
from attnlab.sweep.plan.arms import arm as checked_arm
from attnlab.sweep.plan.checks import Checker

STEPS = "trainer.max_steps"
LEVEL = 0.95
INSTEAD = "set exchange=null and give the margin as a number"
Lookup = Callable[[str], RunRecord | None]  # a run's id to its record, None where there is none


@dataclass(frozen=True)
class Exchange:
    """The runs, seed by seed at half and at twice the `steps`."""

    baseline: str
    metric: str
    steps: int
    runs: list[RunSpec]

    def but(self, runs: list[RunSpec]) -> "Exchange":
        """The same of other specs of these runs."""
        return replace(self, runs=runs)

    def told(self, lookup: Lookup) -> dict[str, Any]:
        """As the report shows it: a row per seed (None: not finished), the slope of each in nats per doubling
        and their mean with its interval; `why` there is no slope to go by, or None.
        """
        from attnlab.stats import paired  # late: a plan needs none of it

        few, many = half(self.steps), 2 * self.steps
        rows, slopes = [], list[float]()
        for short, long in zip(self.runs[::2], self.runs[1::2], strict=True):
            early, late = (_value(lookup(run.id), self.metric) for run in (short, long))
            rows.append({"seed": short.seed, "half": early, "twice": late, "ids": [short.id, long.id]})
            if early is not None and late is not None:
                slopes.append((early - late) / math.log2(many / few))
        slope: dict[str, Any] | None = None
        why: str | None
        if len(slopes) < len(rows):
            why = f"{len(rows) - len(slopes)} of its {len(rows)} pairs of runs are not finished"
        else:
            mean = paired(slopes, LEVEL)
            slope = {"mean": mean.mean, "low": mean.low, "high": mean.high, "level": LEVEL}
            why = _useless(mean.mean, mean.low, mean.high)
        return {
            "metric": self.metric,
            "seeds": [run.seed for run in self.runs[::2]],
            "steps": [few, self.steps, many],
            "tokens": sum(run.estimate.tokens or 0 for run in self.runs),
            "rows": rows,
            "slopes": slopes,
            "slope": slope,
            "why": why,
        }

    def slope(self, lookup: Lookup) -> float | None:
        """Nats per doubling of training; None where there is none to go by."""
        told = self.told(lookup)
        return None if told["why"] else float(told["slope"]["mean"])


def half(steps: int) -> int:
    """Half of the steps, rounded up."""
    return -(-steps // 2)


def _useless(mean: float, low: float | None, high: float | None) -> str | None:
    """Why a slope converts nothing."""
    if low is None or high is None:
        return f"a doubling of training lowers the loss by {mean:.3g} nats with every seed alike: no spread"
    if low <= 0:
        return (
            f"a doubling of training lowers the loss by {mean:.3g} nats [{low:.3g}, {high:.3g}], which may "
            "be nothing: give exchange more seeds, or the margin in nats"
        )
    return None


def _value(record: RunRecord | None, metric: str) -> float | None:
    return record.metrics.get(metric) if record is not None and record.done else None


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
    steps = OmegaConf.select(baseline.config, STEPS)
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
    config = baseline.config.copy()
    OmegaConf.update(config, STEPS, steps)
    overrides = (*baseline.overrides, f"{STEPS}={steps}")
    called = f"{baseline.name} {words} training"
    try:
        return checked_arm(baseline.name, config, overrides, seeds[0], checker).runs(seeds, called)
    except ValueError as error:
        raise Refused(f"exchange, {called} ({STEPS}={steps}): {error}; {INSTEAD}", ("exchange",)) from error


def _seeds(experiment: Experiment) -> list[int]:
    assert experiment.exchange is not None
    name, seeds, at = experiment.name, experiment.exchange.seeds, ("exchange", "seeds")
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
    name, metric = experiment.name, canonical(experiment.metric)
    said = baseline.estimate.declared.get(metric)
    if baseline.config.get("measurement"):
        why = f"the baseline {baseline.name} only measures and trains nothing"
    elif baseline.config.get("parent"):
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


def refuse_margin(experiment: Experiment) -> None:
    """Refused where the margin is below 0, or is nothing and a claim lies within it."""
    name, margin = experiment.name, experiment.margin
    if isinstance(margin, float) and margin < 0:
        raise Refused(f"margin={margin:g} of {name}: no margin is below 0", ("margin",))
    if margin == 0 and any(c.threshold == MARGIN and c.relation == "within" for c in experiment.claims):
        raise Refused(f"margin=0 of {name}: nothing lies within it, as a claim asks", ("margin",))


def refuse_threshold(claim: Claim, metric: str, what: str, at: Key) -> None:
    """Refused where a threshold that is the margin, or a share of the training, does not fit the claim."""
    asked = f"{what}: is: {claim.relation}, threshold: {claim.threshold}"
    if claim.compare == "ratio" or canonical(claim.metric or metric) != canonical(metric):
        raise Refused(
            f"{asked}: that is a difference in {metric}, which this claim is not about; give a number", at
        )
    if claim.relation == "within" and claim.threshold == LESS:
        raise Refused(f"{asked}: how far from no difference? give margin", at)


def lines(experiment: Experiment, exchange: Exchange | None, lookup: Lookup) -> list[str]:
    """What training is worth and what that makes of the margin, or why nobody can say; in words."""
    if exchange is None:
        return []
    told = exchange.told(lookup)
    asked = experiment.in_training
    if told["why"]:
        what = f", so {', '.join(asked)} is not known in nats and nothing is compared" if asked else ""
        return [f"{experiment.name}: training is worth nothing that is known: {told['why']}{what}"]
    slope = told["slope"]
    worth = (
        f"a doubling of training is worth {slope['mean']:.3g} nats [{slope['low']:.3g}, {slope['high']:.3g}]"
    )
    return [
        f"{experiment.name}: {worth}",
        *(f"{words}: {experiment.nats(amount, slope['mean']):g} nats" for words, amount in asked.items()),
    ]
