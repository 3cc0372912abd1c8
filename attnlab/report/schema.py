"""The results of an experiment as types: report.json, from the whole report to each number in it.

`build` fills them, pages and tools read them, and `attnlab schema report` prints the JSON schema that they
emit. A report of another version is an error: nothing is guessed.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainSerializer, ValidationError

from attnlab.store.declarations import Is, Ladder, Looks, Relation
from attnlab.store.guards.declared import Declared
from attnlab.store.schema import Budget, Direction, Metric, Record, reading

VERSION: Final = 9
Real = int | float
Compare = Literal["difference", "ratio"]
KnownBudget = Annotated[Budget, PlainSerializer(lambda budget: budget.known())]


class Verdict(StrEnum):
    """What a claim comes to."""

    SUPPORTED = "SUPPORTED"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_COMPARABLE = "NOT COMPARABLE"
    UNTRAINED = "UNTRAINED"
    NO_RESULT = "NO RESULT"


class Word(StrEnum):
    """How an arm stands to the baseline."""

    BETTER_MORE = "BETTER by more than the margin"
    BETTER = "BETTER, size undecided"
    WORSE_MORE = "WORSE by more than the margin"
    WORSE = "WORSE, size undecided"
    EQUIVALENT = "EQUIVALENT"
    NOT_WORSE = "NON-INFERIOR"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_COMPARABLE = "NOT COMPARABLE"  # what follows is no judgment of its size
    LEAKING = "SEES FUTURE TOKENS"
    EXPLORATORY = "EXPLORATORY"
    NO_RESULT = "NO RESULT"


class Interval(Record):
    """Both ends of an interval; None where an end is unbounded or unknown."""

    low: float | None
    high: float | None


class Mean(Interval):
    """A mean with its interval."""

    mean: float | None


class Training(Interval):
    """A difference as a share of the training compute: -0.05 is 5% less."""

    share: float
    level: float


class SignFlipTest(Record):
    """The exact sign-flip test of "no difference"; its p is never below `floor`."""

    p: float | None
    floor: float


class Pairing(Record):
    """How much pairing by seed helps: the correlation of the arms, and the factor of seeds it saves."""

    n: int
    correlation: float | None
    gain: float | None


class Sensitivity(Record):
    """What stands beside a difference and never overrules it."""

    sign_flip: SignFlipTest | None
    leave_one_out: Interval | None
    pairing: Pairing | None
    outliers: list[int]


class Decision(Interval):
    """The numbers that a claim is decided on."""

    n: int
    estimate: float | None
    level: float | None
    alpha: float | None
    p: float | None
    p_holm: float | None
    exact: bool


class LevelInterval(Interval):
    """An interval with its confidence level."""

    level: float


class Look(Interval):
    """One interim analysis of a claim."""

    seeds: int
    n: int
    estimate: float | None
    level: float | None


class LooksMade(Record):
    """The interim analyses of a claim; `decided` counts from 1."""

    design: Literal["fixed", "looks", "anytime"]
    planned: list[int]
    decided: int | None
    made: list[Look]

    def describe(self) -> str:
        """At which interim analysis a claim was decided, or how far it was tested; empty for a fixed one."""
        if self.design != "looks":
            made = "Anytime-valid" if self.design == "anytime" else ""
            return made if self.made else "Not all seeds are in"
        planned = len(self.planned)
        if self.decided:
            return f"Stopped at interim analysis {self.decided} of {planned}"
        if not self.made:
            return "Before the first interim analysis"
        return f"Inconclusive after {len(self.made)} of {planned} interim analyses"


class Deciding(Record):
    """How many seeds in all would decide an inconclusive claim, at the observed effect."""

    seeds: int | None
    low: int | None
    high: int | None
    power: float
    ends: Literal["support", "refute"]


class FlippedClaim(Record):
    """Sign flips on the claim's own threshold; `able`: whether so few pairs can decide it."""

    p: float
    tail: float
    able: bool
    holds: bool | None


