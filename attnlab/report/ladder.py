"""What the sizes of a ladder say together, as types: ladder.json."""

import json
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from attnlab.report.schema import Interval, Mean, Verdict
from attnlab.store.declarations import Ladder
from attnlab.store.schema import Direction, Record, reading

VERSION: Final = 1
LADDER = "ladder.json"


class Size(Record):
    """One size of a ladder: what the baseline's runs take, each arm's learning rate, the finished runs."""

    name: str
    title: str
    flops: float | None
    parameters: float | None
    parameters_non_embedding: float | None
    tokens: int | None
    steps: int | None
    rates: dict[str, float]
    finished: int
    planned: int
    headline: str
    seconds: float


class SizeEffect(Mean):
    """An effect at one size; `x` is log10 of its training FLOPs, `failed` counts runs without a result."""

    rung: str
    flops: float | None
    x: float
    n: int
    differences: list[float]
    failed: int


class LinePoint(Mean):
    """A point of the line through all sizes."""

    flops: float


class Larger(Mean):
    """The line at ten times the parameters of the largest size, which takes `compute` times its FLOPs."""

    compute: float


class HeldOut(Mean):
    """What the other sizes predict of the largest, and what was seen there."""

    seen: float
    hit: bool | None


class MoreSeeds(Record):
    """What would decide: seeds in all at the largest size, or seeds at a further one at `x`."""

    at_top: int | None
    x: float
    further: int | None


class Comparison(Record):
    """Two arms by training compute, with the word of the declared rule."""

    arm: str
    against: str
    effects: list[SizeEffect]
    word: str
    meaning: str | None
    more: MoreSeeds | None
    slope: Mean | None
    change: Mean | None
    ahead: LinePoint | None
    larger: Larger | None
    held_out: HeldOut | None
    line: list[LinePoint]
    sentence: str
    ahead_said: str


class LossPoint(Mean):
    """An arm's loss at one size."""

    rung: str
    flops: float | None
    values: list[float]


class FloorMultiplier(Interval):
    """A compute multiplier under one assumed floor of the loss."""

    floor: float
    value: float | None


class Multiplier(Record):
    """How much less compute the arm takes for the baseline's loss, by the assumed floor of the loss."""

    floors: dict[str, FloorMultiplier]
    least: float | None
    most: float | None


class ArmLosses(Record):
    """An arm's loss at every size."""

    arm: str
    points: list[LossPoint]
    multiplier: Multiplier | None


class LadderClaim(Record):
    """A claim with its verdict at every size."""

    says: str
    verdicts: list[Verdict | None]


class Accuracy(Record):
    """How often a size and the next larger one decide alike: pairs of verdicts, and a sentence."""

    pairs: list[tuple[str, str]]
    words: str


class Source(Record):
    """Where a ladder comes from."""

    command: str | None
    commit: str | None
    dirty: bool | None
    date: str | None
    device: str | None


class LadderReport(Record):
    """ladder.json."""

    version: Literal[1] = Field(VERSION, alias="schema")
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
    ladder: Ladder
    rungs: list[Size]
    comparisons: list[Comparison]
    losses: list[ArmLosses]
    claims: list[LadderClaim]
    agreement: Accuracy
    exploratory: bool
    reproduce: Source

    @property
    def headline(self) -> str:
        """A word for each comparison."""
        words = [f"{row.arm} against {row.against}: {row.word}" for row in self.comparisons]
        return "; ".join(words) or str(Verdict.NO_RESULT)


def load(folder: Path) -> LadderReport:
    """The ladder in a folder. ValueError where there is none that can be read."""
    source = folder / LADDER
    try:
        document = json.loads(source.read_text("utf-8"))
        if document["schema"] != VERSION:
            raise ValueError(f"it has schema {document['schema']}, this version reads {VERSION}")
        return LadderReport.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{reading(error, str(source))}; run its command again") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{source}: cannot be read as a ladder: {error}; run its command again") from error
