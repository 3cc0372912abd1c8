"""Terms of an experiment that decide its verdicts, and the differences between two sets of terms."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from pydantic import Field, FiniteFloat, SerializerFunctionWrapHandler, model_serializer

from attnlab.errors import format_seeds
from attnlab.store import fingerprint
from attnlab.store.experiment_schema import (
    Claim,
    ComputeCalibrationConfig,
    ComputeProportion,
    Experiment,
    InterimSchedule,
    Margin,
    TuningConfig,
    resolve_resource_alias,
)
from attnlab.store.run_schema import Direction, FrozenModel


class PreregisteredTerms(FrozenModel):
    """Decisive terms of an experiment, without wording and reasons.

    Attributes:
        seeds: None if any number of seeds may be analyzed.
        recipes: Digest of each arm's config; None while its learning rate is not tuned.
        corpora: sha256 of each arm's data.
        nats: Amounts of training compute as numbers; None while not calibrated.
    """

    arms: tuple[str, ...]
    baseline: str
    metric: str
    direction: Direction
    margin: Margin
    claims: tuple[dict[str, Any], ...]
    controlled: tuple[str, ...]
    match: str
    looks: InterimSchedule | None
    seeds: tuple[int, ...] | None
    tune: TuningConfig | None
    recipes: dict[str, str | None]
    corpora: dict[str, str | None]
    compute_calibration: ComputeCalibrationConfig | None = None
    nats: dict[str, FiniteFloat | None] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _serialize_without_calibration(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit the calibration keys if there is none, as in logs of earlier versions."""
        content: dict[str, Any] = serialize(self)
        return {
            key: content[key]
            for key in content
            if self.compute_calibration or key not in ("compute_calibration", "nats")
        }

    @property
    def compared_pairs(self) -> set[frozenset[str]]:
        """Pairs of arms whose difference is decided."""
        claimed = {
            frozenset(pair)
            for claim in self.claims
            for pair in combinations(claim.get("contrast") or (claim["arm"], claim["against"]), 2)
        }
        return claimed | {frozenset((arm, self.baseline)) for arm in self.arms if arm != self.baseline}


class EarlierPreregistration(FrozenModel):
    """An earlier preregistration, its known result pairs at the time of a later one, and the changes."""

    hash: str
    time: str
    known_pairs: int
    changed: tuple[str, ...]


