"""Types of an experiment file: arms, seeds, budget rule, margin and claims.

One definition validates a file, separates experiment keys from run config keys, and gives editors their
schema.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, FiniteFloat

from attnlab.store.experiment_schema.amounts import (
    ComputeProportion,
    Margin,
    Threshold,
    convert_to_nats,
    describe_training_amount,
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
    """A claim about an arm: the difference from, or ratio to, another arm lies in a region.

    A contrast compares weighted sums of arms instead. `interaction`, `chain` and `leave_one_out` are short
    forms that `expand_claims` writes out; the claims that they give keep these keys, which group them in the
    report.
    """

    model_config = ConfigDict(strict=True)

    says: str = Field(
        description="Statement of the claim, as the report prints it. A `chain` or `leave_one_out` gives "
        "several claims, whose statements have {arm} and {against} in them."
    )
    arm: str | None = Field(
        None, description="Arm of the claim, unless it is a contrast or in one of the short forms."
    )
    against: str | None = Field(None, description="Arm that it is compared with; default: the baseline.")
    contrast: dict[str, FiniteFloat] | None = Field(
        None,
        min_length=2,
        description="Weights of arms, which sum to 0: the claim is about the weighted sum of their values, "
        "seed by seed, as in {a: 1, b: -0.5, c: -0.5}.",
    )
    interaction: list[str] | None = Field(
        None,
        min_length=2,
        max_length=2,
        description="Two arms, each a change of the baseline: the effect of both changes together minus the "
        "sum of their effects. The arm with both, named A_B, is added unless it exists.",
    )
    chain: list[str] | None = Field(
        None,
        min_length=3,
        description="Arms of a staircase: one claim compares each arm with the one before, a last one the "
        "last arm with the first.",
    )
    leave_one_out: str | None = Field(
        None,
        description="Arm whose overrides are left out in turn: one claim compares each remainder, named "
        "without_KEY, with this arm. These arms are added unless they exist.",
    )
    metric: str | None = Field(None, description="Compared metric; default: the metric of the experiment.")
    compare: Literal["difference", "ratio"] = Field(
        "difference",
        description="Difference (arm minus the other arm) or ratio (arm divided by the other arm).",
    )
    relation: RelationField = Field(
        alias="is",
        description="Region of the difference or ratio. "
        + " ".join(f"`{name}`: {relation.description}." for name, relation in RELATIONS.items()),
    )
    threshold: Threshold = Field(
        description="In the unit of the metric; a ratio has none. `margin`: the margin of the experiment "
        "(`-margin`: its negative). {training: 5%}: the loss equivalent to 5% less training "
        "compute."
    )
    direction: Direction | None = Field(
        None, description="Whether lower or higher values of the metric are better."
    )
    identity: bool = Field(
        False,
        description="The claim holds by construction (an equality, a theorem): every pair must satisfy it, "
        "and it is not in the family of hypotheses. Claims about counted values hold by construction "
        "without this key.",
    )
    reason: str | None = Field(None, description="Rationale of this threshold, written before the first run.")
    source: str | None = Field(None, description="Source of the claim: a paper or document.")
    source_says: str | None = Field(None, description="Finding of the source, with its numbers.")
    other_source: str | None = Field(
        None, description="Source with a different finding, if sources disagree."
    )
    other_says: str | None = Field(None, description="Finding of that source, with its numbers.")

    def to_dict(self) -> dict[str, Any]:
        """Return only the keys that were set, without defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def format_sides(weights: Mapping[str, float]) -> tuple[str, str]:
    """Format the arms with positive and with negative weights as two sums: `a + b` and `0.5 c + d`."""
    sides = tuple(
        " + ".join(
            arm if sign * weight == 1 else f"{sign * weight:g} {arm}"
            for arm, weight in weights.items()
            if sign * weight > 0
        )
        for sign in (1, -1)
    )
    return sides[0], sides[1]


InterimSchedule = Annotated[list[int], Field(min_length=1, max_length=10)] | Literal["anytime"]


class TuningConfig(FrozenModel):
    """Learning rates tried for every arm before the comparison, on seeds that the comparison lacks."""

    model_config = ConfigDict(strict=True)

    lr: list[FiniteFloat] = Field(
        description="Learning-rate grid; each arm gets its own best rate, by the median over seeds."
    )
    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        description="Three or more seeds that the comparison does not use. Every rate runs with the first "
        "seed, the best rate and its neighbors with all seeds."
    )
    extend: int = Field(
        3,
        ge=0,
        le=10,
        description=(
            "Maximum number of rates added beyond the ends of `lr` while the best rate is at the edge "
            "of the grid."
        ),
    )
    share: FiniteFloat = Field(
        1 / 3, gt=0, le=1, description="Proportion of trainer.max_steps that a tuning run trains for."
    )
    robust: FiniteFloat | None = Field(
        None,
        ge=0,
        description="Robust selection: rates are compared by the mean over seeds instead of the median, and "
        "the lowest rate at most this much worse than the best is selected, because an occasional "
        "divergence costs more than a low rate.",
    )


class ComputeCalibrationConfig(FrozenModel):
    """Baseline runs at half and twice the steps, which measure the loss per doubling of compute."""

    model_config = ConfigDict(strict=True)

    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        description="Two or more seeds, preferably three, that neither the comparison nor `tune` uses."
    )


class OmitFromSummary:
    """Marker of experiment fields that a report shows in their own section and not in its summary."""


