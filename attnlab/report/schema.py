"""Typed results of an experiment: the models of report.json.

`report_builder` fills them, and pages and tools read them. `attnlab schema report` prints their JSON schema.
A report of another version is an error: it is never converted by guesswork.
"""

import json
import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, PlainSerializer, ValidationError

from attnlab.report.grid_schema import Decimals, GridSection
from attnlab.stats.power import SeedsToDecide
from attnlab.stats.sensitivity import PairingGain, SignFlipResult
from attnlab.stats.sensitivity import ThresholdSignFlip as ThresholdSignFlip
from attnlab.store.atomic_files import parse_json, read_user_text
from attnlab.store.experiment_schema import InterimSchedule, LadderConfig, Relation, RelationField
from attnlab.store.guards.preregistered_terms import Preregistration
from attnlab.store.run_schema import (
    Budget,
    Direction,
    FrozenModel,
    Metric,
    MetricKind,
    convert_validation_error,
)

REPORT_VERSION: Final = 14
# Proportions of stored reports that predate the field `kind`.
OLD_PROPORTIONS = ("val/accuracy", "recall", "labels/agreement", "removable/share")
Number = int | float
Compare = Literal["difference", "ratio"]
KnownBudget = Annotated[Budget, PlainSerializer(lambda budget: budget.get_known_values())]


def is_proportion(kind: MetricKind | None, name: str) -> bool:
    """Whether a metric, or a family of metrics, lies between 0 and 1."""
    return name in OLD_PROPORTIONS if kind is None else kind == "share"


class Verdict(StrEnum):
    """Verdict on a preregistered claim."""

    SUPPORTED = "SUPPORTED"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_COMPARABLE = "NOT COMPARABLE"
    UNTRAINED = "UNTRAINED"
    DEMONSTRATION = "DEMONSTRATION"
    NO_RESULT = "NO RESULT"


class EffectVerdict(StrEnum):
    """Verdict on an arm against the baseline. The interval beside the margin shows the size of the effect."""

    BETTER = "BETTER"
    WORSE = "WORSE"
    EQUAL = "EQUAL"
    EQUIVALENT = "EQUIVALENT"
    NON_INFERIOR = "NON-INFERIOR"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_COMPARABLE = "NOT COMPARABLE"  # from here on: no judgment of the effect
    UNTRAINED = "UNTRAINED"
    DEMONSTRATION = "DEMONSTRATION"
    LEAKING = "SEES FUTURE TOKENS"
    EXPLORATORY = "EXPLORATORY"
    NO_RESULT = "NO RESULT"

    @property
    def is_judgment(self) -> bool:
        """Whether it judges the effect, and does not say why there is no judgment."""
        return self in (
            EffectVerdict.BETTER,
            EffectVerdict.WORSE,
            EffectVerdict.EQUAL,
            EffectVerdict.EQUIVALENT,
            EffectVerdict.NON_INFERIOR,
            EffectVerdict.INCONCLUSIVE,
        )


DECIDING_INTERVAL = "The deciding interval"
MEANINGS: dict[str, str] = {  # of every verdict on a claim or an effect: a sentence, for all readers
    Verdict.SUPPORTED: f"{DECIDING_INTERVAL} lies entirely in the region where the claim holds.",
    Verdict.REFUTED: f"{DECIDING_INTERVAL} lies entirely in the region where the claim does not hold.",
    EffectVerdict.BETTER: f"{DECIDING_INTERVAL} lies entirely on the better side of 0.",
    EffectVerdict.WORSE: f"{DECIDING_INTERVAL} lies entirely on the worse side of 0.",
    EffectVerdict.EQUAL: "The arms have the same value in every pair, bit for bit.",
    EffectVerdict.EQUIVALENT: f"{DECIDING_INTERVAL} lies within the margin on both sides of 0.",
    EffectVerdict.NON_INFERIOR: f"{DECIDING_INTERVAL} excludes a worsening by the margin or more "
    "(non-inferiority); the arm may be better, equal or a little worse.",
    Verdict.INCONCLUSIVE: f"{DECIDING_INTERVAL} extends to both sides of a threshold, so these seeds decide "
    "nothing. This is no evidence that the arms are equal.",
    Verdict.NOT_COMPARABLE: "The arms differ in more than the compared designs, so a difference between them "
    "decides nothing.",
    Verdict.UNTRAINED: "Models that have barely learned cannot show a difference; train them for longer, as "
    "with size=S.",
    Verdict.DEMONSTRATION: "The training is too short for a finding about any design; train for longer, as "
    "with size=S.",
    EffectVerdict.LEAKING: "The arm sees future tokens by design and is not ranked.",
    EffectVerdict.EXPLORATORY: "No preregistered claim is tested: the effect is described, not judged.",
    Verdict.NO_RESULT: "No run has a measurement.",
}


