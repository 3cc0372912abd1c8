"""Types of an experiment file: arms, seeds, budget rule, margin and claims.

One definition validates a file, separates experiment keys from run config keys, and gives editors their
schema.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, FiniteFloat

from attnlab.store.experiment_schema.amounts import (
    MARGIN,
    NEGATIVE_MARGIN,
    ComputeProportion,
    Margin,
    Threshold,
    convert_to_nats,
)
from attnlab.store.experiment_schema.ladder_config import LadderConfig
from attnlab.store.experiment_schema.relations import RELATIONS, RelationField
from attnlab.store.run_schema import Direction, FrozenModel

# Short names of budget entries in experiment files.
RESOURCE_ALIASES = {"params": "parameters", "flops": "flops_per_token", "kv_bytes": "kv_bytes_per_token"}

TUNING_TOKENS = "tuning_tokens"  # cost of learning-rate tuning; may be controlled too


def resolve_resource_alias(name: str) -> str:
    """Return the budget entry that a short name in an experiment file means."""
    return RESOURCE_ALIASES.get(name, name)


class Claim(FrozenModel):
    """A claim about an arm: the difference from, or ratio to, another arm lies in a region."""

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
    relation: RelationField = Field(
        alias="is",
        description="Where the difference or ratio lies. "
        + " ".join(f"`{name}`: {relation.description}." for name, relation in RELATIONS.items()),
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

    def to_dict(self) -> dict[str, Any]:
        """Return only the keys that were set, without defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


InterimSchedule = Annotated[list[int], Field(min_length=1, max_length=10)] | Literal["anytime"]


class TuningConfig(FrozenModel):
    """Learning rates tried for every arm before the comparison, on seeds that the comparison lacks."""

    model_config = ConfigDict(strict=True)

    lr: list[FiniteFloat] = Field(description="The rates; every arm gets its own best, by the median.")
    seeds: list[int] = Field(
        description="Three or more, none of which the comparison has. Every rate is tried with the first, "
        "the best one and its neighbours with all."
    )
    extend: int = Field(
        3,
        ge=0,
        le=10,
        description="How many rates may be added beyond the ends of `lr`, where the best one lies at an end.",
    )
    share: FiniteFloat = Field(
        1 / 3, gt=0, le=1, description="The share of trainer.max_steps for which a rate is tried."
    )
    robust: FiniteFloat | None = Field(
        None,
        ge=0,
        description="The mean over the seeds counts, not the median, and of rates at most so much worse than "
        "the best the lowest is picked: one that goes wrong now and then is dearer than a low one.",
    )


class ComputeCalibrationConfig(FrozenModel):
    """Baseline runs at half and twice the steps, which measure the loss per doubling of compute."""

    model_config = ConfigDict(strict=True)

    seeds: list[int] = Field(
        description="Two or more, better three, none of which the comparison or `tune` has."
    )


class OmitFromSummary:
    """Marker of experiment fields that a report shows in their own section and not in its summary."""


