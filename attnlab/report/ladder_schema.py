"""Types of ladder.json: the combined results of the sizes of a ladder."""

import json
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from attnlab.report.schema import Interval, MeanInterval, Verdict
from attnlab.store.experiment_schema import LadderConfig
from attnlab.store.run_schema import Direction, FrozenModel, convert_validation_error

VERSION: Final = 2
LADDER_FILE = "ladder.json"


class LadderSize(FrozenModel):
    """One size of a ladder: resources of the baseline's runs, learning rate of each arm, finished runs."""

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
    """An effect at one size; `x` is log10 of its training FLOPs, `failed` counts runs without a result."""

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


class MoreSeeds(FrozenModel):
    """Seeds that would decide: total seeds at the largest size, or seeds at a further one at `x`."""

    at_largest_size: int | None
    x: float
    at_next_size: int | None


class Comparison(FrozenModel):
    """Two arms by training compute, with the scaling verdict of the preregistered rule."""

    arm: str
    against: str
    effects: list[SizeEffect]
    verdict: str
    reason: str | None
    seeds_needed: MoreSeeds | None
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
    value: float | None


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
    """A claim with its verdict at every size."""

    says: str
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

    version: Literal[2] = Field(VERSION, alias="schema")
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
    sizes: list[LadderSize]
    comparisons: list[Comparison]
    losses: list[ArmLosses]
    claims: list[LadderClaim]
    agreement: DecisionAccuracySummary
    exploratory: bool
    reproduce: LadderProvenance

    @property
    def headline(self) -> str:
        """The scaling verdict of each comparison."""
        verdicts = [f"{row.arm} against {row.against}: {row.verdict}" for row in self.comparisons]
        return "; ".join(verdicts) or str(Verdict.NO_RESULT)


def load_ladder(folder: Path) -> LadderReport:
    """Load the ladder in a folder.

    Raises:
        ValueError: the file is missing, unreadable, or of another version.
    """
    source = folder / LADDER_FILE
    try:
        document = json.loads(source.read_text("utf-8"))
        if document["schema"] != VERSION:
            raise ValueError(f"its schema is {document['schema']}, but this version reads {VERSION}")
        return LadderReport.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{convert_validation_error(error, str(source))}; run its command again") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{source}: cannot be read as a ladder: {error}; run its command again") from error