class DeclaredClaim(Record):
    """A claim as it was preregistered, with its defaults filled in.

    `threshold` is in the metric's unit; None where it is declared as training and no calibration says what
    that is. `threshold_said` has the words of a threshold that is declared as training.
    """

    says: str
    arm: str
    against: str
    metric: str
    compare: Compare
    relation: Is = Field(alias="is")
    threshold: float | None
    threshold_said: str | None
    identity: bool
    reason: str | None
    direction: Direction | None

    @property
    def question(self) -> tuple[str, str, str, Compare, Relation, float | None]:
        """What it asks, without its words."""
        return self.arm, self.against, self.metric, self.compare, self.relation, self.threshold

    @property
    def center(self) -> float:
        """The effect that means "no difference"."""
        return 1.0 if self.compare == "ratio" else 0.0

    @property
    def region(self) -> tuple[float, float] | None:
        """The effects for which it holds; None where its threshold is not known."""
        return None if self.threshold is None else self.relation.region(self.threshold, self.center)


class ClaimResult(DeclaredClaim, Sensitivity):
    """A preregistered claim with its verdict.

    `digits` are the decimals of its effect; `not_comparable` has the reasons against comparing its arms,
    `untrained` why they show nothing of training, `unknown` why its threshold is not known; `by_design` names
    the arms that see future tokens by design.
    """

    label: str
    unit: str
    basis: str
    exploratory: bool
    timed: bool
    verdict: Verdict
    not_comparable: list[str]
    untrained: str | None
    unknown: str | None
    by_design: list[str]
    planned: int | None
    looks: LooksMade | None
    training: Training | None
    digits: int
    decision: Decision
    interval: LevelInterval | None
    deciding: Deciding | None
    flipped: FlippedClaim | None


class Standing(Record):
    """How a claim stands between two interim analyses, as far as it decides which runs are needed by now.

    `made` counts its interim analyses; `seeds` are those that it needs; it waits for one where it is `open`.
    """

    arm: str
    against: str
    basis: str
    verdict: Verdict
    looks: LooksMade | None
    made: int
    seeds: int
    open: bool


class Pair(Record):
    """One seed of an arm and of the arm that it is compared with."""

    seed: int
    value: float
    against: float
    difference: float | None


class Effect(Sensitivity):
    """An arm against the baseline in one metric."""

    arm: str
    against: str
    metric: str
    label: str
    unit: str
    primary: bool
    margin: float | None
    n: int
    planned: int
    digits: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    level: float
    training: Training | None
    alpha: float
    p: float | None
    p_holm: float | None
    p_equivalent: float | None
    p_not_worse: float | None
    word: Word
    reasons: list[str]
    pairs: list[Pair]


class Separation(Record):
    """Two arms that are not compared in a metric, and why."""

    arm: str
    against: str
    metric: str
    reasons: list[str]


class VerdictSection(Record):
    """The claims, and what a reader has to know before them."""

    headline: str
    exploratory: bool
    undeclared: bool
    departures: list[str]
    apart: list[Separation]
    unlike: list[str]
    claims: list[ClaimResult]
    finished: int
    planned: int


class ExperimentSummary(Record):
    """The experiment as the head of a report shows it."""

    name: str
    question: str | None
    size: str | None
    arms: list[str]
    baseline: str
    seeds: list[int]
    looks: Looks | None
    held: list[str]
    match: str
    match_by: str | None
    unmatched: list[str]
    leakage: list[str]
    metric: str
    direction: Direction
    margin: float | None
    margin_said: str | None
    margin_reason: str | None


class Place(Record):
    """On which text, or at which ladder size, an experiment is run."""

    kind: Literal["rung", "text"]
    name: str
    together: str
    ladder: Ladder | None
    rates: str | None


class TextCell(Record):
    """An arm on one text."""

    arm: str
    mean: float | None
    state: str | None


class TextArms(Record):
    """All arms on one text; `title` is that report's folder."""

    text: str
    title: str
    cells: list[TextCell]


class TextClaim(Interval):
    """A claim on one text."""

    text: str
    title: str
    verdict: Verdict
    compare: Compare
    effect: float | None
    unit: str
    digits: int
    training: Training | None


class TextClaims(Record):
    """A claim on every text, and how its effects differ."""

    says: str
    rows: list[TextClaim]
    together: str


