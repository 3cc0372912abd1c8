"""Validation of claims against run estimates, so that claims that no run could answer fail before training.

These are claims about metrics that no run measures, ratios of metrics that may be zero, and proportions that
the planned seeds could not decide even if every seed were perfect.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.store.experiment_files import KeyPath
from attnlab.store.experiment_schema import (
    RESOURCE_ALIASES,
    TUNING_TOKENS,
    Claim,
    Experiment,
    expand_claims,
)
from attnlab.store.run_schema import Budget, RunEstimate

_POSITIVE_KINDS = ("count", "time", "censored")  # kinds of metrics with positive values
_ALPHA = 0.05


def validate_against_estimates(
    experiment: Experiment, raw_claims: Sequence[Any], estimates: Mapping[str, RunEstimate]
) -> None:
    """Check an experiment against the estimates of its arms.

    `raw_claims` are the claims as declared; claims about arms that are left out are skipped.

    Raises:
        InvalidConfig: A controlled resource does not exist, no run measures a metric, or a claim cannot be
            decided.
    """
    expanded = expand_claims(raw_claims, experiment.arms, experiment.arm_overrides, experiment.baseline)
    indices = [
        i
        for claim, i in zip(expanded.claims, expanded.positions, strict=True)
        if is_about_arms(claim, experiment.arms)
    ]
    _reject_unmeasured_metrics(experiment, indices, estimates)
    proportion_claims = []
    for index, claim in zip(indices, experiment.claims, strict=True):
        weights = experiment.get_claim_weights(claim)
        estimate = estimates[experiment.get_claim_arms(claim)[0]]
        if claim.identity and not claim.relation.is_two_sided and estimate.steps:
            raise InvalidConfig(
                f"claim {index + 1} of {experiment.name}: identity: true needs is: within, not is: "
                f"{claim.relation.name}, because only an equality of trained arms holds by "
                "construction; change `is`, or remove identity",
                _make_claim_key(index, "identity"),
            )
        if claim.compare == "ratio":
            _validate_ratio_claim(experiment, claim, index, estimates)
        elif not claim.identity and _get_metric_kind(estimate, experiment.get_claim_metric(claim)) == "share":
            if (total := sum(weight for weight in weights.values() if weight > 0)) > 1:
                raise InvalidConfig(
                    f"claim {index + 1} of {experiment.name}: the test of proportions needs differences "
                    f"between -1 and 1, and this contrast goes to {total:g}: scale its weights to a sum of 1 "
                    "on either side",
                    _make_claim_key(index, "contrast"),
                )
            proportion_claims.append((claim, index))
    if experiment.looks != "anytime":  # otherwise seeds may be added at any time
        _validate_proportion_claims(experiment, proportion_claims)


def is_about_arms(claim: Mapping[str, Any], arms: Sequence[str]) -> bool:
    """Whether all arms that a claim names are among these."""
    named = [claim[key] for key in ("arm", "against") if claim.get(key)]
    return all(arm in arms for arm in (*named, *(claim.get("contrast") or ())))


def _get_metric_kind(estimate: RunEstimate, metric: str) -> str | None:
    """Return the declared kind of a metric; None if it is unknown before the metric is measured."""
    definition = estimate.metric_definitions.get(metric)
    return definition.kind if definition else None


def _reject_unmeasured_metrics(
    experiment: Experiment, indices: Sequence[int], estimates: Mapping[str, RunEstimate]
) -> None:
    name = experiment.name
    all_estimates = [*estimates.values()]
    resources = {
        *Budget.model_fields,
        *RESOURCE_ALIASES,
        TUNING_TOKENS,
        *(key for estimate in all_estimates for key in estimate.get_budget()),
    }
    for i, resource in enumerate(experiment.controlled):
        if resource not in resources:
            raise InvalidConfig(
                f"controlled of {name}: no run has a resource {resource}"
                f"{format_suggestions(resource, resources)}",
                ("controlled", i),
            )
    metrics: list[tuple[str, KeyPath]] = [(experiment.metric, ("metric",))]
    metrics += [(metric, ("metrics", i)) for i, metric in enumerate(experiment.metrics)]
    for metric, key_path in metrics:
        if all(_is_certainly_unmeasured(estimate, metric) for estimate in all_estimates):
            raise InvalidConfig(
                f"{key_path[0]} of {name}: no run measures {metric}{_suggest_metrics(all_estimates, metric)}",
                key_path,
            )
    for i, claim in zip(indices, experiment.claims, strict=True):
        metric = experiment.get_claim_metric(claim)
        for arm in experiment.get_claim_arms(claim):
            if _is_certainly_unmeasured(estimates[arm], metric):
                raise InvalidConfig(
                    f"claim {i + 1} of {name}: no run of arm {arm} measures {metric}"
                    f"{_suggest_metrics([estimates[arm]], metric)}",
                    ("claims", i, "metric"),
                )


def _is_certainly_unmeasured(estimate: RunEstimate, metric: str) -> bool:
    """Whether it is certain that no run with this estimate has a number of that name."""
    value = estimate.get(metric)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_expected = estimate.metric_names is None or metric in (
        *estimate.metric_names,
        *estimate.metric_definitions,
    )
    is_text = value is not None and not is_number  # for example the name of a kernel
    return is_text or not (is_number or is_expected)


def _suggest_metrics(estimates: Sequence[RunEstimate], metric: str) -> str:
    """Return the closest metric names, and the setting that adds a loss at a length."""
    names = {
        name
        for estimate in estimates
        for name in (*(estimate.metric_names or ()), *estimate.metric_definitions)
    }
    names = {
        name for name in names if not all(_is_certainly_unmeasured(estimate, name) for estimate in estimates)
    }
    suggestions = format_suggestions(metric, names)
    if not metric.startswith("length/"):
        return suggestions
    multiple = metric.rpartition("/")[2]
    if metric.startswith("length/excess/"):
        return f"{suggestions}; for {metric}, add 1 and {multiple} to measure.lengths"
    return f"{suggestions}; for length/{multiple}, add {multiple} to measure.lengths"


def _validate_ratio_claim(
    experiment: Experiment, claim: Claim, index: int, estimates: Mapping[str, RunEstimate]
) -> None:
    name = experiment.get_claim_metric(claim)
    arms = experiment.get_claim_arms(claim)
    what = f"claim {index + 1} of {experiment.name}: a ratio of {name}"
    if estimates[arms[1]].get(name) == 0:
        raise InvalidConfig(
            f"{what}, which is 0 in arm {arms[1]}: use compare: difference", _make_claim_key(index, "metric")
        )
    for arm in arms:
        definition = estimates[arm].metric_definitions.get(name)
        if definition and definition.unit != "B" and definition.kind not in _POSITIVE_KINDS:
            raise InvalidConfig(
                f"{what}, which may be 0: use compare: difference", _make_claim_key(index, "compare")
            )


def _validate_proportion_claims(
    experiment: Experiment, proportion_claims: Sequence[tuple[Claim, int]]
) -> None:
    """Check that the planned seeds can decide the claims about proportions.

    Assumes the betting test (e-values) for proportions, at the alpha that Holm's method leaves to each claim
    when all other claims are decided.

    Raises:
        InvalidConfig: A claim needs more seeds, even if every seed were perfect.
    """
    seeds = len(experiment.seeds)
    seeds_by_index = {
        index: [_count_perfect_seeds(claim, remaining + 1) for remaining in range(len(proportion_claims))]
        for claim, index in proportion_claims
    }
    for remaining in range(len(proportion_claims), 0, -1):
        index = min(seeds_by_index, key=lambda index: seeds_by_index[index][remaining - 1])
        if (needed := seeds_by_index.pop(index)[remaining - 1]) > seeds:
            requirement = f"it needs {needed:g}" if math.isfinite(needed) else "no number of seeds suffices"
            raise InvalidConfig(
                f"claim {index + 1} of {experiment.name} is about a proportion, and {seeds} seeds "
                f"cannot decide it even if all are perfect: {requirement}. Use a loss, as in "
                "loss/..., steps_to_90, another threshold, or more seeds",
                _make_claim_key(index, "threshold"),
            )


def _count_perfect_seeds(claim: Claim, remaining: int) -> float:
    """Return how many perfect seeds decide a claim about a proportion at 1 / `remaining` of alpha.

    A perfect seed has a difference of 0 if the claim allows some loss, else the largest possible difference.
    """
    from attnlab import stats  # imports scipy, which most plans do not need

    assert isinstance(claim.threshold, float)  # thresholds of proportions are never in training compute
    low, high = claim.relation.compute_region(claim.threshold)
    allows_loss = low < 0 < high
    largest, alpha = (1.0, _ALPHA / remaining) if allows_loss else (2.0, _ALPHA / remaining / 2)
    sides = [1 + edge for edge in (low, -high) if math.isfinite(edge)]
    needed = [stats.count_unanimous_seeds(largest / 2, side / 2, alpha) for side in sides]
    return max(math.inf if one is None else one for one in needed)


def _make_claim_key(index: int, key: str) -> KeyPath:
    return "claims", index, key