# None in place of an infinite bound, which JSON lacks
Bound = Annotated[
    float | None, AfterValidator(lambda bound: bound if bound is None or math.isfinite(bound) else None)
]


class Interval(FrozenModel):
    """Two bounds; None where a bound is infinite or unknown."""

    low: Bound
    high: Bound

    def clip(self, bounds: tuple[float, float]) -> Self:
        """Return the part of the interval that lies between two bounds, as for a mean proportion."""
        low, high = bounds
        ends = {
            "low": self.low if self.low is None else min(max(self.low, low), high),
            "high": self.high if self.high is None else min(max(self.high, low), high),
        }
        return self.model_copy(update=ends)


class MeanInterval(Interval):
    """A mean with its confidence interval."""

    mean: float | None


class TrainingEquivalent(Interval):
    """A difference expressed as a relative change of training compute: −0.05 is 5% less."""

    compute_change: float
    level: float


class Sensitivity(FrozenModel):
    """Sensitivity analyses of a difference; they never overrule its verdict."""

    sign_flip: SignFlipResult | None
    leave_one_out: Interval | None
    pairing: PairingGain | None
    outliers: list[int]


class Decision(Interval):
    """The numbers a claim is decided on."""

    n: int
    estimate: float | None
    level: float | None
    alpha: float | None
    p: float | None
    p_holm: float | None
    exact: bool


class ConfidenceInterval(Interval):
    """An interval with its confidence level."""

    level: float


class InterimAnalysis(Interval):
    """Estimate and interval of a claim at one interim analysis."""

    seeds: int
    n: int
    estimate: float | None
    level: float | None


class InterimAnalyses(FrozenModel):
    """The planned and completed interim analyses of a claim; `decided_at` counts from 1."""

    design: Literal["fixed", "looks", "anytime"]
    planned: list[int]
    decided_at: int | None
    completed: list[InterimAnalysis]

    def describe(self) -> str:
        """Format the interim analysis that decided the claim, or how many ran; empty for a fixed design."""
        if self.design != "looks":
            label = "Anytime-valid" if self.design == "anytime" else ""
            return label if self.completed else "Not all seeds have finished"
        planned = len(self.planned)
        if self.decided_at:
            return f"Stopped at interim analysis {self.decided_at} of {planned}"
        if not self.completed:
            return "Before the first interim analysis"
        return f"After {len(self.completed)} of {planned} interim analyses"


CONTRAST_KEYS = ("contrast", "interaction", "chain", "parts_of")  # of claims about several arms


class PreregisteredClaim(FrozenModel):
    """A claim as preregistered, with its defaults filled in.

    `threshold` is in the metric's unit. A threshold given in training compute also has `threshold_text`, and
    its `threshold` is None without a compute calibration. A `contrast` has the weights of its arms, and its
    `arm` and `against` are the sums on both sides in words. `interaction`, `chain` and `parts_of` (the
    arm of `leave_one_out`) are the short form that the claim was written in.
    """

    says: str
    arm: str
    against: str
    metric: str
    compare: Compare
    relation: RelationField = Field(alias="is")
    threshold: float | None
    threshold_text: str | None
    identity: bool
    reason: str | None
    direction: Direction | None
    contrast: dict[str, float] | None = None
    interaction: list[str] | None = None
    chain: list[str] | None = None
    parts_of: str | None = None

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each arm in the difference or ratio: 1 and -1 without a contrast."""
        return self.contrast or {self.arm: 1.0, self.against: -1.0}

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms of the claim, those with positive weights first."""
        weights = self.weights
        return tuple(sorted(weights, key=lambda arm: weights[arm] < 0))

    @property
    def comparison_text(self) -> str:
        """The compared arms in words: `a vs b`, or `interaction of a and b`."""
        return (
            f"interaction of {' and '.join(self.interaction)}"
            if self.interaction
            else f"{self.arm} vs {self.against}"
        )

    @property
    def comparison_key(self) -> tuple[str, str, str, Compare, Relation, float | str | None, bool]:
        """Arms, metric and region of the claim without its wording.

        An amount of training compute counts as it was declared: each calibration gives it another value in
        nats.
        """
        amount = self.threshold if self.threshold_text is None else self.threshold_text
        is_negative = self.threshold is not None and self.threshold < 0
        return self.arm, self.against, self.metric, self.compare, self.relation, amount, is_negative

    @property
    def null_value(self) -> float:
        """The effect that means "no difference"."""
        return 1.0 if self.compare == "ratio" else 0.0

    @property
    def region(self) -> tuple[float, float] | None:
        """The effects for which the claim holds; None if its threshold is unknown."""
        return (
            None if self.threshold is None else self.relation.compute_region(self.threshold, self.null_value)
        )


