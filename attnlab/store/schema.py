"""Every record as a type: what a run is, what it left, what an experiment declares, what a metric is.

One definition gives validation with a clear line, types for readers, and the JSON schema that editors and
other programs use (`attnlab schema`). A record of another version is refused: nothing is guessed.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from pydantic.dataclasses import dataclass

from attnlab.errors import Refused

VERSION = 2
Status = Literal["done", "diverged", "out_of_memory", "crashed", "timed_out", "killed"]
Direction = Literal["lower", "higher"]
Kind = Literal["seeds", "count", "time", "share", "censored"]
Number = Annotated[int | FiniteFloat, Field(union_mode="left_to_right")]


@dataclass(frozen=True)
class Metric:
    """What a measured number is, declared where it is measured.

    `label` is what a sentence calls it, `unit` is empty for a ratio or a share, `direction` says which of two
    values is better, None where that depends on the experiment. `kind`: it varies by seed (`seeds`), is
    counted and has no interval (`count`), is made of times (`time`), lies between 0 and 1 (`share`), or is a
    number of steps cut off at the budget (`censored`).
    """

    name: str
    label: str = ""
    unit: str = ""
    direction: Direction | None = None
    kind: Kind = "seeds"

    @property
    def words(self) -> str:
        """The label, or the name where it has none."""
        return self.label or self.name


class Record(BaseModel):
    """What all records share: plain values, unknown keys refused, changes made by copying."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def plain(self) -> dict[str, Any]:
        """As JSON has it, under the names that files have."""
        return self.model_dump(mode="json", by_alias=True)


class Budget(Record):
    """The resources of a run; what one does not have is None. A trainer of a user's may add keys."""

    model_config = ConfigDict(extra="allow", frozen=True)

    parameters: Number | None = None
    parameters_non_embedding: int | None = None
    parameters_attention: int | None = None
    flops_per_token: Number | None = None
    kv_bytes_per_token: Number | None = None
    tokens: int | None = None
    batch_tokens: int | None = None
    steps: int | None = None
    lr: Number | None = None
    context: int | None = None
    dtype: str | None = None
    kernel: str | None = None
    device: str | None = None

    def figures(self) -> dict[str, Any]:
        """What is known of it, by name."""
        return {key: value for key, value in self.plain().items() if value is not None}

    def get(self, name: str) -> Any:
        """One resource by its name; None where it is not known."""
        return getattr(self, name, None)


class Estimate(Budget):
    """What is known of a run before it starts: its budget, its data, the kind of device it is planned for."""

    device_kind: str = "cpu"
    data: dict[str, Any] = {}
    declared: dict[str, Metric] = {}


class Use(Record):
    """How a run came about; nothing of it changes what the run is. `split`: the parts of a batch."""

    experiment: str | None = None
    arm: str | None = None
    overrides: tuple[str, ...] = ()
    split: int = 1
    commit: str | None = None
    dirty: bool | None = None


class RunSpec(Record):
    """What a run is, as written before it is launched. `identity` is what its id is the hash of."""

    version: Literal[2] = Field(VERSION, alias="schema")
    id: str
    config: dict[str, Any]
    identity: dict[str, Any] = {}
    estimate: Estimate = Estimate()
    use: Use = Use()

    @property
    def arm(self) -> str:
        return self.use.arm or "run"

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    def but(self, **changes: Any) -> Self:
        """The same with some fields replaced."""
        return self.model_copy(update=changes)


class Failure(Record):
    """Why a run did not end well, the step it reached and the last lines that it wrote."""

    message: str
    step: int | None = None
    tail: tuple[str, ...] = ()


class Censored(Record):
    """Steps until a mark was reached, None where it was not within the budget."""

    value: Number | None
    budget: Number


class RunRecord(Record):
    """What a run left: done, or how it failed. A run is done when this validates and says so.

    `measured_by` holds, per part of the record, the digest of the code that measured it.
    """

    version: Literal[2] = Field(VERSION, alias="schema")
    id: str
    status: Status
    seed: int | None
    failure: Failure | None = None
    config: dict[str, Any]
    estimate: Estimate = Estimate()
    environment: dict[str, Any] = {}
    metrics: dict[str, Number] = {}
    declared: dict[str, Metric] = {}
    undefined: tuple[str, ...] = ()
    censored: dict[str, Censored] = {}
    by_position: dict[str, list[FiniteFloat | None]] = {}
    memory: dict[str, Number | None] = {}
    speed: dict[str, Number | None] = {}
    kernels: dict[str, Any] = {}
    head_scores: dict[str, Any] = {}
    split: int = 1
    measured_by: dict[str, str] = {}
    started: str | None = None
    seconds: FiniteFloat | None = None

    @property
    def done(self) -> bool:
        return self.status == "done"

    def metric(self, name: str) -> Metric | None:
        """The declaration of one of its figures."""
        return self.declared.get(name) or self.estimate.declared.get(name)

    def figure(self, name: str) -> float | None:
        """A number by its name: a metric, or a figure of budget, memory or speed."""
        for group in (self.metrics, self.estimate.figures(), self.memory, self.speed):
            value = group.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return None


