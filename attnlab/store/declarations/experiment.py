"""What an experiment declares before its first run: arms, seeds, budget rule, margin and claims, as types.

The same definition checks a file, names the keys that are not a run's config, and gives editors their schema.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, FiniteFloat

from attnlab.store.declarations.amounts import LESS, MARGIN, Margin, Threshold, Training, in_nats
from attnlab.store.declarations.ladder import Ladder
from attnlab.store.declarations.relations import RELATIONS, Is
from attnlab.store.schema import Direction, Record

# What an experiment file may call a figure of the budget.
FIGURES = {"params": "parameters", "flops": "flops_per_token", "kv_bytes": "kv_bytes_per_token"}

SPENT = "tuning_tokens"  # may be held too: what tuning the learning rate cost


def canonical(name: str) -> str:
    """The figure that a short name in an experiment file means."""
    return FIGURES.get(name, name)


class Claim(Record):
    """What an experiment claims of an arm: its difference from (or ratio to) another lies somewhere."""

    model_config = ConfigDict(strict=True)

    says: str = Field(description="The claim in words; the report repeats them.")
    arm: str = Field(description="The arm that it is about.")
    against: str | None = Field(
        None, description="The arm that it is compared with; the baseline if left out."
    )
    metric: str | None = Field(None, description="What is compared; the experiment's metric if left out.")
    compare: Literal["difference", "ratio"] = Field(
        "difference", description="The arm's value minus the other's, or divided by it."
    )
    relation: Is = Field(
        alias="is",
        description="Where the difference or ratio lies. "
        + " ".join(f"`{name}`: {relation.means}." for name, relation in RELATIONS.items()),
    )
    threshold: Threshold = Field(
        description="In the metric's unit; a ratio has none. `margin`: the experiment's (`-margin`: as much "
        "below 0). {training: 5 %}: what that much less training would cost."
    )
    direction: Direction | None = Field(None, description="Which values of the metric are better.")
    identity: bool = Field(
        False,
        description="It holds by construction (an equality, a theorem): asked of every pair, and no part of "
        "the family of hypotheses. What is counted is one without saying so.",
    )
    reason: str | None = Field(None, description="Why this threshold; written before the first run.")
    source: str | None = Field(None, description="Who says so: a paper, a document.")
    source_says: str | None = Field(None, description="What exactly the source says, with its numbers.")
    other_source: str | None = Field(None, description="Who finds otherwise, where sources disagree.")
    other_says: str | None = Field(None, description="What exactly that one says, with its numbers.")

    def plain(self) -> dict[str, Any]:
        """What was written, nothing filled in."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


Looks = Annotated[list[int], Field(min_length=1, max_length=10)] | Literal["anytime"]


class Tune(Record):
    """Learning rates that every arm is tried at first, on seeds that the comparison does not have."""

    model_config = ConfigDict(strict=True)

    lr: list[FiniteFloat] = Field(description="The rates; every arm gets its own best, by the median.")
    seeds: list[int] = Field(
        description="Three or more, none of which the comparison has. Every rate is tried with the first, "
        "the best one and its neighbours with all."
    )
    widen: int = Field(
        3,
        ge=0,
        le=10,
        description="How many rates may be added beyond the ends of `lr`, where the best one lies at an end.",
    )
    share: FiniteFloat = Field(
        1 / 3, gt=0, le=1, description="The share of trainer.max_steps for which a rate is tried."
    )
    steady: FiniteFloat | None = Field(
        None,
        ge=0,
        description="The mean over the seeds counts, not the median, and of rates at most so much worse than "
        "the best the lowest is picked: one that goes wrong now and then is dearer than a low one.",
    )


class Exchange(Record):
    """The baseline, trained at half and at twice its steps too: what a doubling of the training is worth."""

    model_config = ConfigDict(strict=True)

    seeds: list[int] = Field(
        description="Two or more, better three, none of which the comparison or `tune` has."
    )


class Elsewhere:
    """Marks a field of an experiment that a report tells in a section of its own, not at its head."""