class ClaimResult(PreregisteredClaim, Sensitivity):
    """A preregistered claim with its verdict.

    - `digits`: decimals of its effect
    - `not_comparable`: reasons against comparing its arms
    - `untrained_reason`: why its arms show no effect of training
    - `unknown_threshold_reason`: why its threshold is unknown
    - `leaking_by_design`: arms that see future tokens by design
    - `unshared_parts`: callbacks and user's own parts that not all of its arms have
    """

    label: str
    unit: str
    basis: str
    exploratory: bool
    timed: bool
    verdict: Verdict
    not_comparable: list[str]
    untrained_reason: str | None
    unknown_threshold_reason: str | None
    leaking_by_design: list[str]
    unshared_parts: tuple[str, ...] = ()
    planned: int | None
    interim_analyses: InterimAnalyses | None
    training_equivalent: TrainingEquivalent | None
    digits: Decimals
    decision: Decision
    interval: ConfidenceInterval | None
    required_seeds: SeedsToDecide | None
    threshold_sign_flip: ThresholdSignFlip | None

    @property
    def holds_by_construction(self) -> bool:
        """Whether the claim is an identity (a count, an equality or a theorem): only a bug can refute it."""
        return self.identity or (self.basis == "exact" and self.decision.exact)


class ClaimStatus(FrozenModel):
    """Status of a claim between interim analyses, which determines the runs it needs so far.

    `required_seeds` counts the seeds it needs; `is_pending` is true while it waits for an interim analysis.
    A claim that is not `decided_by_seeds` completes none.
    """

    decided_by_seeds: bool
    verdict: Verdict
    interim_analyses: InterimAnalyses | None
    completed_analyses: int
    required_seeds: int
    is_pending: bool


class SeedPair(FrozenModel):
    """One seed of an arm and of the arm it is compared with."""

    seed: int
    value: float
    against: float
    difference: float | None


class Effect(Sensitivity, Interval):
    """Difference of an arm from the baseline in one metric; `mean` is a median of steps to a threshold."""

    arm: str
    against: str
    metric: str
    label: str
    unit: str
    primary: bool
    margin: float | None
    n: int
    planned: int
    digits: Decimals
    mean: float | None
    sd: float | None
    level: float
    training_equivalent: TrainingEquivalent | None
    alpha: float
    p: float | None
    p_holm: float | None
    p_equivalent: float | None
    p_noninferior: float | None
    verdict: EffectVerdict
    reasons: list[str]
    pairs: list[SeedPair]
    kind: MetricKind | None = None

    @property
    def is_proportion(self) -> bool:
        """Whether the values lie between 0 and 1, and so their differences between −1 and 1."""
        return is_proportion(self.kind, self.metric)

    @property
    def is_median(self) -> bool:
        """Whether `mean` is the median, because only bounds of some differences are known."""
        return self.kind == "censored"


class GroupEffect(MeanInterval):
    """An effect within a group of claims: the weighted sum of its arms, over the seeds of the group."""

    name: str
    weights: dict[str, float]


class ClaimGroup(FrozenModel):
    """Claims written in one short form, estimated over the seeds that all of their arms have finished.

    - `kind`: an interaction of two changes, a staircase (chain), or parts left out in turn
    - `arms`: of a chain in the order of its steps; of leave_one_out the whole first; of an interaction the
      arm with both changes, those with one, and the baseline
    - `effects`: of a chain its steps and last the difference of its ends, which is their sum
    - `notes`: effects whose arms are not comparable or not matched
    """

    kind: Literal["interaction", "chain", "leave_one_out"]
    arms: list[str]
    metric: str
    label: str
    unit: str
    direction: Direction | None
    seeds: list[int]
    level: float
    digits: Decimals
    means: dict[str, float | None]
    effects: list[GroupEffect]
    notes: list[str]


