"""Typed schema of the run config (spec.json), the run result (run.json) and metric definitions.

One definition gives validation errors with a location, types for readers, and the JSON schema that editors
and other programs use (`attnlab schema`). Files of another schema version are rejected; there is no automatic
upgrade.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
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

from attnlab.errors import InvalidConfig
from attnlab.store.safe_paths import require_run_name

SCHEMA_VERSION: Final = 2
Status = Literal["done", "diverged", "out_of_memory", "crashed", "timed_out", "killed", "host_out_of_memory"]
# Infrastructure failures, which are no result of the run's arm.
LOST_STATUSES: Final = ("killed", "host_out_of_memory")
# Failures that are a result of the run's arm.
FAILED_STATUSES: Final = ("diverged", "crashed", "timed_out", "out_of_memory")
Direction = Literal["lower", "higher"]
MetricKind = Literal["seeds", "count", "time", "share", "censored"]
EvaluatedOn = Literal["targets", "bytes", "lengths", "best"]
Number = StrictInt | Annotated[FiniteFloat, Strict()]


def _require_parent_name(config: dict[str, Any]) -> dict[str, Any]:
    if parent := config.get("parent"):
        require_run_name("parent", str(parent))
    return config


# A stored file may come from anyone, and these names become paths.
RunId = Annotated[str, AfterValidator(partial(require_run_name, "id"))]
StoredConfig = Annotated[dict[str, Any], AfterValidator(_require_parent_name)]


@dataclass(frozen=True)
class Metric:
    """Definition of a measured number, declared where it is measured.

    Attributes:
        label: Name used in sentences.
        unit: Empty for a ratio or a proportion.
        direction: Whether lower or higher is better; None where that depends on the experiment.
        kind: `seeds` for a value that varies by seed, `count` for an exact count without an interval, `time`
            for a value made of times, `share` for a value between 0 and 1, `censored` for a number of steps
            censored at the budget.
        table: Title of the table that shows the metrics of a family `<family>/<condition>` together.
        axis: Meaning of a number in the condition.
        evaluated_on: Data that a metric of predictions is computed on, which decides whether two runs are
            comparable: validation `targets`, `bytes` of the validation text, texts of several `lengths`, or
            the `best` of several validations.
    """

    name: str
    label: str = ""
    unit: str = ""
    direction: Direction | None = None
    kind: MetricKind = "seeds"
    table: str = ""
    axis: str = ""
    evaluated_on: EvaluatedOn = "targets"

    @property
    def display_name(self) -> str:
        """The label, or the name for a metric without one."""
        return self.label or self.name


def index_by_name(*metrics: Metric) -> dict[str, Metric]:
    """Return metric definitions by name, in the form that run configs and results store."""
    return {metric.name: metric for metric in metrics}


class FrozenModel(BaseModel):
    """Base of all stored models: plain values, unknown keys rejected, changes made by copying."""

    # Pydantic builds validators at first use: a plan imports many models and reads few files.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values under the key names used in files."""
        return self.model_dump(mode="json", by_alias=True)


class Budget(FrozenModel):
    """Resources of a run; None for a resource that it lacks. A user-defined trainer may add keys."""

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
        """FLOPs over all training tokens; 0 if unknown."""
        return float((self.flops_per_token or 0) * (self.tokens or 0))

    def get_known_values(self) -> dict[str, Any]:
        """Return the resources that are not None, by name."""
        return {key: value for key, value in self.to_dict().items() if value is not None}

    def get(self, name: str) -> Any:
        """Return one resource by name; None if unknown."""
        return getattr(self, name, None)


