"""Types of ladder.json: the combined results of the sizes or the budgets of a ladder."""

from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from attnlab.report.schema import Interval, MeanInterval, Verdict
from attnlab.stats.replications.budget_verdict import BUDGET_MEANINGS
from attnlab.stats.replications.scaling_verdict import FLIPS, GROWS, HOLDS, INCONCLUSIVE, SHRINKS, SeedsNeeded
from attnlab.store.atomic_files import parse_json, read_user_text
from attnlab.store.experiment_schema import LadderConfig
from attnlab.store.run_schema import Direction, FrozenModel, convert_validation_error

SCALING_MEANINGS = {
    HOLDS: "the effect changes with size by less than the margin",
    GROWS: "the effect grows with size",
    SHRINKS: "the effect shrinks with size",
    FLIPS: "the effect changes its sign with size",
    INCONCLUSIVE: "whether the effect changes with size: not shown",
}
VERSION: Final = 3
LADDER_FILE = "ladder.json"


class LadderSize(FrozenModel):
    """One size or budget of a ladder: resources of the baseline's runs, learning rates, finished runs."""

    name: str
    title: str
    flops: float | None
    parameters: float | None
    parameters_non_embedding: float | None
    tokens: int | None
    steps: int | None
    learning_rates: dict[str, float]
    finished: int
    planned: int
    headline: str
    seconds: float


class SizeEffect(MeanInterval):
    """An effect at one size.

    `x` is log10 of its training FLOPs; `failed` counts the failed runs of both sides, without lost ones.
    """

    size: str
    flops: float | None
    x: float
    n: int
    differences: list[float]
    failed: int


class LinePoint(MeanInterval):
    """A point of the line through all sizes."""

    flops: float


class TenfoldEstimate(MeanInterval):
    """The line at ten times the parameters of the largest size, which needs `compute` times its FLOPs."""

    compute: float


class HoldoutEstimate(MeanInterval):
    """Prediction of the largest size by the others, and the observed effect there."""

    observed: float
    hit: bool | None


class Comparison(FrozenModel):
    """Two arms by training compute, with the scaling or budget verdict of the preregistered rule.

    `slope` is per decade of compute, with budgets per doubling of the tokens.
    """

    arm: str
    against: str
    effects: list[SizeEffect]
    verdict: str
    reason: str | None
    seeds_needed: SeedsNeeded | None
    slope: MeanInterval | None
    change: MeanInterval | None
    extrapolation: LinePoint | None
    at_tenfold_parameters: TenfoldEstimate | None
    holdout: HoldoutEstimate | None
    line: list[LinePoint]
    sentence: str
    extrapolation_sentence: str


class LossPoint(MeanInterval):
    """An arm's loss at one size."""

    size: str
    flops: float | None
    values: list[float]


class FloorMultiplier(Interval):
    """A compute multiplier under one assumed floor of the loss."""

    floor: float
    value: float


class Multiplier(FrozenModel):
    """How much less compute the arm needs for the baseline's loss, by the assumed floor of the loss."""

    floors: dict[str, FloorMultiplier]
    lowest: float | None
    highest: float | None


class ArmLosses(FrozenModel):
    """An arm's loss at every size."""

    arm: str
    points: list[LossPoint]
    multiplier: Multiplier | None


class LadderClaim(FrozenModel):
    """A claim with its verdict at every size; its arms are empty in files of earlier versions."""

    says: str
    arm: str = ""
    against: str = ""
    verdicts: list[Verdict | None]


class DecisionAccuracySummary(FrozenModel):
    """How often a size and the next larger one decide alike: pairs of verdicts, and a sentence."""

    pairs: list[tuple[str, str]]
    sentence: str


class LadderProvenance(FrozenModel):
    """Command, commit, date and device of a ladder."""

    command: str | None
    commit: str | None
    dirty: bool | None
    date: str | None
    device: str | None