class IncomparablePair(FrozenModel):
    """Two arms that are not comparable in a metric, with the reasons."""

    arm: str
    against: str
    metric: str
    reasons: list[str]


class VerdictSection(FrozenModel):
    """The claims with the warnings that precede them."""

    headline: str
    exploratory: bool
    not_preregistered: bool
    deviations: list[str]
    not_comparable: list[IncomparablePair]
    run_warnings: list[str]
    claims: list[ClaimResult]
    finished: int
    planned: int


class ExperimentSummary(FrozenModel):
    """The experiment as shown at the top of a report."""

    name: str
    question: str | None
    size: str | None
    arms: list[str]
    baseline: str
    seeds: list[int]
    looks: InterimSchedule | None
    controlled: list[str]
    match: str
    match_by: str | None
    unmatched: list[str]
    leakage: list[str]
    metric: str
    direction: Direction
    margin: float | None
    margin_text: str | None
    margin_reason: str | None


class ReplicationContext(FrozenModel):
    """The corpus or the ladder size of a replicated experiment."""

    kind: Literal["rung", "corpus"]
    name: str
    combined_report: str
    ladder: LadderConfig | None
    rates: str | None


class CorpusCell(FrozenModel):
    """Result of an arm on one corpus."""

    arm: str
    mean: float | None
    state: str | None


class CorpusArms(FrozenModel):
    """All arms on one corpus; `title` is the folder of that corpus's report."""

    corpus: str
    title: str
    cells: list[CorpusCell]


class CorpusClaim(Interval):
    """Verdict and effect of a claim on one corpus; `decision` is the deciding interval with its level."""

    corpus: str
    title: str
    verdict: Verdict
    compare: Compare
    effect: float | None
    unit: str
    digits: Decimals
    training_equivalent: TrainingEquivalent | None
    decision: str = ""


class CorpusClaims(FrozenModel):
    """A claim on every corpus, with the heterogeneity of its effects."""

    says: str
    rows: list[CorpusClaim]
    heterogeneity: str


class CorporaSection(FrozenModel):
    """Results of an experiment across all its corpora."""

    names: list[str]
    arms: list[CorpusArms]
    claims: list[CorpusClaims]


class BudgetCell(FrozenModel):
    """Value of a resource in one arm."""

    arm: str
    value: int | float | str | None
    ratio: float | None
    same: bool | None
    varies: bool


class BudgetRow(FrozenModel):
    """A resource compared across arms."""

    key: str
    label: str
    unit: str
    tolerance: float | None
    controlled: bool
    cells: list[BudgetCell]
    mark: Literal["equal", "differs", "unknown"]

    def get_cell(self, arm: str) -> BudgetCell:
        """Return the cell of an arm.

        Raises:
            StopIteration: the row has no such arm.
        """
        return next(cell for cell in self.cells if cell.arm == arm)


class ArmRunCount(FrozenModel):
    """Planned and finished runs of an arm."""

    arm: str
    planned: int
    finished: int


TrialValue = float | Literal["diverged"] | None
SelectionStatistic = Literal["median", "mean"]  # over tuning seeds, of the metric that a rate is picked by


class LearningRateRow(FrozenModel):
    """Trial of a learning rate: one value per seed, None where the seed was not tried."""

    lr: float
    values: list[TrialValue]
    median: TrialValue
    picked: bool
    outcome: str


class LearningRateResult(FrozenModel):
    """A learning rate in an arm's search; `seeds_tried` counts its seeds."""

    lr: float
    values: list[TrialValue]
    median: TrialValue
    seeds_tried: int


class ArmTuningResult(FrozenModel):
    """Learning-rate search of one arm.

    `failure_reason` explains why no rate was picked; `comparison_tokens` are the tokens of the arm's
    comparison.
    """

    picked: float | None
    failure_reason: str | None
    at_grid_edge: bool
    same_settings: bool
    tokens: int
    comparison_tokens: int
    rows: list[LearningRateResult]


class TuningResult(FrozenModel):
    """Settings and outcome of the learning-rate search."""

    lr: list[float]
    seeds: list[int]
    extend: int
    share: float
    metric: str
    robust: float | None
    committed: bool
    arms: dict[str, ArmTuningResult]


class ArmTuning(FrozenModel):
    """The learning rates of an arm, and the tokens spent on trying them."""

    arm: str
    tokens: int
    comparison_ratio: float | None
    rows: list[LearningRateRow]


