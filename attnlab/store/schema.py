"""Every record as a type: what a run is, what it left, what a metric is.

One definition gives validation with a clear line, types for readers, and the JSON schema that editors and
other programs use (`attnlab schema`). A record of another version is refused: nothing is guessed.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    Strict,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass

from attnlab.errors import Refused

VERSION: Final = 2
Status = Literal["done", "diverged", "out_of_memory", "crashed", "timed_out", "killed", "host_out_of_memory"]
LOST: Final = ("killed", "host_out_of_memory")  # infrastructure failures: no outcome of the run's arm
Direction = Literal["lower", "higher"]
Kind = Literal["seeds", "count", "time", "share", "censored"]
Scores = Literal["targets", "bytes", "lengths", "best"]
Number = StrictInt | Annotated[FiniteFloat, Strict()]


@dataclass(frozen=True)
class Metric:
    """What a measured number is, declared where it is measured.

    `label` is what a sentence calls it, `unit` is empty for a ratio or a share, `direction` says which of two
    values is better, None where that depends on the experiment. `kind`: it varies by seed (`seeds`), is
    counted and has no interval (`count`), is made of times (`time`), lies between 0 and 1 (`share`), or is a
    number of steps cut off at the budget (`censored`). Metrics of a family `<family>/<condition>` that are to
    stand in one table name its title as `table`, and as `axis` what a number in the condition says. `scores`
    is what a metric of predictions is about, and so which runs have the same: the `targets` of validation,
    the `bytes` of the validation text, texts of several `lengths`, or the `best` of several validations.
    """

    name: str
    label: str = ""
    unit: str = ""
    direction: Direction | None = None
    kind: Kind = "seeds"
    table: str = ""
    axis: str = ""
    scores: Scores = "targets"

    @property
    def words(self) -> str:
        """The label, or the name where it has none."""
        return self.label or self.name


def named(*metrics: Metric) -> dict[str, Metric]:
    """Declarations by name, as records hold them."""
    return {metric.name: metric for metric in metrics}


class Record(BaseModel):
    """What all records share: plain values, unknown keys refused, changes made by copying."""

    # validators are built at first use: a plan imports many records and reads few
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)

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
    epochs: Number | None = None
    batch_tokens: int | None = None
    steps: int | None = None
    lr: Number | None = None
    context: int | None = None
    dtype: str | None = None
    kernel: str | None = None
    device: str | None = None

    @property
    def training_flops(self) -> float:
        """Of all its tokens; 0 where that is not known."""
        return float((self.flops_per_token or 0) * (self.tokens or 0))

    def known(self) -> dict[str, Any]:
        """What is known of it, by name."""
        return {key: value for key, value in self.plain().items() if value is not None}

    def get(self, name: str) -> Any:
        """One resource by its name; None where it is not known."""
        return getattr(self, name, None)


class Estimate(Budget):
    """What is known of a run before it starts: its budget, its data, the kind of device it is planned for."""

    device_kind: str = "cpu"
    data: dict[str, Any] = {}
    memory_bytes: int | None = None  # at the peak of training, on each device
    room_bytes: int | None = None  # what a device of that kind has
    declared: dict[str, Metric] = {}
    figures: tuple[str, ...] | None = None  # all that it may measure, by name; None: nobody can know before
    measured_by: dict[str, str] = {}  # what is measured at a run's end, to the digest of the code that does
    observed_by: dict[str, str] = {}  # the same for what only training can show

    def budget(self) -> dict[str, Any]:
        """Its resources alone, by name."""
        own = Estimate.model_fields.keys() - Budget.model_fields.keys()
        return {key: value for key, value in self.known().items() if key not in own}


class Use(Record):
    """How a run came about; nothing of it changes what the run is. `axes`: the option that was chosen of each
    group, as in heads: gqa; `split`: the parts of a batch; `composed`: what of a user's own the command
    names, in any of its runs; `instead`: the failure that was there when the run was asked for (its record's
    `failed`).
    """

    experiment: str | None = None
    arm: str | None = None
    axes: dict[str, str] = {}
    overrides: tuple[str, ...] = ()
    split: int = 1
    composed: tuple[str, ...] = ()
    instead: str | None = None
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

    @property
    def overrides(self) -> tuple[str, ...]:
        """They compose the run again, by hand or in another launcher."""
        return self.use.overrides

    def but(self, **changes: Any) -> Self:
        """The same with some fields replaced."""
        return self.model_copy(update=changes)

    def used(self, **changes: Any) -> Self:
        """The same, used otherwise."""
        return self.but(use=self.use.model_copy(update=changes))


class Failure(Record):
    """Why a run did not end well, the step it reached and the last lines that it wrote."""

    message: str
    step: int | None = None
    tail: tuple[str, ...] = ()


class Censored(Record):
    """Steps until a mark was reached, None where it was not within the budget."""

    value: Number | None
    budget: Number


class KindLoss(Record):
    """The mean loss, in nats, of the targets of one kind."""

    loss: FiniteFloat
    targets: int


class RunRecord(Record):
    """What a run left: done, or how it failed. A run is done when this validates and says so.

    `measured_by` holds, per part of the record, the digest of the code that measured it at the run's end;
    `observed_by` the same for what only training could show. `files` holds the sha256 of the files beside it,
    `seal` a digest of each of its fields (`store/guards/digests.py`).
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
    targets_by_position: tuple[int, ...] = ()  # how many targets of validation count at each position
    memory: dict[str, Number | None] = {}
    speed: dict[str, Number | None] = {}
    kernels: dict[str, Any] = {}
    head_scores: dict[str, Any] = {}
    leakage: dict[str, Number] = {}  # whether predictions depend on later tokens
    by_kind: dict[str, KindLoss] = {}  # of a text's tokens
    written: dict[str, str | None] = {}  # to a text: prompt, rest, sample, why there is none
    split: int = 1
    resumed: tuple[dict[str, Number | None], ...] = ()  # from checkpoints: step, again, off
    measured_by: dict[str, str] = {}
    observed_by: dict[str, str] = {}
    started: str | None = None
    seconds: FiniteFloat | None = None
    files: dict[str, str] = {}
    seal: dict[str, str] = {}

    @model_validator(mode="after")
    def _finished_with_something(self) -> Self:
        if self.done and not self.metrics:
            raise ValueError("a run that is done has metrics")
        if not self.done and self.failure is None:
            raise ValueError("a run that is not done has a failure")
        return self

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def lost(self) -> bool:
        """Whether its infrastructure failed and not the run itself: the same run may finish elsewhere."""
        return self.status in LOST

    @property
    def failed(self) -> str | None:
        """What tells this failure from the run's next one; None where it did not fail."""
        return None if self.done else hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def outdated(self, today: Estimate) -> list[str]:
        """The parts that today's code would measure otherwise, and can measure again."""
        return [part for part, digest in today.measured_by.items() if self.measured_by.get(part) != digest]

    def unseen(self, today: Estimate) -> list[str]:
        """The parts that today's code would have seen otherwise while it was trained."""
        return [part for part, digest in today.observed_by.items() if self.observed_by.get(part) != digest]

    def metric(self, name: str) -> Metric | None:
        """The declaration of one of its figures."""
        return self.declared.get(name) or self.estimate.declared.get(name)

    def figure(self, name: str) -> float | None:
        """A number by its name: a metric, or a figure of budget, memory or speed."""
        for group in (self.metrics, self.estimate, self.memory, self.speed):
            value = group.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return None


def reading(error: ValidationError, what: str, where: str | None = None) -> Refused:
    """The first fault of a record as one line: where (as pydantic has it, if not given), what is wrong, what
    was found.
    """
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) if where is None else where
    value = first.get("input")
    shown = "" if isinstance(value, dict | list) else f", got {value!r}"
    return Refused(
        f"{what}: {place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}{shown}"
    )


def refuse_other_version(content: dict[str, Any], path: Path) -> None:
    """One line for a file that another version of attnlab wrote."""
    if content.get("schema") != VERSION:
        raise Refused(
            f"{path} has schema {content.get('schema')}, this version reads {VERSION}: "
            f"move that store away, or point paths.runs at another folder"
        )