class Experiment(FrozenModel):
    """Keys of an experiment file. All other keys of the file are run config shared by all arms."""

    model_config = ConfigDict(strict=True)

    name: str = Field(description="As the file is called.")
    question: str = Field("", description="What is asked, as a sentence; the report begins with it.")
    size: str | None = Field(
        None, description="A value of the group `size`, as a rule from the command line."
    )
    arms: list[str] = Field(description="The arms that are compared, in the order of the tables.")
    arm_overrides: Annotated[dict[str, list[str]], OmitFromSummary] = Field(
        {}, description="Arm: what it sets, as Hydra overrides; other arms may be listed too."
    )
    size_overrides: Annotated[dict[str, list[str] | None], OmitFromSummary] = Field(
        {}, description="Size: what all arms set at it, as Hydra overrides."
    )
    baseline: str = Field(description="The arm that the others are compared with.")
    seeds: list[int] = Field(
        [],
        description="One run of every arm per seed; a seed is one observation. With looks that are numbers, "
        "left out: 0, 1, 2 and so on to the last look.",
    )
    looks: InterimSchedule | None = Field(
        None,
        description="After how many seeds the claims are tried, as in [4, 8, 12, 16]: an arm gets no more "
        "seeds once all claims about it are decided. `anytime`: after any number of seeds, at wider "
        "intervals. Left out: once, after all seeds.",
    )
    controlled: list[str] = Field(
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
    metrics: Annotated[list[str], OmitFromSummary] = Field(
        [], description="Further metrics that the report shows."
    )
    direction: Direction = Field("lower", description="Which values of the metric are better.")
    margin: Margin = Field(
        description="The largest difference of the metric that does not matter: in its unit, or as "
        "{training: 5 %}, what that much less training would cost, {training: 5 %, at_most: 0.03} no more."
    )
    margin_reason: str = Field(description="Why it does not matter; written before the first run.")
    claims: Annotated[list[Claim], OmitFromSummary] = Field(
        [], description="What is put to the test, with thresholds."
    )
    compute_calibration: Annotated[ComputeCalibrationConfig | None, OmitFromSummary] = Field(
        None, description="Seeds of the runs that tell what a difference is as training."
    )
    tune: Annotated[TuningConfig | None, OmitFromSummary] = Field(
        None, description="Learning rates that every arm is tried at first, each to get its own best."
    )
    corpora: Annotated[list[str] | None, OmitFromSummary] = Field(
        None,
        min_length=1,
        description="Values of the group `data`: all is asked of each. The first is the report's own text.",
    )
    ladder: Annotated[LadderConfig | None, OmitFromSummary] = Field(
        None, description="A value of the group `ladder`: all is asked at each of its sizes."
    )
    ladder_arms: Annotated[list[str] | None, OmitFromSummary] = Field(
        None, description="The arms that climb a ladder, the baseline among them; left out: all."
    )
    tuned: Annotated[dict[str, Any] | None, OmitFromSummary] = Field(
        None, description="What tuning found before, by size: it is not trained again."
    )

    @classmethod
    def list_keys(cls) -> tuple[str, ...]:
        """Return the keys that belong to an experiment and not to a run config."""
        return tuple(cls.model_fields)

    def to_dict(self) -> dict[str, Any]:
        """Return the keys as in the file, with defaults filled in except within claims."""
        return super().to_dict() | {"claims": [claim.to_dict() for claim in self.claims]}

    def get_claim_metric(self, claim: Claim) -> str:
        """Return the metric of a claim, or the experiment's default metric."""
        return resolve_resource_alias(claim.metric or self.metric)

    def get_claim_arms(self, claim: Claim) -> tuple[str, str]:
        """Return the arm of a claim and its comparison arm."""
        return claim.arm, claim.against or self.baseline

    def amount_to_nats(
        self, amount: float | str | ComputeProportion, nats_per_doubling: float | None
    ) -> float | None:
        """Convert a margin or threshold of this experiment with `convert_to_nats`."""
        value = convert_to_nats(amount, self.margin, nats_per_doubling)
        return None if value is None else float(value)

    def format_compute_amount(self, amount: float | str | ComputeProportion) -> str | None:
        """Return an amount of training compute as text, without its sign; None for a number."""
        amount = self.margin if amount in (MARGIN, NEGATIVE_MARGIN) else amount
        return str(amount) if isinstance(amount, ComputeProportion) else None

    @property
    def compute_amounts(self) -> dict[str, ComputeProportion]:
        """Every amount of training compute by its text: those that need the compute calibration."""
        amounts: list[Any] = [self.margin, *(claim.threshold for claim in self.claims)]
        return {str(amount): amount for amount in amounts if isinstance(amount, ComputeProportion)}

    @classmethod
    def list_decisive_keys(cls) -> tuple[str, ...]:
        """Return the keys whose change makes another comparison; overrides are compared as recipes."""
        ignored_keys = (
            "name",
            "question",
            "arm_overrides",
            "size_overrides",
            "corpora",
            "ladder",
            "ladder_arms",
        )
        return tuple(key for key in cls.model_fields if key not in ignored_keys)

    @classmethod
    def list_summary_keys(cls) -> tuple[str, ...]:
        """Return the keys shown in the summary of a report."""
        return tuple(key for key, field in cls.model_fields.items() if OmitFromSummary not in field.metadata)
