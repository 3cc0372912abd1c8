"""What of an experiment decides its verdicts; and in words, in what two of them decide otherwise."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, FiniteFloat, SerializerFunctionWrapHandler, model_serializer

from attnlab.store import fingerprint
from attnlab.store.declarations import Claim, Exchange, Experiment, Looks, Margin, Training, Tune, canonical
from attnlab.store.schema import Direction, Record


class Terms(Record):
    """What decides, without words and reasons. `recipes` has a digest of each arm's config, None where its
    learning rate was not found yet, and `texts` the sha256 of its data. No `seeds` where any number of them
    may be looked at. `nats` has what is declared in training as a number, None where it was not known yet.
    """

    arms: tuple[str, ...]
    baseline: str
    metric: str
    direction: Direction
    margin: Margin
    claims: tuple[dict[str, Any], ...]
    held: tuple[str, ...]
    match: str
    looks: Looks | None
    seeds: tuple[int, ...] | None
    tune: Tune | None
    recipes: dict[str, str | None]
    texts: dict[str, str | None]
    exchange: Exchange | None = None
    nats: dict[str, FiniteFloat | None] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _as_before(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without an exchange nothing is said of it: what was declared before there was one stays so."""
        content: dict[str, Any] = written(self)
        return {key: content[key] for key in content if self.exchange or key not in ("exchange", "nats")}

    @property
    def compared(self) -> set[frozenset[str]]:
        """Every two arms of which a difference is decided."""
        claimed = {frozenset((claim["arm"], claim["against"])) for claim in self.claims}
        return claimed | {frozenset((arm, self.baseline)) for arm in self.arms if arm != self.baseline}


def terms(
    experiment: Experiment,
    recipes: Mapping[str, str | None],
    texts: Mapping[str, str | None],
    slope: float | None = None,
) -> Terms:
    """Of an experiment. What its file leaves out is filled in, so that to say it is no change. `slope`: nats
    per doubling of training, where an exchange has found it.
    """
    seeds = sorted(experiment.seeds) if experiment.looks is None else experiment.seeds
    claims = [_decisive(claim, experiment) for claim in experiment.claims]
    return Terms(
        arms=tuple(sorted(experiment.arms)),
        baseline=experiment.baseline,
        metric=canonical(experiment.metric),
        direction=experiment.direction,
        margin=experiment.margin,
        claims=tuple(sorted(claims, key=fingerprint.canonical)),
        held=tuple(sorted({canonical(resource) for resource in experiment.held})),
        match=experiment.match,
        looks=experiment.looks,
        seeds=None if experiment.looks == "anytime" else tuple(seeds),
        tune=experiment.tune,
        recipes=dict(recipes),
        texts=dict(texts),
        exchange=experiment.exchange,
        nats={words: experiment.nats(amount, slope) for words, amount in experiment.in_training.items()},
    )


def _decisive(claim: Claim, experiment: Experiment) -> dict[str, Any]:
    """A claim without its words, its source and its reason."""
    amount = claim.threshold
    in_training = experiment.in_words(amount) is not None
    written = amount.plain() if isinstance(amount, Training) else amount
    return {
        "arm": claim.arm,
        "against": experiment.arms_of(claim)[1],
        "metric": experiment.metric_of(claim),
        "compare": claim.compare,
        "is": claim.relation.name,
        "threshold": written if in_training else experiment.nats(amount, None),
        "identity": claim.identity,
    }


def changed(before: Terms, now: Terms) -> list[str]:
    """What decides otherwise than before, a line each. That a learning rate, or what a share of the training
    is in nats, was found is no change.
    """
    return [*_values(before, now), *_nats(before, now), *_claims(before, now), *_arms(before, now)]


def _values(before: Terms, now: Terms) -> Iterator[str]:
    for key, say in _SAYING.items():
        was = getattr(before, key)
        is_ = getattr(now, key)
        told = key == "seeds" and None in (was, is_)  # by the looks
        if was != is_ and not told:
            yield f"{key}: first {say(was)}, now {say(is_)}"


def _nats(before: Terms, now: Terms) -> Iterator[str]:
    for words, was in before.nats.items():
        is_ = now.nats.get(words)
        if None not in (was, is_) and was != is_:
            yield f"{words}: first {was} nats, now {is_}"


def _claims(before: Terms, now: Terms) -> Iterator[str]:
    gone = " and ".join(_claim(claim) for claim in before.claims if claim not in now.claims)
    new = " and ".join(_claim(claim) for claim in now.claims if claim not in before.claims)
    if gone and new:
        yield f"claims: first {gone}, now {new}"
    elif gone or new:
        yield f"claims: no longer {gone}" if gone else f"claims: now also {new}"


def _arms(before: Terms, now: Terms) -> Iterator[str]:
    for was, is_, words in (
        (before.recipes, now.recipes, "another recipe"),
        (before.texts, now.texts, "other data"),
    ):
        both = sorted(arm for arm in was if was[arm] is not None and is_.get(arm) is not None)
        if arms := [arm for arm in both if was[arm] != is_[arm]]:
            yield f"{'arm' if len(arms) == 1 else 'arms'} {', '.join(arms)}: {words}"


def _names(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values)) or "nothing"


def _looks(looks: Looks | None) -> str:
    return "once, after all seeds" if looks is None else looks if isinstance(looks, str) else _names(looks)


def _seeds(seeds: Sequence[int]) -> str:
    row = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if row else _names(seeds)


def _tune(tune: Tune | None) -> str:
    if tune is None:
        return "nothing"
    return (
        f"rates {_names(tune.lr)} on seeds {_names(tune.seeds)}, widened by {tune.widen} at most, for "
        f"{tune.share:.3g} of the steps"
        f"{'' if tune.steady is None else f', steady within {tune.steady:g}'}"
    )


def _claim(claim: Mapping[str, Any]) -> str:
    amount = claim["threshold"]
    said = Training.model_validate(amount) if isinstance(amount, dict) else amount
    return (
        f"{claim['arm']} against {claim['against']}, {claim['metric']}: {claim['compare']} {claim['is']} "
        f"{said}{', by construction' if claim['identity'] else ''}"
    )


_SAYING: dict[str, Callable[[Any], str]] = {
    "margin": str, "metric": str, "direction": str, "baseline": str, "arms": _names, "held": _names,
    "match": str, "looks": _looks, "seeds": _seeds, "tune": _tune,
}  # fmt: skip