class Experiment(Record):
    """What an experiment file declares. Its other keys are the run's config, for all arms alike."""

    model_config = ConfigDict(strict=True)

    name: str = Field(description="As the file is called.")
    question: str = Field("", description="What is asked, as a sentence; the report begins with it.")
    size: str | None = Field(
        None, description="A value of the group `size`, as a rule from the command line."
    )
    arms: list[str] = Field(description="The arms that are compared, in the order of the tables.")
    arm_overrides: Annotated[dict[str, list[str]], Elsewhere] = Field(
        {}, description="Arm: what it sets, as Hydra overrides; other arms may be listed too."
    )
    size_overrides: Annotated[dict[str, list[str] | None], Elsewhere] = Field(
        {}, description="Size: what all arms set at it, as Hydra overrides."
    )
    baseline: str = Field(description="The arm that the others are compared with.")
    seeds: list[int] = Field(
        [],
        description="One run of every arm per seed; a seed is one observation. With looks that are numbers, "
        "left out: 0, 1, 2 and so on to the last look.",
    )
    looks: Looks | None = Field(
        None,
        description="After how many seeds the claims are tried, as in [4, 8, 12, 16]: an arm gets no more "
        "seeds once all claims about it are decided. `anytime`: after any number of seeds, at wider "
        "intervals. Left out: once, after all seeds.",
    )
    held: list[str] = Field(
        [], description="The resources that all arms have alike, as in [parameters, tokens]."
    )
    match: Literal["none", "params", "flops", "kv_bytes"] = Field(
        "none", description="The resource that is made equal by solving for `match_by`."
    )
    match_by: str | None = Field(None, description="The key that is solved for, as in model.ffn_width.")
    unmatched: list[str] = Field(
        [],
        description="Arms that `match` leaves as they are. They are compared all the same: how far they are "
        "from the others is shown.",
    )
    leakage: list[str] = Field(
        [],
        description="Arms that see future tokens by design: claims about them are decided and labeled, and "
        "they are never ranked.",
    )
    metric: str = Field(description="What decides, as in val/loss.")
    metrics: Annotated[list[str], Elsewhere] = Field([], description="Further metrics that the report shows.")
    direction: Direction = Field("lower", description="Which values of the metric are better.")
    margin: Margin = Field(
        description="The largest difference of the metric that does not matter: in its unit, or as "
        "{training: 5 %}, what that much less training would cost, {training: 5 %, at_most: 0.03} no more."
    )
    margin_reason: str = Field(description="Why it does not matter; written before the first run.")
    claims: Annotated[list[Claim], Elsewhere] = Field(
        [], description="What is put to the test, with thresholds."
    )
    exchange: Annotated[Exchange | None, Elsewhere] = Field(
        None, description="Seeds of the runs that tell what a difference is as training."
    )
    tune: Annotated[Tune | None, Elsewhere] = Field(
        None, description="Learning rates that every arm is tried at first, each to get its own best."
    )
    texts: Annotated[list[str] | None, Elsewhere] = Field(
        None,
        min_length=1,
        description="Values of the group `data`: all is asked of each. The first is the report's own text.",
    )
    ladder: Annotated[Ladder | None, Elsewhere] = Field(
        None, description="A value of the group `ladder`: all is asked at each of its sizes."
    )
    ladder_arms: Annotated[list[str] | None, Elsewhere] = Field(
        None, description="The arms that climb a ladder, the baseline among them; left out: all."
    )
    tuned: Annotated[dict[str, Any] | None, Elsewhere] = Field(
        None, description="What tuning found before, by size: it is not trained again."
    )

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """The keys that belong to an experiment and not to a run."""
        return tuple(cls.model_fields)

    def plain(self) -> dict[str, Any]:
        """As its file has it, the defaults filled in; of claims what they say."""
        return super().plain() | {"claims": [claim.plain() for claim in self.claims]}

    def metric_of(self, claim: Claim) -> str:
        """What a claim is about: its own metric, or the experiment's."""
        return canonical(claim.metric or self.metric)

    def arms_of(self, claim: Claim) -> tuple[str, str]:
        """The arm that a claim is about, and the one that it is compared with."""
        return claim.arm, claim.against or self.baseline

    def nats(self, amount: float | str | Training, slope: float | None) -> float | None:
        """The margin or a threshold of this experiment (`in_nats`)."""
        value = in_nats(amount, self.margin, slope)
        return None if value is None else float(value)

    def in_words(self, amount: float | str | Training) -> str | None:
        """An amount that is declared in training, without its sign; None of one that is a number."""
        amount = self.margin if amount in (MARGIN, LESS) else amount
        return str(amount) if isinstance(amount, Training) else None

    @property
    def in_training(self) -> dict[str, Training]:
        """Every amount that is declared in training, by its words: what the exchange has to tell first."""
        amounts: list[Any] = [self.margin, *(claim.threshold for claim in self.claims)]
        return {str(amount): amount for amount in amounts if isinstance(amount, Training)}

    @classmethod
    def decisive(cls) -> tuple[str, ...]:
        """Those of which another value is another comparison; what overrides change is told by themselves."""
        silent = ("name", "question", "arm_overrides", "size_overrides", "texts", "ladder", "ladder_arms")
        return tuple(key for key in cls.model_fields if key not in silent)

    @classmethod
    def shown(cls) -> tuple[str, ...]:
        """Those that stand at the head of a report."""
        return tuple(key for key, field in cls.model_fields.items() if Elsewhere not in field.metadata)