class TuningSection(FrozenModel):
    """The learning-rate search as shown in a report."""

    metric: str
    seeds: list[int]
    committed: bool
    arms: list[ArmTuning]
    statistic: SelectionStatistic | None = None


class BudgetCheck(FrozenModel):
    """Resources of each arm against the baseline."""

    rows: list[BudgetRow]
    controlled: list[str]
    seeds: list[ArmRunCount]
    match: str
    match_by: str | None
    unmatched: list[str]
    lr_tuning: str
    tuning: TuningSection | None

    def find_row(self, key: str) -> BudgetRow | None:
        """Return the row of a resource; None if there is none."""
        return next((row for row in self.rows if row.key == key), None)


class LeakageSection(FrozenModel):
    """Arms that see future tokens."""

    arms: list[str]
    by_design: list[str]
    checked: list[str]
    excluded_targets: int
    notes: list[str]


class CalibrationRow(FrozenModel):
    """Loss of the baseline at half and at twice its steps, for one seed."""

    seed: int
    half: float | None
    twice: float | None
    ids: list[str]


class Slope(Interval):
    """Loss per doubling of training compute."""

    mean: float
    level: float


class CalibrationResult(FrozenModel):
    """Measured compute calibration; `reason` explains why there is no slope."""

    metric: str
    seeds: list[int]
    steps: list[int]
    tokens: int
    rows: list[CalibrationRow]
    slopes: list[float]
    slope: Slope | None
    loss_per_doubling: str | None
    reason: str | None

    @property
    def nats_per_doubling(self) -> float | None:
        """Mean of the slope; None if it is missing or unusable."""
        return self.slope.mean if self.slope and not self.reason else None


class CalibrationSection(CalibrationResult):
    """A compute calibration with its sentences."""

    label: str
    summary: str
    cost: str


class TradeoffPoint(FrozenModel):
    """An arm in a trade-off: cost x and result y."""

    arm: str
    x: float
    x_low: float | None
    x_high: float | None
    y: float
    y_low: float | None
    y_high: float | None


class TradeoffPanel(FrozenModel):
    """One cost against the experiment's metric."""

    key: str
    label: str
    unit: str
    digits: Decimals
    lower_is_better: bool
    note: str
    points: list[TradeoffPoint]
    pareto_front: list[str]


class CurveLine(FrozenModel):
    """Learning curve of one run."""

    arm: str
    seed: int
    done: bool
    tokens: list[int]
    values: list[float]


class MeanCurve(FrozenModel):
    """Mean learning curve of an arm over its finished seeds."""

    arm: str
    tokens: list[int]
    values: list[float]
    seeds: int


def average_lines(lines: Sequence[CurveLine]) -> list[MeanCurve]:
    """Average over finished seeds.

    A seed that stopped early is drawn, but must neither bend nor shorten the mean.
    """
    curves = []
    for arm in dict.fromkeys(line.arm for line in lines):
        arm_lines = [line for line in lines if line.arm == arm]
        members = [
            dict(zip(line.tokens, line.values, strict=True))
            for line in [line for line in arm_lines if line.done] or arm_lines
        ]
        shared = sorted(set.intersection(*(set(member) for member in members)))
        means = [sum(member[t] for member in members) / len(members) for t in shared]
        curves.append(MeanCurve(arm=arm, tokens=shared, values=means, seeds=len(members)))
    return curves


class CurvesSection(FrozenModel):
    """Learning curves of one metric; they keep every `every`-th point.

    `compared` are the arms whose differences to the baseline have a meaning; these are computed from the
    lines.
    """

    name: str
    every: int
    lines: list[CurveLine]
    means: list[MeanCurve]
    baseline: str
    compared: list[str]

    @property
    def differences(self) -> list[CurveLine]:
        """The curve of each run minus the baseline's of the same seed, at the points that both have."""
        baseline_lines = {line.seed: line for line in self.lines if line.arm == self.baseline}
        differences = []
        for line in self.lines:
            baseline_line = baseline_lines.get(line.seed)
            if baseline_line is None or line.arm not in self.compared:
                continue
            base = dict(zip(baseline_line.tokens, baseline_line.values, strict=True))
            pairs = zip(line.tokens, line.values, strict=True)
            if difference := {t: value - base[t] for t, value in pairs if t in base}:
                differences.append(
                    CurveLine(
                        arm=line.arm,
                        seed=line.seed,
                        done=line.done and baseline_line.done,
                        tokens=[*difference],
                        values=[*difference.values()],
                    )
                )
        return differences

    @property
    def mean_differences(self) -> list[MeanCurve]:
        """The mean of each arm's differences."""
        return average_lines(self.differences)