class Texts(Record):
    """What all texts of an experiment say."""

    names: list[str]
    arms: list[TextArms]
    claims: list[TextClaims]


class BudgetCell(Record):
    """What one arm was given of a resource."""

    arm: str
    value: int | float | str | None
    ratio: float | None
    same: bool | None
    varies: bool


class BudgetRow(Record):
    """A resource."""

    key: str
    label: str
    unit: str
    tolerance: float | None
    held: bool
    cells: list[BudgetCell]
    mark: Literal["equal", "differs", "unknown"]

    def cell(self, arm: str) -> BudgetCell:
        """The cell of an arm. StopIteration where the row has none."""
        return next(cell for cell in self.cells if cell.arm == arm)


class ArmSeeds(Record):
    """How many runs of an arm are planned and finished."""

    arm: str
    planned: int
    finished: int


Tried = float | Literal["diverged"] | None


class TriedRate(Record):
    """A learning rate that was tried: by seed, None where it was not."""

    lr: float
    values: list[Tried]
    median: Tried
    picked: bool
    fate: str


class RateFound(Record):
    """A learning rate of an arm's search; `tried` counts its seeds."""

    lr: float
    values: list[Tried]
    median: Tried
    tried: int


class ArmTuningFound(Record):
    """An arm's search; `lack` says why it picked no rate, `comparison` is the tokens of its comparison."""

    picked: float | None
    lack: str | None
    at_end: bool
    same_settings: bool
    tokens: int
    comparison: int
    rows: list[RateFound]


class TuningFound(Record):
    """What the search for learning rates was asked, and what it found for each arm."""

    lr: list[float]
    seeds: list[int]
    widen: int
    share: float
    metric: str
    steady: float | None
    committed: bool
    arms: dict[str, ArmTuningFound]


class ArmTuning(Record):
    """The learning rates of an arm, and the tokens that trying them took."""

    arm: str
    tokens: int
    of_comparison: float | None
    rows: list[TriedRate]


class Tuning(Record):
    """How learning rates were found."""

    metric: str
    seeds: list[int]
    committed: bool
    arms: list[ArmTuning]


class BudgetCheck(Record):
    """What each arm was given, against the baseline."""

    rows: list[BudgetRow]
    held: list[str]
    seeds: list[ArmSeeds]
    match: str
    match_by: str | None
    unmatched: list[str]
    lr_tuning: str
    tuning: Tuning | None

    def row(self, key: str) -> BudgetRow | None:
        """The row of a resource."""
        return next((row for row in self.rows if row.key == key), None)


class Leakage(Record):
    """Which arms see future tokens."""

    arms: list[str]
    by_design: list[str]
    checked: list[str]
    left_out: int
    notes: list[str]


class ExchangeRow(Record):
    """The baseline's loss at half and at twice its steps, for one seed."""

    seed: int
    half: float | None
    twice: float | None
    ids: list[str]


class Slope(Interval):
    """Loss per doubling of training compute."""

    mean: float
    level: float


class ExchangeFound(Record):
    """The compute calibration as it was measured; `why`: the reason where it gives no slope."""

    metric: str
    seeds: list[int]
    steps: list[int]
    tokens: int
    rows: list[ExchangeRow]
    slopes: list[float]
    slope: Slope | None
    worth: str | None
    why: str | None


class Exchange(ExchangeFound):
    """The same with its sentences."""

    label: str
    words: str
    cost: str


class TradeoffPoint(Record):
    """An arm in a trade-off: its cost x and its result y."""

    arm: str
    x: float
    x_low: float | None
    x_high: float | None
    y: float
    y_low: float | None
    y_high: float | None


class TradeoffPanel(Record):
    """One cost against the experiment's metric."""

    key: str
    label: str
    unit: str
    digits: int
    lower_is_better: bool
    note: str
    points: list[TradeoffPoint]
    front: list[str]


class CurveLine(Record):
    """A curve of one run."""

    arm: str
    seed: int
    done: bool
    tokens: list[int]
    values: list[float]


class MeanCurve(Record):
    """The mean curve of an arm over its finished seeds."""

    arm: str
    tokens: list[int]
    values: list[float]
    seeds: int