class Preregistration(FrozenModel):
    """A preregistration.

    Attributes:
        hash: Digest of experiment, size and content.
        pairs: Number of result pairs: two arms at one seed.
        known_pairs: Pairs finished before: trained for another purpose, or by a version without a log.
        is_inline: Whether the command line stated the experiment, as in `compare`, and no file.
    """

    hash: str
    time: str
    experiment: str
    size: str | None
    command: str
    content: PreregisteredTerms
    pairs: int
    known_pairs: int
    earlier: tuple[EarlierPreregistration, ...]
    is_inline: bool = False

    @model_serializer(mode="wrap")
    def _serialize_without_false_flag(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit `is_inline` of experiments in files, as in logs of earlier versions."""
        content: dict[str, Any] = serialize(self)
        return {key: value for key, value in content.items() if key != "is_inline" or value}

    @property
    def deviations(self) -> list[str]:
        """Changes made after results were known: one line per earlier preregistration."""
        return [
            f"deviation of {self.time}, after {format_pair_count(earlier.known_pairs)} known "
            f"under the preregistration of {earlier.time}: {'; '.join(earlier.changed)}"
            for earlier in self.earlier
        ]


def format_pair_count(number: int) -> str:
    """Format `2 pairs of results were`."""
    return "1 pair of results was" if number == 1 else f"{number} pairs of results were"


def extract_terms(
    experiment: Experiment,
    recipes: Mapping[str, str | None],
    corpora: Mapping[str, str | None],
    nats_per_doubling: float | None = None,
) -> PreregisteredTerms:
    """Extract the decisive terms of an experiment.

    Defaults are filled in, so that writing a default explicitly is no change.

    Args:
        nats_per_doubling: Loss per doubling of training compute, once a compute calibration has measured it.
    """
    seeds = sorted(experiment.seeds) if experiment.looks is None else experiment.seeds
    claims = [_extract_claim_terms(claim, experiment) for claim in experiment.claims]
    return PreregisteredTerms(
        arms=tuple(sorted(experiment.arms)),
        baseline=experiment.baseline,
        metric=resolve_resource_alias(experiment.metric),
        direction=experiment.direction,
        margin=experiment.margin,
        claims=tuple(sorted(claims, key=fingerprint.to_canonical_json)),
        controlled=tuple(sorted({resolve_resource_alias(resource) for resource in experiment.controlled})),
        match=experiment.match,
        looks=experiment.looks,
        seeds=None if experiment.looks == "anytime" else tuple(seeds),
        tune=experiment.tune,
        recipes=dict(recipes),
        corpora=dict(corpora),
        compute_calibration=experiment.compute_calibration,
        nats={
            text: experiment.amount_to_nats(amount, nats_per_doubling)
            for text, amount in experiment.compute_amounts.items()
        },
    )


def _extract_claim_terms(claim: Claim, experiment: Experiment) -> dict[str, Any]:
    """Return a claim without its wording, source and reason."""
    amount = claim.threshold
    in_training = experiment.format_compute_amount(amount) is not None
    amount_dict = amount.to_dict() if isinstance(amount, ComputeProportion) else amount
    arm, against = experiment.get_claim_sides(claim)
    return {
        "arm": arm,
        "against": against,
        **({"contrast": claim.contrast} if claim.contrast else {}),
        "metric": experiment.get_claim_metric(claim),
        "compare": claim.compare,
        "is": claim.relation.name,
        "threshold": amount_dict if in_training else experiment.amount_to_nats(amount, None),
        "identity": claim.identity,
    }


def describe_changes(before: PreregisteredTerms, now: PreregisteredTerms) -> list[str]:
    """Describe each decisive change in one line.

    A newly tuned learning rate or newly calibrated amount of compute is no change.
    """
    return [
        *_describe_value_changes(before, now),
        *(
            f"{amount}: first {old} nats, now {new}"
            for amount, old in before.nats.items()
            if old != (new := now.nats.get(amount)) and None not in (old, new)
        ),
        *_describe_claim_changes(before, now),
        *_describe_arm_changes(before, now),
    ]


def _describe_value_changes(before: PreregisteredTerms, now: PreregisteredTerms) -> Iterator[str]:
    for key, format_value in _VALUE_FORMATTERS.items():
        old = getattr(before, key)
        new = getattr(now, key)
        reported_by_looks = key == "seeds" and None in (old, new)  # `looks` reports it
        if old != new and not reported_by_looks:
            yield f"{key}: first {format_value(old)}, now {format_value(new)}"


def _describe_claim_changes(before: PreregisteredTerms, now: PreregisteredTerms) -> Iterator[str]:
    removed = " and ".join(_format_claim(claim) for claim in before.claims if claim not in now.claims)
    added = " and ".join(_format_claim(claim) for claim in now.claims if claim not in before.claims)
    if removed and added:
        yield f"claims: first {removed}, now {added}"
    elif removed or added:
        yield f"claims: no longer {removed}" if removed else f"claims: now also {added}"


def _describe_arm_changes(before: PreregisteredTerms, now: PreregisteredTerms) -> Iterator[str]:
    for old, new, change in (
        (before.recipes, now.recipes, "changed training config"),
        (before.corpora, now.corpora, "changed data"),
    ):
        shared_arms = sorted(arm for arm in old if old[arm] is not None and new.get(arm) is not None)
        if arms := [arm for arm in shared_arms if old[arm] != new[arm]]:
            yield f"{'arm' if len(arms) == 1 else 'arms'} {', '.join(arms)}: {change}"


def _format_names(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values)) or "nothing"


def _format_schedule(looks: InterimSchedule | None) -> str:
    return (
        "once, after all seeds"
        if looks is None
        else looks
        if isinstance(looks, str)
        else _format_names(looks)
    )


def _format_ordered_seeds(seeds: Sequence[int]) -> str:
    return format_seeds(seeds) if list(seeds) == sorted(seeds) else _format_names(seeds)


def _format_tuning(tune: TuningConfig | None) -> str:
    if tune is None:
        return "nothing"
    return (
        f"rates {_format_names(tune.lr)} on seeds {_format_names(tune.seeds)}, "
        f"extended by {tune.extend} at most, for {tune.share:.3g} of the steps"
        f"{'' if tune.robust is None else f', robust within {tune.robust:g}'}"
    )


def _format_claim(claim: Mapping[str, Any]) -> str:
    amount = claim["threshold"]
    threshold = ComputeProportion.model_validate(amount) if isinstance(amount, dict) else amount
    return (
        f"{claim['arm']} against {claim['against']}, {claim['metric']}: {claim['compare']} {claim['is']} "
        f"{threshold}{', by construction' if claim['identity'] else ''}"
    )


_VALUE_FORMATTERS: dict[str, Callable[[Any], str]] = {
    "margin": str, "metric": str, "direction": str, "baseline": str, "arms": _format_names,
    "controlled": _format_names, "match": str, "looks": _format_schedule, "seeds": _format_ordered_seeds,
    "tune": _format_tuning,
}  # fmt: skip