class Experiment(FrozenModel):
    """Keys of an experiment file. All other keys of the file are run config shared by all arms."""

    model_config = ConfigDict(strict=True)

    name: str = Field(description="Name of the experiment, equal to the file name.")
    question: str = Field(
        "", description="Question that the experiment answers; the first sentence of the report."
    )
    size: str | None = Field(None, description="Option of the group `size`, usually set on the command line.")
    arms: list[str] = Field(description="Compared arms, in the order of the tables.")
    arm_overrides: Annotated[dict[str, list[str]], OmitFromSummary] = Field(
        {}, description="Hydra overrides of each arm; may include arms that are not compared."
    )
    overrides: Annotated[list[str], OmitFromSummary] = Field(
        [],
        description="Hydra overrides of all arms, as in [data=text, data.path=book.txt]. The values of "
        "`size_overrides`, the command line and `arm_overrides` replace them, in this order.",
    )
    size_overrides: Annotated[dict[str, list[str] | None], OmitFromSummary] = Field(
        {}, description="Hydra overrides of all arms at each size."
    )
    baseline: str = Field(description="Arm that the others are compared with.")
    seeds: list[int] = Field(
        [],
        description="One run of every arm per seed; a seed is one observation. Default with a list of "
        "`looks`: 0, 1, 2, ... up to the last number of seeds.",
    )
    looks: InterimSchedule | None = Field(
        None,
        description="Interim analyses: numbers of seeds after which the claims are tested, as in [4, 8, 12, "
        "16]; an arm gets no more seeds once all claims about it are decided. `anytime`: after any "
        "number of seeds, with wider (anytime-valid) intervals. Default: one analysis after all "
        "seeds.",
    )
    controlled: list[str] = Field(
        [], description="Resources that must be equal in all arms, as in [parameters, tokens]."
    )
    match: Literal["none", "params", "flops", "kv_bytes"] = Field(
        "none", description="Resource that is matched by solving for `match_by`."
    )
    match_by: str | None = Field(None, description="Key that is solved for, as in model.ffn_width.")
    unmatched: list[str] = Field(
        [],
        description="Arms that `match` does not change. They are still compared, and the report shows their "
        "difference in the resource.",
    )
    leakage: list[str] = Field(
        [],
        description="Arms that see future tokens by design: claims about them are decided and labeled, but "
        "the arms are not ranked.",
    )
    metric: str = Field(description="Primary metric, as in val/loss.")
    metrics: Annotated[list[str], OmitFromSummary] = Field(
        [], description="Additional metrics in the report."
    )
    direction: Direction = Field(
        "lower", description="Whether lower or higher values of the metric are better."
    )
    margin: Margin = Field(
        description="Largest irrelevant difference in the metric: in its unit, or {training: 5%}, the loss "
        "equivalent to 5% less training compute; {training: 5%, at_most: 0.03} limits it to 0.03 "
        "nats."
    )
    margin_reason: str = Field(description="Rationale of the margin, written before the first run.")
    claims: Annotated[list[Claim], OmitFromSummary] = Field([], description="Hypotheses with thresholds.")
    compute_calibration: Annotated[ComputeCalibrationConfig | None, OmitFromSummary] = Field(
        None, description="Seeds of the baseline runs that measure the loss per doubling of compute."
    )
    tune: Annotated[TuningConfig | None, OmitFromSummary] = Field(
        None, description="Learning-rate tuning before the comparison; each arm gets its own best rate."
    )
    corpora: Annotated[list[str] | None, OmitFromSummary] = Field(
        None,
        min_length=1,
        description=(
            "Options of the group `data`: the experiment is replicated on each. The first is the "
            "corpus of the main report."
        ),
    )
    ladder: Annotated[LadderConfig | None, OmitFromSummary] = Field(
        None, description="Option of the group `ladder`: the experiment is replicated at each of its sizes."
    )
    ladder_arms: Annotated[list[str] | None, OmitFromSummary] = Field(
        None, description="Arms to run on a ladder, including the baseline; default: all."
    )
    tuned: Annotated[dict[str, Any] | None, OmitFromSummary] = Field(
        None, description="Results of earlier tuning, by size, which are not trained again."
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

    def get_claim_weights(self, claim: Claim) -> dict[str, float]:
        """Return the weight of each arm in the effect of a claim: 1 and -1 without a contrast."""
        if claim.contrast is not None:
            return claim.contrast
        assert claim.arm is not None, "expand_claims() leaves no other form"
        return {claim.arm: 1.0, claim.against or self.baseline: -1.0}

    def get_claim_arms(self, claim: Claim) -> tuple[str, ...]:
        """Return the arms of a claim, those with positive weights first."""
        weights = self.get_claim_weights(claim)
        return tuple(sorted(weights, key=lambda arm: weights[arm] < 0))

    def get_claim_sides(self, claim: Claim) -> tuple[str, str]:
        """Return both sides of a claim in words: its arm and comparison arm, or `a + b` and `2 c`."""
        return format_sides(self.get_claim_weights(claim))

    def amount_to_nats(
        self, amount: float | str | ComputeProportion, nats_per_doubling: float | None
    ) -> float | None:
        """Convert a margin or threshold of this experiment with `convert_to_nats`."""
        value = convert_to_nats(amount, self.margin, nats_per_doubling)
        return None if value is None else float(value)

    def format_compute_amount(self, amount: float | str | ComputeProportion) -> str | None:
        """Describe a margin or threshold of this experiment with `describe_training_amount`."""
        return describe_training_amount(amount, self.margin)

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
            "overrides",
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