class ArmPositionLosses(FrozenModel):
    """Final loss of an arm at each position of the context."""

    arm: str
    position: list[int]
    values: list[float]
    seeds: int


class PositionLosses(FrozenModel):
    """Final loss by position in the context."""

    name: str
    unit: str
    means: list[ArmPositionLosses]


class ConditionCell(MeanInterval):
    """Result of an arm under one condition."""

    arm: str
    mean: float
    n: int


class ConditionRow(FrozenModel):
    """A condition, such as a multiple of the trained length or a distance."""

    condition: str
    x: float | None
    series: str
    cells: list[ConditionCell]
    undefined: list[str]


class ConditionTable(FrozenModel):
    """A family of metrics by condition."""

    key: str
    title: str
    axis: str
    rows: list[ConditionRow]
    kind: MetricKind | None = None

    @property
    def is_proportion(self) -> bool:
        """Whether the values lie between 0 and 1."""
        return is_proportion(self.kind, self.key)


class ReachedFraction(Interval):
    """Number of an arm's runs that reached the threshold."""

    n: int
    count: int
    level: float


class StepsSaved(MeanInterval):
    """Steps saved against the baseline, within the budget."""

    n: int
    sd: float | None
    level: float
    p: float | None
    tied: bool


class StepsToThresholdComparison(FrozenModel):
    """Steps to threshold of an arm against the baseline."""

    n: int
    steps_saved: StepsSaved
    sign_flip: SignFlipResult
    logrank_p: float | None


class StepsToThresholdRow(FrozenModel):
    """Steps to threshold of one arm."""

    arm: str
    reached: ReachedFraction
    median: float | None
    planned: int
    comparison: StepsToThresholdComparison | None


class StepsToThresholdTable(FrozenModel):
    """Steps to threshold in a metric that is censored at the budget."""

    metric: str
    label: str
    unit: str
    budget: float
    against: str
    rows: list[StepsToThresholdRow]


class ArmHeadScore(FrozenModel):
    """Head scores of one arm, pooled over its seeds."""

    arm: str
    chance: float | None
    heads: int
    seeds: int
    mean: float | None
    mean_low: float | None
    mean_high: float | None
    above_threshold: float | None
    above_threshold_low: int | None
    above_threshold_high: int | None


class HeadScore(FrozenModel):
    """A score of attention heads; its values are in the rows of the runs."""

    name: str
    label: str
    about: str
    threshold: float | None
    chance: float | None
    counts: list[ArmHeadScore]


class MissingScore(FrozenModel):
    """A score that an arm lacks, with the reason."""

    arm: str
    label: str
    reason: str


class PatternCount(FrozenModel):
    """Number of an arm's heads that show a pattern."""

    arm: str
    heads: int
    seeds: int
    mean: float
    low: int
    high: int


class Pattern(FrozenModel):
    """A pattern of attention heads."""

    name: str
    rule: str
    counts: list[PatternCount]


class KernelAgreement(FrozenModel):
    """Largest difference between an arm's attention maps and the kernel that trained it."""

    arm: str
    max_abs: float | None
    runs: int
    notes: list[str]


class HeadsSection(FrozenModel):
    """Attention heads: scores, patterns, and agreement with the kernels."""

    scores: list[HeadScore]
    absent: list[MissingScore]
    patterns: list[Pattern]
    agreement: list[KernelAgreement]
    layers: int


class SeedRange(FrozenModel):
    """A mean with the range over seeds."""

    mean: float
    low: float
    high: float


class ArmTokenLoss(FrozenModel):
    """Loss of an arm on one token category."""

    arm: str
    seeds: int
    loss: SeedRange | None
    difference: SeedRange | None


class TokenCategory(FrozenModel):
    """Loss of every arm on one token category."""

    name: str
    label: str
    targets: int
    arms: list[ArmTokenLoss]


class Sample(FrozenModel):
    """Text generated by one run after a prompt; `reason` explains a missing sample."""

    arm: str
    seed: int
    run: str
    prompt: str
    rest: str
    sample: str | None
    reason: str | None


class RunningTextSection(FrozenModel):
    """Results on running text: losses by token category, and generated samples."""

    token_categories: list[TokenCategory]
    samples: list[Sample]


class FailedRun(FrozenModel):
    """A run that did not finish."""

    arm: str
    seed: int
    id: str
    status: str
    status_label: str
    message: str | None
    step: int | None
    tail: list[str]