class RunEstimate(Budget):
    """Facts known before a run starts: budget, data, and the device kind it is planned for."""

    device_kind: str = "cpu"
    data: dict[str, Any] = {}
    memory_bytes: int | None = None  # peak of training, per device
    device_memory_bytes: int | None = None  # total memory of the planned device
    shared_steps: int | None = None  # first steps that would be the same with any larger trainer.max_steps
    metric_definitions: dict[str, Metric] = {}
    metric_names: tuple[str, ...] | None = None  # all metrics that the run may measure; None: unknown
    measured_by: dict[str, str] = {}  # part measured after training -> digest of the code that measures it
    observed_by: dict[str, str] = {}  # the same for parts that only training can show

    def get_budget(self) -> dict[str, Any]:
        """Return the resources alone, by name, without the other facts."""
        estimate_keys = RunEstimate.model_fields.keys() - Budget.model_fields.keys()
        return {key: value for key, value in self.get_known_values().items() if key not in estimate_keys}


class Trunk(FrozenModel):
    """A run of a smaller budget, and the number of its steps that a run has in common with it."""

    id: RunId
    step: int


class Use(FrozenModel):
    """Provenance of a run; none of it changes the run's result or id.

    Attributes:
        arm: Name of the run, which also has its learning rate or calibration: "gqa lr=0.01".
        base_arm: The arm of the experiment that the run belongs to: "gqa".
        axes: The option chosen in each config group, as in heads: gqa.
        split: Number of micro-batches per batch.
        retried_failure: `failure_digest` of the failed result that was there when the run was requested.
        trunk: The run of a smaller budget that starts with the same steps.
        keeps_trunk: Whether to save the last state that runs of larger budgets share.
    """

    experiment: str | None = None
    arm: str | None = None
    base_arm: str | None = None
    axes: dict[str, str] = {}
    overrides: tuple[str, ...] = ()
    split: int = 1
    retried_failure: str | None = None
    trunk: Trunk | None = None
    keeps_trunk: bool = False
    commit: str | None = None
    dirty: bool | None = None