class Claim(Record):
    """What an experiment claims of an arm: its difference from (or ratio to) another lies somewhere."""

    says: str = Field(description="The claim in words; the report repeats them.")
    arm: str = Field(description="The arm that it is about.")
    against: str | None = Field(
        None, description="The arm that it is compared with; the baseline if left out."
    )
    metric: str | None = Field(None, description="What is compared; the experiment's metric if left out.")
    compare: Literal["difference", "ratio"] = Field(
        "difference", description="The arm's value minus the other's, or divided by it."
    )
    relation: Literal["above", "below", "within"] = Field(
        alias="is",
        description="Where the difference or ratio lies: above or below the threshold, or no further than it "
        "from no difference (0, or a ratio of 1).",
    )
    threshold: FiniteFloat = Field(description="In the metric's unit; a ratio has none.")
    direction: Direction | None = Field(None, description="Which values of the metric are better.")
    source: str | None = Field(None, description="Who says so: a paper, a document.")
    source_says: str | None = Field(None, description="What exactly the source says, with its numbers.")


class Tune(Record):
    """A grid of learning rates, on seeds that the comparison does not have."""

    lr: list[float] = Field(description="The rates; every arm gets its own best.")
    seeds: list[int] = Field(description="The grid's seeds, none of which the comparison has.")


class Experiment(Record):
    """What an experiment file declares. Its other keys are the run's config, for all arms alike."""

    name: str = Field(description="As the file is called.")
    question: str = Field("", description="What is asked, as a sentence; the report begins with it.")
    size: str | None = Field(
        None, description="A value of the group `size`, as a rule from the command line."
    )
    arms: list[str] = Field(description="The arms that are compared, in the order of the tables.")
    arm_overrides: dict[str, list[str]] = Field(
        {}, description="Arm: what it sets, as Hydra overrides; other arms may be listed too."
    )
    size_overrides: dict[str, list[str] | None] = Field(
        {}, description="Size: what all arms set at it, as Hydra overrides."
    )
    baseline: str = Field(description="The arm that the others are compared with.")
    seeds: list[int] = Field(description="One run of every arm per seed; a seed is one observation.")
    held: list[str] = Field(
        [], description="The resources that all arms have alike, as in [parameters, tokens]."
    )
    match: Literal["none", "params", "flops", "kv_bytes"] = Field(
        "none", description="The resource that is made equal by solving for `match_by`."
    )
    match_by: str | None = Field(None, description="The key that is solved for, as in model.ffn_width.")
    metric: str = Field(description="What decides, as in val/loss.")
    metrics: list[str] = Field([], description="Further metrics that the report shows.")
    direction: Direction = Field("lower", description="Which values of the metric are better.")
    margin: FiniteFloat = Field(description="The largest difference of the metric that does not matter.")
    margin_reason: str = Field(description="Why it does not matter; written before the first run.")
    claims: list[Claim] = Field([], description="What is put to the test, with thresholds.")
    tune: Tune | None = Field(None, description="A grid of learning rates that is trained first.")
    tuned: dict[str, Any] | None = Field(
        None, description="What a grid found before: it is not trained again."
    )

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """The keys that belong to an experiment and not to a run."""
        return tuple(cls.model_fields)


def reading(error: ValidationError, what: str) -> Refused:
    """The first fault of a record as one line: where, what is wrong, what was found."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    found = first.get("input")
    shown = "" if isinstance(found, dict | list) else f", got {found!r}"
    return Refused(f"{what}: {place + ': ' if place else ''}{first['msg']}{shown}")


def refuse_other_version(found: dict[str, Any], path: Path) -> None:
    """One line for a file that another version of attnlab wrote."""
    if found.get("schema") != VERSION:
        raise Refused(
            f"{path} has schema {found.get('schema')}, this version reads {VERSION}: "
            f"move that store away, or point paths.runs at another folder"
        )