class LadderReport(FrozenModel):
    """The content of ladder.json."""

    version: Literal[3] = Field(VERSION, alias="schema")
    name: str
    experiment: str
    question: str | None
    metric: str
    unit: str
    direction: Direction
    margin: float
    margin_reason: str | None
    level: float
    arms: list[str]
    baseline: str
    ladder: LadderConfig
    corpus: str | None = None
    sizes: list[LadderSize]
    comparisons: list[Comparison]
    losses: list[ArmLosses]
    claims: list[LadderClaim]
    agreement: DecisionAccuracySummary
    exploratory: bool
    reproduce: LadderProvenance

    @property
    def headline(self) -> str:
        """The arms of the first claim with their summary; without a claim, those of the first comparison."""
        if not self.comparisons:
            return str(Verdict.NO_RESULT)
        row = self.comparisons[self.main_index]
        return f"{row.arm} vs {row.against}: {self.summary}"

    @property
    def summary(self) -> str:
        """The verdicts on the first claim, the scope, and whether the effect changes with size."""
        verdicts = self.format_claim_verdicts(self.claims[0]) if self.claims else ""
        scope = ", ".join(filter(None, (verdicts, self.scope)))
        return f"{scope}; {self.get_meaning(self.comparisons[self.main_index])}"

    @property
    def main_index(self) -> int:
        """The index of the comparison that the first claim is about, else of the first one."""
        arms = [(claim.arm, claim.against) for claim in self.claims[:1]]
        return next((i for i, row in enumerate(self.comparisons) if (row.arm, row.against) in arms), 0)

    @property
    def step_name(self) -> str:
        """What its steps are called: size or budget."""
        return self.ladder.step_name

    @property
    def scope_question(self) -> str:
        """What it asks about the experiment's answer, without a question mark."""
        if self.ladder.budgets:
            return "Is the loss better, or only reached sooner"
        return "Does the answer hold across sizes"

    @property
    def scope(self) -> str:
        """The range of sizes or budgets and the corpus: `49k to 623k parameters, on code`."""
        resource = "tokens" if self.ladder.budgets else "parameters"
        first, last = (getattr(size, resource) for size in (self.sizes[0], self.sizes[-1]))
        extent = f"{_format_count(first)} to {_format_count(last)} {resource}" if first and last else ""
        return ", ".join(filter(None, (extent, f"on {self.corpus}" if self.corpus else "")))

    def get_meaning(self, comparison: Comparison) -> str:
        """The verdict on a comparison in words."""
        return (BUDGET_MEANINGS if self.ladder.budgets else SCALING_MEANINGS)[comparison.verdict]

    def format_claim_verdicts(self, claim: LadderClaim) -> str:
        """Format the verdicts of a claim: `supported at all 4 sizes`, or with the sizes of each verdict."""
        sizes_by_verdict: dict[str, list[str]] = {}
        for size, verdict in zip(self.sizes, claim.verdicts, strict=True):
            sizes_by_verdict.setdefault((verdict or Verdict.NO_RESULT).lower(), []).append(size.name)
        if len(sizes_by_verdict) == 1:
            return f"{next(iter(sizes_by_verdict))} at all {len(self.sizes)} {self.step_name}s"
        return ", ".join(
            f"{verdict} at {len(names)} {self.step_name}{'s' if len(names) > 1 else ''} ({', '.join(names)})"
            for verdict, names in sizes_by_verdict.items()
        )


def _format_count(count: float) -> str:
    """Format a number of parameters or tokens with about three digits: 49k, 623k, 1.47M."""
    thousands = round(count / 1000)
    return f"{thousands}k" if thousands < 1000 else f"{count / 1e6:.3g}M"


def load_ladder(folder: Path) -> LadderReport:
    """Load the ladder in a folder.

    Raises:
        ValueError: the file is missing, unreadable, or of another version.
    """
    source = folder / LADDER_FILE
    try:
        document = parse_json(read_user_text(source))
        if document["schema"] != VERSION:
            raise ValueError(f"its schema is {document['schema']}, but this version reads {VERSION}")
        return LadderReport.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{convert_validation_error(error, str(source))}; run its command again") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{source}: cannot be read as a ladder: {error}; run its command again") from error