class FailureCount(FrozenModel):
    """Number of an arm's runs that failed, or were lost with their machine."""

    arm: str
    planned: int
    failed: int
    lost: int


class Failures(FrozenModel):
    """Failed runs, and the caveats that the intervals do not cover."""

    runs: list[FailedRun]
    counts: list[FailureCount]
    status_counts: list[tuple[str, int]]
    caveats: list[str]


class ConfigCell(FrozenModel):
    """Value of a config key in one arm."""

    arm: str
    present: bool
    value: Any


class ConfigRow(FrozenModel):
    """A config key in which arms differ."""

    key: str
    cells: list[ConfigCell]


class LayerKinds(FrozenModel):
    """Layer kinds of an arm whose layers differ; `layers` holds each layer's index into `kinds`."""

    arm: str
    layers: list[int]
    kinds: list[str]


class ConfigDiff(FrozenModel):
    """The keys in which arms differ, and the baseline's complete config."""

    arms: list[str]
    rows: list[ConfigRow]
    layers: list[LayerKinds]
    baseline_config: dict[str, Any]


class Provenance(FrozenModel):
    """Origin of a report: command, commit, packages, device and preregistration."""

    command: str
    commit: str | None
    dirty: bool | None
    dirty_diff: str | None
    packages: dict[str, str] | None
    device: str | None
    date: str | None
    preregistered: dict[str, Any]
    preregistration_sha256: str | None
    changed: list[str]


class Reproduce(Provenance):
    """The provenance together with the environments and data that the runs recorded."""

    versions: dict[str, dict[str, int]] | None
    data: list[dict[str, Any]]
    environment: dict[str, Any]
    mixed: list[str]


class TimingInterval(Interval):
    """Time of one arm: the median of interleaved repeats with its interval."""

    median: float
    samples: list[float]

    @property
    def blocks(self) -> list[list[float]]:
        """The samples by round; a round A B B A holds two of each arm from the same moment."""
        return [self.samples[i : i + 2] for i in range(0, len(self.samples) - 1, 2)]


class TimingResult(FrozenModel):
    """Times of all arms, measured in one process that had the machine to itself."""

    version: Literal[2] = Field(2, alias="schema")
    device: str
    threads: int
    context: int
    batch: int
    order: str
    metric_definitions: dict[str, Metric]
    arms: dict[str, dict[str, TimingInterval | str | None]]

    def get_time(self, arm: str, metric: str) -> TimingInterval | None:
        """Return the time of an arm; None if it was not measured."""
        time = self.arms.get(arm, {}).get(metric)
        return time if isinstance(time, TimingInterval) else None


class RunRow(FrozenModel):
    """A planned run with its metrics, its resources, and the scores of its heads, each [layer][head]."""

    arm: str
    seed: int
    id: str
    status: str
    seconds: float | None
    started: str | None
    metrics: dict[str, Number | None]
    budget: KnownBudget
    memory: dict[str, Number | None]
    speed: dict[str, Number | None]
    head_scores: dict[str, list[list[float | None]]]

    @property
    def is_done(self) -> bool:
        return self.status == "done"


class PairedMean(MeanInterval):
    """A mean over complete pairs."""

    n: int


class ArmFile(FrozenModel):
    """Runs of an arm in a file: rows read, runs found, and runs that the verdict uses.

    Runs are numbered if the file does not give the seed of each. Mean and sd are None if a run diverged.
    """

    arm: str
    name: str
    digest: str
    rows_read: int
    runs_found: int
    runs: int
    diverged: int
    missing: int
    has_seeds: bool
    mean: float | None
    sd: float | None


class FilesSection(FrozenModel):
    """How runs that were trained elsewhere were read and compared.

    - `reduce`: how a run became one number
    - `equal_values`: runs whose value another run has too
    - `required_runs_per_side`: for 80% power in one analysis; None if unknown or over 10,000
    """

    arms: list[ArmFile]
    paired: bool
    pairing: str
    test: str
    reduce: str
    equal_values: int
    required_runs_per_side: int | None
    run_times: str
    declared: str | None
    declaration_digest: str | None


class HeadsReport(FrozenModel):
    """The part of a report that shows attention heads."""

    experiment: ExperimentSummary
    runs: list[RunRow]
    heads: HeadsSection | None

    def get_chance_levels(self, arm: str) -> dict[str, float | None]:
        """The score of uniform attention in an arm, by score; None where it is not known."""
        scores = self.heads.scores if self.heads else ()
        return {score.name: count.chance for score in scores for count in score.counts if count.arm == arm}