class Curves(Record):
    """Learning curves of one metric; every `every`-th point."""

    name: str
    every: int
    lines: list[CurveLine]
    means: list[MeanCurve]
    differences: list[CurveLine]
    mean_differences: list[MeanCurve]


class PositionMeans(Record):
    """An arm's final loss at each position of the context."""

    arm: str
    position: list[int]
    values: list[float]
    seeds: int


class Positions(Record):
    """Loss by position."""

    name: str
    unit: str
    means: list[PositionMeans]


class ConditionCell(Mean):
    """An arm under one condition."""

    arm: str
    mean: float
    n: int


class ConditionRow(Record):
    """A condition: a multiple of the trained length, a distance."""

    condition: str
    x: float | None
    series: str
    cells: list[ConditionCell]
    undefined: list[str]


class ConditionTable(Record):
    """A family of metrics by condition."""

    key: str
    title: str
    axis: str
    rows: list[ConditionRow]


class Solved(Interval):
    """How many of an arm's runs reached the mark."""

    n: int
    count: int
    level: float


class Saved(Mean):
    """Steps saved against the baseline, within the budget."""

    n: int
    sd: float | None
    level: float
    p: float | None
    tied: bool


class Race(Record):
    """An arm's steps to the mark against the baseline's."""

    n: int
    saved: Saved
    flips: SignFlipTest
    logrank_p: float | None


class RaceRow(Record):
    """An arm's runs towards the mark."""

    arm: str
    solved: Solved
    median: float | None
    planned: int
    race: Race | None


class RaceTable(Record):
    """A metric that is censored at the budget."""

    metric: str
    label: str
    unit: str
    budget: float
    against: str
    rows: list[RaceRow]


class ScoredRun(Record):
    """A head score of one run: [layer][head]."""

    arm: str
    seed: int
    values: list[list[float | None]]
    chance: float | None


class ScoreCount(Record):
    """A head score of one arm, over its seeds."""

    arm: str
    chance: float | None
    heads: int
    seeds: int
    mean: float | None
    mean_low: float | None
    mean_high: float | None
    over: float | None
    over_low: int | None
    over_high: int | None


class HeadScore(Record):
    """A score of attention heads."""

    name: str
    label: str
    about: str
    threshold: float | None
    chance: float | None
    runs: list[ScoredRun]
    counts: list[ScoreCount]


class AbsentScore(Record):
    """A score that an arm does not have."""

    arm: str
    label: str
    why: str


class PatternCount(Record):
    """How many heads of an arm show a pattern."""

    arm: str
    heads: int
    seeds: int
    mean: float
    low: int
    high: int


class Pattern(Record):
    """A pattern of attention heads."""

    name: str
    rule: str
    counts: list[PatternCount]


class Agreement(Record):
    """How far an arm's maps are from the kernel that trained it."""

    arm: str
    max_abs: float | None
    runs: int
    notes: list[str]


class Heads(Record):
    """Attention heads."""

    scores: list[HeadScore]
    absent: list[AbsentScore]
    patterns: list[Pattern]
    agreement: list[Agreement]
    layers: int


class Range(Record):
    """A mean and the range over seeds."""

    mean: float
    low: float
    high: float


class KindArm(Record):
    """An arm's loss on one category of tokens."""

    arm: str
    seeds: int
    loss: Range | None
    difference: Range | None


class TokenKind(Record):
    """A category of tokens."""

    name: str
    label: str
    targets: int
    arms: list[KindArm]


class Sample(Record):
    """What one run writes after a prompt; `why` where it writes nothing."""

    arm: str
    seed: int
    run: str
    prompt: str
    rest: str
    sample: str | None
    why: str | None


class TextSection(Record):
    """What arms make of running text."""

    kinds: list[TokenKind]
    written: list[Sample]


class FailedRun(Record):
    """A run that did not finish."""

    arm: str
    seed: int
    id: str
    status: str
    word: str
    message: str | None
    step: int | None
    tail: list[str]


class FailureCount(Record):
    """How many runs of an arm failed, or were lost with their machine."""

    arm: str
    planned: int
    failed: int
    lost: int