class RunConfig(FrozenModel):
    """Config of a run, written before launch (spec.json). The run id is the hash of `identity`."""

    version: Literal[2] = Field(SCHEMA_VERSION, alias="schema")
    id: RunId
    config: StoredConfig
    identity: dict[str, Any] = {}
    estimate: RunEstimate = RunEstimate()
    use: Use = Use()

    @property
    def arm(self) -> str:
        return self.use.arm or "run"

    @property
    def base_arm(self) -> str:
        """The arm that a tuning or calibration run belongs to; that of any other run is its own."""
        return self.use.base_arm or self.arm

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def overrides(self) -> tuple[str, ...]:
        """Hydra overrides that compose this run again, by hand or in another launcher."""
        return self.use.overrides

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with some fields replaced."""
        return self.model_copy(update=changes)

    def with_provenance(self, **changes: Any) -> Self:
        """Return a copy with some fields of `use` replaced."""
        return self.with_changes(use=self.use.model_copy(update=changes))


class Failure(FrozenModel):
    """Reason of a failed run, the step it reached, and the last lines of its output."""

    message: str
    step: int | None = None
    tail: tuple[str, ...] = ()


class CensoredSteps(FrozenModel):
    """Steps until a threshold was reached; None if it was not reached within the budget."""

    value: Number | None
    budget: Number


class TokenCategoryLoss(FrozenModel):
    """Mean loss, in nats, over the targets of one token category."""

    loss: FiniteFloat
    targets: int


class RunResult(FrozenModel):
    """Result of a run that finished or failed (run.json).

    Attributes:
        measured_by: Part of the result -> digest of the code that measured it after training.
        observed_by: The same for parts that only training can show.
        recomputed: Metric -> its value for the final weights, from logits alone.
        interference: What parts did with validation batches besides validating (`ValidationWatch`).
        files: sha256 of the files next to run.json.
        seal: A digest of each field (`store/guards/digests.py`).
    """

    version: Literal[2] = Field(SCHEMA_VERSION, alias="schema")
    id: RunId
    status: Status
    seed: int | None
    failure: Failure | None = None
    config: StoredConfig
    estimate: RunEstimate = RunEstimate()
    environment: dict[str, Any] = {}
    metrics: dict[str, Number] = {}
    metric_definitions: dict[str, Metric] = {}
    undefined: tuple[str, ...] = ()
    censored: dict[str, CensoredSteps] = {}
    by_position: dict[str, list[FiniteFloat | None]] = {}
    targets_by_position: tuple[int, ...] = ()  # scored validation targets at each position
    memory: dict[str, Number | None] = {}
    speed: dict[str, Number | None] = {}
    kernels: dict[str, Any] = {}
    head_scores: dict[str, Any] = {}
    leakage: dict[str, Number] = {}  # whether predictions depend on later tokens
    by_token_category: dict[str, TokenCategoryLoss] = {}  # corpora only
    generated_text: dict[str, str | None] = {}  # prompt, reference continuation, sample, reason for no sample
    recomputed: dict[str, Number] = {}
    interference: tuple[str, ...] = ()
    split: int = 1
    resumed: tuple[dict[str, Number | None], ...] = ()  # per resumption: step, again, off (ProgressWriter)
    trunk: Trunk | None = None  # the run that was continued
    measured_by: dict[str, str] = {}
    observed_by: dict[str, str] = {}
    started: str | None = None
    seconds: FiniteFloat | None = None
    files: dict[str, str] = {}
    seal: dict[str, str] = {}

    @model_validator(mode="after")
    def _require_metrics_or_failure(self) -> Self:
        if self.is_done and not self.metrics:
            raise ValueError("a finished run must have metrics")
        if not self.is_done and self.failure is None:
            raise ValueError("an unfinished run must have a failure")
        return self

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def is_lost(self) -> bool:
        """Whether the infrastructure failed and not the run itself: the same run may finish elsewhere."""
        return self.status in LOST_STATUSES

    @property
    def failure_digest(self) -> str | None:
        """Digest that distinguishes this failure from the run's next one; None for a finished run."""
        return None if self.is_done else hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def list_outdated_parts(self, current: RunEstimate) -> list[str]:
        """Return the parts that today's code would measure differently and can measure again."""
        return [part for part, digest in current.measured_by.items() if self.measured_by.get(part) != digest]

    def list_unobserved_parts(self, current: RunEstimate) -> list[str]:
        """Return the parts that today's code would have recorded differently during training."""
        return [part for part, digest in current.observed_by.items() if self.observed_by.get(part) != digest]

    def get_metric(self, name: str) -> Metric | None:
        """Return the definition of one of the metrics of the run."""
        return self.metric_definitions.get(name) or self.estimate.metric_definitions.get(name)

    def get_value(self, name: str) -> float | None:
        """Return a number by name: a metric, or an entry of budget, memory or speed."""
        for group in (self.metrics, self.estimate, self.memory, self.speed):
            value = group.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return None


RunLookup = Callable[[str], RunResult | None]  # a run id to its result, None if there is none


def convert_validation_error(
    error: ValidationError, subject: str, location: str | None = None
) -> InvalidConfig:
    """Describe the first error of a validation in one line: location, problem, and the value received.

    Args:
        subject: Name of the validated file or value.
        location: Key to show instead of pydantic's own location.
    """
    first_error = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first_error["loc"]) if location is None else location
    value = first_error.get("input")
    received = "" if isinstance(value, dict | list) else f", got {value!r}"
    return InvalidConfig(
        f"{subject}: {key + ': ' if key else ''}{first_error['msg'].removeprefix('Value error, ')}{received}"
    )


def require_current_version(content: dict[str, Any], path: Path) -> None:
    """Reject a file written by an incompatible version of attnlab."""
    if content.get("schema") != SCHEMA_VERSION:
        raise InvalidConfig(
            f"{path} has schema {content.get('schema')}, but this version reads {SCHEMA_VERSION}: "
            "move the folder away, or set paths.runs to another folder"
        )