class CurvesReport(HeadsReport):
    """The part of a report that shows heads and curves."""

    curves: CurvesSection | None
    positions: PositionLosses | None


class Report(CurvesReport):
    """Content of report.json."""

    version: Literal[14] = Field(REPORT_VERSION, alias="schema")
    verdict: VerdictSection
    replication: ReplicationContext | None
    corpora: CorporaSection | None
    budget: BudgetCheck
    leakage: LeakageSection | None
    compute_calibration: CalibrationSection | None
    effects: list[Effect]
    tradeoff: list[TradeoffPanel]
    length: list[ConditionTable]
    steps_to_threshold: list[StepsToThresholdTable]
    text: RunningTextSection | None
    failures: Failures
    config: ConfigDiff
    axes: dict[str, dict[str, str]]  # option of every config group, by arm
    reproduce: Reproduce
    timing: TimingResult | None
    warnings: list[str]
    preregistration: Preregistration | None
    grid: GridSection | None = None  # of a sweep without an experiment
    claim_groups: list[ClaimGroup] = Field([])
    files: FilesSection | None = None  # of runs that were trained elsewhere

    @property
    def is_paired(self) -> bool:
        """Whether the arms have common seeds, as in every sweep."""
        return self.files is None or self.files.paired

    def to_dict(self) -> dict[str, Any]:
        """Return the content of report.json, without sections and keys that only other reports have."""
        document = super().to_dict()
        for claim in document["verdict"]["claims"]:
            for key in (*CONTRAST_KEYS, "unshared_parts"):
                if not claim[key]:
                    del claim[key]
        absent = {key for key in ("grid", "claim_groups", "files") if not document[key]}
        return {key: value for key, value in document.items() if key not in absent}

    @property
    def title(self) -> str:
        """The experiment's name, with the corpus, size or budget that tells this report from its siblings.

        The report of the first corpus, whose headline is about all, has the plain name.
        """
        if self.replication is None or self.is_main:
            return self.experiment.name
        if self.replication.kind == "corpus":
            return f"{self.experiment.name} on {self.replication.name}"
        step_name = self.replication.ladder.step_name if self.replication.ladder else "size"
        return f"{self.replication.combined_report} at {step_name} {self.replication.name}"

    @property
    def is_main(self) -> bool:
        """Whether this is the report of the first of several corpora."""
        return bool(self.corpora and self.replication and self.replication.name == self.corpora.names[0])


def format_json(document: Any) -> str:
    """JSON with sorted keys and one record a line, so that a diff shows the records that changed.

    Mappings and lists that contain records are spread over lines; everything else is compact.
    """
    return _layout_json(document, "") + "\n"


def _layout_json(value: Any, indent: str) -> str:
    inner = indent + " "
    if isinstance(value, dict) and value and (not indent or any(map(_has_records, value.values()))):
        lines = [f"{_format_compact_json(key)}: {_layout_json(value[key], inner)}" for key in sorted(value)]
        return "{\n" + ",\n".join(inner + line for line in lines) + f"\n{indent}}}"
    if _has_records(value):
        return "[\n" + ",\n".join(inner + _layout_json(item, inner) for item in value) + f"\n{indent}]"
    return _format_compact_json(value)


def _has_records(value: Any) -> bool:
    """Whether a value is, or contains, a list of mappings."""
    if isinstance(value, dict):
        return any(map(_has_records, value.values()))
    return isinstance(value, list) and any(isinstance(item, dict) or _has_records(item) for item in value)


def _format_compact_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def load_report(path: Path) -> Report:
    """Read a report.json.

    Raises:
        ValueError: the file is no report, is incomplete, or has another version.
    """
    try:
        document = parse_json(read_user_text(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as a report: {error}; run its command again") from error
    if not isinstance(document, dict) or "schema" not in document or "verdict" not in document:
        raise ValueError(f"{path}: not a report of attnlab: give the folder of a report, or its report.json")
    if document["schema"] != REPORT_VERSION:
        raise ValueError(
            f"{path}: has schema {document['schema']}, this version reads {REPORT_VERSION}; "
            "run its command again (finished runs are cached)"
        )
    try:
        return Report.model_validate(document)
    except ValidationError as error:
        message = convert_validation_error(error, "is an incomplete report")
        raise ValueError(f"{path}: {message}; run its command again") from error