class Failures(Record):
    """Failed runs, and what the intervals do not cover."""

    runs: list[FailedRun]
    counts: list[FailureCount]
    words: list[tuple[str, int]]
    caveats: list[str]


class ConfigCell(Record):
    """A key's value in one arm."""

    arm: str
    present: bool
    value: Any


class ConfigRow(Record):
    """A key in which arms differ."""

    key: str
    cells: list[ConfigCell]


class LayerKinds(Record):
    """The kinds of an arm's layers, where they differ: for each layer its place in `kinds`."""

    arm: str
    layers: list[int]
    kinds: list[str]


class ConfigDiff(Record):
    """The keys in which arms differ, and the baseline's whole config."""

    arms: list[str]
    rows: list[ConfigRow]
    layers: list[LayerKinds]
    whole: dict[str, Any]


class RunRef(Record):
    """A run by its arm, seed and id."""

    arm: str
    seed: int
    id: str
    status: str


class Provenance(Record):
    """Where a report comes from."""

    command: str
    commit: str | None
    dirty: bool | None
    dirty_diff: str | None
    packages: dict[str, str] | None
    device: str | None
    date: str | None
    declared: dict[str, Any]
    declaration_sha256: str | None
    changed: list[str]


class Reproduce(Provenance):
    """The same with what its runs say of themselves."""

    versions: dict[str, dict[str, int]] | None
    data: list[dict[str, Any]]
    runs: list[RunRef]
    environment: dict[str, Any]
    mixed: list[str]


class Timed(Interval):
    """A time of one arm: the median of interleaved repeats with its interval."""

    median: float
    samples: list[float]


class Timing(Record):
    """The times of all arms, taken in one process that had the machine to itself."""

    version: Literal[2] = Field(2, alias="schema")
    device: str
    threads: int
    context: int
    batch: int
    order: str
    declared: dict[str, Metric]
    arms: dict[str, dict[str, Timed | str | None]]

    def of(self, arm: str, metric: str) -> Timed | None:
        """An arm's time; None where it was not taken."""
        found = self.arms.get(arm, {}).get(metric)
        return found if isinstance(found, Timed) else None


class RunRow(Record):
    """A planned run with its figures."""

    arm: str
    seed: int
    id: str
    axes: dict[str, str]
    status: str
    seconds: float | None
    started: str | None
    metrics: dict[str, Real | None]
    budget: KnownBudget
    memory: dict[str, Real | None]
    speed: dict[str, Real | None]

    @property
    def done(self) -> bool:
        return self.status == "done"


class ReachedMean(Mean):
    """A mean over complete pairs."""

    n: int


class HeadsReport(Record):
    """The part of a report that shows attention heads."""

    experiment: ExperimentSummary
    runs: list[RunRow]
    heads: Heads | None


class Report(HeadsReport):
    """report.json."""

    version: Literal[9] = Field(VERSION, alias="schema")
    verdict: VerdictSection
    place: Place | None
    texts: Texts | None
    budget: BudgetCheck
    leakage: Leakage | None
    exchange: Exchange | None
    effects: list[Effect]
    tradeoff: list[TradeoffPanel]
    curves: Curves | None
    positions: Positions | None
    length: list[ConditionTable]
    races: list[RaceTable]
    text: TextSection | None
    failures: Failures
    config: ConfigDiff
    reproduce: Reproduce
    timing: Timing | None
    warnings: list[str]
    declared: Declared | None


def load(source: Path) -> Report:
    """The report in a file. ValueError where it is none, is cut short, or is of another version."""
    try:
        document = json.loads(source.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{source}: cannot be read as a report: {error}; run its command again") from error
    if not isinstance(document, dict) or "schema" not in document or "verdict" not in document:
        raise ValueError(f"{source}: is JSON, but not a report of attnlab")
    if document["schema"] != VERSION:
        raise ValueError(
            f"{source}: has schema {document['schema']}, this version reads {VERSION}; run its command again "
            "(finished runs are cached)"
        )
    try:
        return Report.model_validate(document)
    except ValidationError as error:
        wrong = reading(error, "is not a whole report")
        raise ValueError(f"{source}: {wrong}; run its command again") from error
