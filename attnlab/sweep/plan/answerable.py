"""What no run could answer is refused before one is trained: metrics that none has, ratios of what may be
zero, and shares that the planned seeds could not decide though every one were perfect.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.errors import Refused, nearest
from attnlab.store.declarations import FIGURES, SPENT, Claim, Experiment
from attnlab.store.experiment_files import Key
from attnlab.store.schema import Budget, Estimate

_POSITIVE = ("count", "time", "censored")  # kinds of metrics whose values are above 0
_ALPHA = 0.05


def refuse_unanswerable(
    experiment: Experiment, written: Sequence[Any], estimates: Mapping[str, Estimate]
) -> None:
    """Refused where it holds what is no resource, or claims or shows what its arms' runs will not tell.

    `written` has the claims as they are declared; those about arms that were left out are not asked.
    """
    places = [i for i, claim in enumerate(written) if about(claim, experiment.arms)]
    _refuse_unmeasured(experiment, places, estimates)
    shares = []
    for place, claim in zip(places, experiment.claims, strict=True):
        if claim.identity and not claim.relation.two_sided and estimates[claim.arm].steps:
            raise Refused(
                f"claim {place + 1} of {experiment.name}: identity: true with is: {claim.relation.name} of "
                "an arm that is trained: only an equality holds by construction; write is: within, or drop "
                "identity",
                _at(place, "identity"),
            )
        if claim.compare == "ratio":
            _refuse_ratio(experiment, claim, place, estimates)
        elif not claim.identity and _kind(estimates[claim.arm], experiment.metric_of(claim)) == "share":
            shares.append((claim, place))
    if experiment.looks != "anytime":  # of those there may be more, any time
        _refuse_shares(experiment, shares)


def about(claim: Mapping[str, Any], arms: Sequence[str]) -> bool:
    """Whether the arms that a claim names are all among these."""
    return all(claim[key] in arms for key in ("arm", "against") if claim.get(key))


def _kind(estimate: Estimate, metric: str) -> str | None:
    """What is declared of a metric; None where nobody knows it before it is measured."""
    declared = estimate.declared.get(metric)
    return declared.kind if declared else None


def _refuse_unmeasured(
    experiment: Experiment, places: Sequence[int], estimates: Mapping[str, Estimate]
) -> None:
    name = experiment.name
    known = [*estimates.values()]
    resources = {*Budget.model_fields, *FIGURES, SPENT, *(key for one in known for key in one.budget())}
    for i, held in enumerate(experiment.held):
        if held not in resources:
            raise Refused(
                f"held of {name}: no run has a resource {held}{nearest(held, resources)}", ("held", i)
            )
    wanted: list[tuple[str, Key]] = [(experiment.metric, ("metric",))]
    wanted += [(metric, ("metrics", i)) for i, metric in enumerate(experiment.metrics)]
    for metric, at in wanted:
        if all(_lacks(one, metric) for one in known):
            raise Refused(f"{at[0]} of {name}: no run measures {metric}{_measured(known, metric)}", at)
    for i, claim in zip(places, experiment.claims, strict=True):
        metric = experiment.metric_of(claim)
        for arm in experiment.arms_of(claim):
            if _lacks(estimates[arm], metric):
                raise Refused(
                    f"claim {i + 1} of {name}: no run of arm {arm} measures {metric}"
                    f"{_measured([estimates[arm]], metric)}",
                    ("claims", i, "metric"),
                )


def _lacks(estimate: Estimate, metric: str) -> bool:
    """Whether it is certain that no run with this estimate has a figure of that name."""
    value = estimate.get(metric)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    known = estimate.figures is None or metric in (*estimate.figures, *estimate.declared)
    words = value is not None and not number  # a kernel's name is no figure
    return words or not (number or known)


def _measured(estimates: Sequence[Estimate], metric: str) -> str:
    """The nearest figures, and what has to be set for a loss at a length."""
    names = {name for one in estimates for name in (*(one.figures or ()), *one.declared)}
    names = {name for name in names if not all(_lacks(one, name) for one in estimates)}
    asked = f"length/{metric.rpartition('/')[2]}" if metric.startswith("length/") else ""
    return nearest(metric, names) + (f"; for {asked}, add it to measure.lengths" if asked else "")


def _refuse_ratio(
    experiment: Experiment, claim: Claim, place: int, estimates: Mapping[str, Estimate]
) -> None:
    name = experiment.metric_of(claim)
    arms = experiment.arms_of(claim)
    what = f"claim {place + 1} of {experiment.name}: a ratio of {name}"
    if estimates[arms[1]].get(name) == 0:
        raise Refused(f"{what}, which is 0 in arm {arms[1]}: compare differences", _at(place, "metric"))
    for arm in arms:
        counted = estimates[arm].get(name) is not None
        if not counted and _kind(estimates[arm], name) not in (None, *_POSITIVE):
            raise Refused(f"{what}, which may be 0: compare differences", _at(place, "compare"))


def _refuse_shares(experiment: Experiment, shares: Sequence[tuple[Claim, int]]) -> None:
    """By the bets that decide shares, at the levels that Holm's method leaves them where all other claims are
    decided.
    """
    seeds = len(experiment.seeds)
    needs = {place: [_perfect(claim, left + 1) for left in range(len(shares))] for claim, place in shares}
    for left in range(len(shares), 0, -1):
        place = min(needs, key=lambda place: needs[place][left - 1])
        if (needed := needs.pop(place)[left - 1]) > seeds:
            many = f"it takes {needed:g}" if math.isfinite(needed) else "nor could any number"
            raise Refused(
                f"claim {place + 1} of {experiment.name} is about a share, and {seeds} seeds could not "
                f"decide it though every one were perfect: {many}. Ask for a loss, as in loss/..., "
                "for steps_to_90, for another threshold, or for more seeds",
                _at(place, "threshold"),
            )


def _perfect(claim: Claim, left: int) -> float:
    """How many perfect seeds decide a claim about a share that has 1 / left of the level: differences of 0
    where it says that no more than so much is lost, else the largest that there can be.
    """
    from attnlab import stats  # scipy: for the few experiments that need it, not for every plan

    assert isinstance(claim.threshold, float)  # no share is declared in training
    low, high = claim.relation.region(claim.threshold)
    tolerant = low < 0 < high
    best, level = (1.0, _ALPHA / left) if tolerant else (2.0, _ALPHA / left / 2)
    sides = [1 + edge for edge in (low, -high) if math.isfinite(edge)]
    needed = [stats.seeds_without_exception(best / 2, side / 2, level) for side in sides]
    return max(math.inf if one is None else one for one in needed)


def _at(place: int, key: str) -> Key:
    return "claims", place, key
