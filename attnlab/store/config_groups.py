"""Types and ranges of config values that no constructor annotation covers.

Each key is validated once: the groups of `SWEEP_GROUPS` where a config is composed (the plan,
`hydra.mode=RUN`), those of `TRAINING_GROUPS` by `check` of attnlab's own trainer. `validate_groups` reads
only keys that are present, so a user-defined trainer needs none of them. Each field description is part of
the error message. This module does not import torch: a plan validates before anything is built.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from attnlab.errors import InvalidConfig

MAX_FLOAT32 = 3.4e38  # largest float32, the dtype of model parameters
MAX_STEPS = 10**12
MAX_MAPS = 10_000  # all maps stay in memory until the run ends
MAX_LAYERS = 2048  # takes seconds to build; more can only be a mistake
MAX_TOKENS = 2**31  # per batch or window
MAX_WORKERS = 1024
EPOCHS_KEY = "epochs"  # key of a run estimate: passes over the corpus
# Beyond this many epochs, repeated tokens are worth less than new ones (Muennighoff 2023, 2305.16264).
MAX_USEFUL_EPOCHS = 4
MIN_SEED = -(2**63)
MAX_SEED = 2**63 - 1  # limit of torch generators

WandbMode = Literal["online", "offline", "shared", "disabled", "none", "run", "dryrun"]  # old names too
StrictNumber = Annotated[int, Strict()] | Annotated[float, Strict()]


def _make_field(description: str, **bounds: Any) -> Any:
    return Field(None, description=description, **bounds)


def _make_integer_field(minimum: int, maximum: int) -> Any:
    return _make_field(f"an integer from {minimum} to {maximum}", ge=minimum, le=maximum)


_NON_NEGATIVE: Any = {"ge": 0, "le": MAX_FLOAT32, "allow_inf_nan": False}
_FOLDER_FIELD = _make_field("a folder", min_length=1)
_BOOLEAN_FIELD = _make_field("true or false")
_SEED_FIELD = _make_integer_field(MIN_SEED, MAX_SEED)


class ConfigGroup(BaseModel):
    """Base of the groups: unknown keys are ignored, and every known key is optional."""

    model_config = ConfigDict(extra="ignore", strict=True, defer_build=True)
    # Validate only where `_target_` names an attnlab class: a user's own class may differ.
    attnlab_targets_only: ClassVar[bool] = False


class TopLevelGroup(ConfigGroup):
    """Keys outside all groups."""

    seed: int = _SEED_FIELD
    replica: int | str = _make_field("an integer or a string")
    parent: str | None = _make_field("the id of a run, an arm, or null", min_length=1)
    convert: dict[str, Any] | None = _make_field("{_target_: ...}, or null")
    measurement: dict[str, Any] | None = _make_field("{_target_: ...}, or null")


class MeasureGroup(ConfigGroup):
    """Measurements of a run."""

    maps: int = _make_integer_field(0, MAX_MAPS)
    every: int = _make_integer_field(1, MAX_STEPS)
    lengths: list[Annotated[StrictNumber, Field(ge=1, le=MAX_TOKENS, allow_inf_nan=False)]] = _make_field(
        "a list of multiples of data.length of at least 1, as in [1,1.5,2]"
    )
    trained: int | None = _make_field("a length of at least 2 tokens, or null", ge=2, le=MAX_TOKENS)
    exclusive: bool = _BOOLEAN_FIELD
    timing: bool = _BOOLEAN_FIELD


class WorkLimits(ConfigGroup):
    """Limits of a worker, as `attnlab work` passes them on; None for no limit."""

    seconds: float | None = Field(None, gt=0)
    max_runs: int | None = Field(None, ge=1)
    idle: float | None = Field(None, gt=0)


class SweepGroup(ConfigGroup):
    """Execution settings; none of them is hashed into the run id."""

    device: str | None = _make_field("the name of a GPU as printed by nvidia-smi, or null", min_length=1)
    slots: int | None = _make_field("the number of concurrent runs, or null", ge=1, le=10_000)
    max_time: StrictNumber | None = _make_field(
        "seconds, or null for no limit", gt=0, le=MAX_STEPS, allow_inf_nan=False
    )
    fail_fast: bool = _BOOLEAN_FIELD
    retry_failed: bool = _BOOLEAN_FIELD
    slots_per_gpu: int = _make_field("the number of runs that share a GPU, at least 1", ge=1, le=10_000)
    halve_batch: bool = _BOOLEAN_FIELD
    unchecked: bool = _BOOLEAN_FIELD
    checkpoint_every: int = _make_integer_field(1, MAX_STEPS)
    work: WorkLimits | None = _make_field("the limits of a worker, which `attnlab work` sets")
    train: str = _make_field("a module name", min_length=1)


class PathsGroup(ConfigGroup):
    """Folders for runs, reports and caches."""

    runs: str = _FOLDER_FIELD
    reports: str = _FOLDER_FIELD
    cache: str = _FOLDER_FIELD


class LoggerGroup(ConfigGroup):
    """Weights & Biases settings."""

    attnlab_targets_only = True
    mode: WandbMode = _make_field("online, offline, shared or disabled")
    project: str | None = _make_field("a name, or null", min_length=1)
    entity: str | None = _make_field("a name, or null", min_length=1)
    report: bool = _BOOLEAN_FIELD
    workspace: bool = _BOOLEAN_FIELD
    patience: StrictNumber = _make_field(
        "a number of seconds above 0, at most 86400", gt=0, le=86400, allow_inf_nan=False
    )


class TrainerGroup(ConfigGroup):
    """Settings of Lightning's Trainer that a user may set; defaults are those of `conf/trainer`."""

    accelerator: Literal["auto", "cpu", "gpu", "cuda"] = _make_field("auto, cpu, gpu or cuda")
    accumulate_grad_batches: int = _make_integer_field(1, 10**6)
    benchmark: bool | None = _make_field("true, false or null")
    detect_anomaly: bool = _BOOLEAN_FIELD
    deterministic: bool | Literal["warn"] | None = _make_field("true, false, warn or null")
    devices: int = _make_integer_field(1, 10_000)
    gradient_clip_algorithm: Literal["norm", "value"] | None = _make_field("norm, value or null")
    gradient_clip_val: StrictNumber | None = _make_field("a number of at least 0, or null", **_NON_NEGATIVE)
    inference_mode: bool = _BOOLEAN_FIELD
    log_every_n_steps: int = _make_integer_field(1, MAX_STEPS)
    max_steps: int = _make_integer_field(1, MAX_STEPS)
    precision: Literal["32-true", "bf16-mixed", "bf16-true", "64-true"] = _make_field(
        "32-true, bf16-mixed, bf16-true or 64-true (16-mixed needs loss scaling)"
    )
    profiler: dict[str, Any] | None = _make_field(
        "{_target_: pytorch_lightning.profilers.SimpleProfiler, dirpath: ., filename: profile}, or null"
    )
    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true"] = _make_field(
        "auto, ddp or ddp_find_unused_parameters_true (FSDP and tensor parallelism are not supported: a run "
        "of up to 1B parameters fits on one card)"
    )
    sync_batchnorm: bool = _BOOLEAN_FIELD


class OptimGroup(ConfigGroup):
    """Keys of attnlab's own training step."""

    attnlab_targets_only = True
    lr: StrictNumber = _make_field("a finite number above 0", **_NON_NEGATIVE | {"gt": 0})
    min_lr: StrictNumber = _make_field("a finite number of at least 0", **_NON_NEGATIVE)
    warmup: int = _make_integer_field(0, MAX_STEPS)
    betas: list[Annotated[StrictNumber, Field(ge=0, lt=1)]] = _make_field(
        "two numbers of at least 0 and below 1, as in [0.9,0.99]", min_length=2, max_length=2
    )
    weight_decay: StrictNumber = _make_field("a finite number of at least 0", **_NON_NEGATIVE)


class DataGroup(ConfigGroup):
    """Keys shared by all attnlab tasks."""

    attnlab_targets_only = True
    length: int = _make_integer_field(1, MAX_TOKENS)
    batch_size: int = _make_integer_field(1, MAX_TOKENS)
    val_batch_size: int = _make_integer_field(1, MAX_TOKENS)
    val_windows: int | None = _make_field(
        "an integer of at least 1, or null for all windows", ge=1, le=MAX_TOKENS
    )
    num_workers: int = _make_integer_field(0, MAX_WORKERS)
    max_epochs: StrictNumber | None = _make_field("a number above 0, or null", **_NON_NEGATIVE | {"gt": 0})


class ModelGroup(ConfigGroup):
    """Keys shared by all attnlab models; constructor signatures cover their parts."""

    attnlab_targets_only = True
    dim: int = _make_integer_field(1, MAX_TOKENS)
    n_layers: int = _make_integer_field(1, MAX_LAYERS)
    n_heads: int = _make_integer_field(1, MAX_TOKENS)
    ffn_width: int = _make_integer_field(1, MAX_TOKENS)
    dropout: StrictNumber = _make_field("a number of at least 0 and below 1", ge=0, lt=1)
    init_std: StrictNumber = _make_field("a finite number of at least 0", **_NON_NEGATIVE)
    qk_gain: StrictNumber | None = _make_field(
        "a finite number above 0, or null", **_NON_NEGATIVE | {"gt": 0}
    )
    attention: dict[str, Any] = _make_field("{_target_: ...}")
    mixer: dict[str, Any] | None = _make_field("{_target_: ...}, or null")
    layers: list[dict[str, Any]] | None = _make_field(
        "a list of patches of the mixer, as in [{}, {dropout: 0.1}], or null"
    )


GROUP_CLASSES: Mapping[str, type[ConfigGroup]] = {
    "": TopLevelGroup, "paths": PathsGroup, "sweep": SweepGroup, "measure": MeasureGroup,
    "logger": LoggerGroup, "trainer": TrainerGroup, "optim": OptimGroup, "data": DataGroup,
    "model": ModelGroup,
}  # fmt: skip
SWEEP_GROUPS = ("", "paths", "sweep", "logger")  # read by a sweep with any trainer
TRAINING_GROUPS = ("measure", "trainer", "optim", "data", "model")  # read by attnlab's own trainer
_REQUIRED_KEYS = {  # read by attnlab's own trainer, which has no defaults for them
    "measure": ("maps", "every", "lengths", "trained"),
    "trainer": (
        "_target_", "accelerator", "devices", "precision", "accumulate_grad_batches", "max_steps",
        "gradient_clip_val", "log_every_n_steps",
    ),
    "optim": ("_target_", "lr"),
    "data": ("_target_", "batch_size"),
    "model": ("_target_", "dim", "n_layers"),
    "decode": ("cache",),
    "sweep": ("checkpoint_every",),
    "logger": (),
}  # fmt: skip


def require_training_keys(config: Mapping[str, Any]) -> None:
    """Check that a config has the keys that attnlab's own trainer reads.

    Raises:
        InvalidConfig: One is missing, as after `~GROUP.KEY`.
    """
    for group, keys in _REQUIRED_KEYS.items():
        content = config.get(group)
        missing = [f"{group}.{key}" for key in keys if isinstance(content, Mapping) and key not in content]
        if group not in config or missing:
            name = missing[0] if missing else group
            raise InvalidConfig(f"{name} is missing: set it, or remove the override that deletes it")


def validate_groups(config: Mapping[str, Any], groups: Iterable[str] = GROUP_CLASSES) -> None:
    """Validate the values of the given groups."""
    for group in groups:
        if not group:
            _validate_group(config, TopLevelGroup, "")
        elif group in config:
            content = config[group]
            if not isinstance(content, Mapping):
                raise InvalidConfig(
                    f"{group}={format_value(content)}: {group} is a group of keys, as in {group}.KEY=VALUE"
                )
            target = content.get("_target_", "attnlab.")
            if not GROUP_CLASSES[group].attnlab_targets_only or str(target).startswith("attnlab."):
                _validate_group(content, GROUP_CLASSES[group], f"{group}.")


def _validate_group(content: Mapping[str, Any], group_class: type[ConfigGroup], prefix: str) -> None:
    try:
        group_class.model_validate({key: content[key] for key in group_class.model_fields if key in content})
    except ValidationError as error:
        key = str(error.errors(include_url=False)[0]["loc"][0])
        expected = group_class.model_fields[key].description
        raise InvalidConfig(f"{prefix}{key} must be {expected}, got {format_value(content[key])}") from error


def format_repetition_warning(epochs_by_arm: Mapping[str, float | None]) -> str | None:
    """Return a warning about arms that repeat their corpus too often; None if none does."""
    repeated = {
        arm: read for arm, read in epochs_by_arm.items() if read is not None and read > MAX_USEFUL_EPOCHS
    }
    if not repeated:
        return None
    minimum = min(repeated.values())
    maximum = max(repeated.values())
    all_equal = repeated.keys() == epochs_by_arm.keys() and minimum == maximum
    arms, possessive = (
        ("each arm", "its") if all_equal else (", ".join(repeated), "its" if len(repeated) == 1 else "their")
    )
    read = (
        format_epochs(minimum)
        if minimum == maximum
        else f"{format_epochs(minimum)} to {format_epochs(maximum)}"
    )
    return (
        f"{arms} read {possessive} corpus {read} times; beyond {MAX_USEFUL_EPOCHS} epochs, "
        "repeated tokens are worth less than new ones (Muennighoff 2023)"
    )


def format_mup_heads_warning(models: Iterable[Mapping[str, Any]]) -> str | None:
    """Return a warning if models under `mup` differ in their number of heads without a `base_head_dim`.

    `models` are resolved `model` configs of one command; one at the base width counts with any
    parametrization.
    """
    models = list(models)
    parametrizations = [model.get("parametrization") or {} for model in models]
    base_dims = {
        parametrization["base_dim"]
        for parametrization in parametrizations
        if "base_dim" in parametrization and parametrization.get("base_head_dim") is None
    }
    for base_dim in sorted(base_dims):
        counts = {
            n_heads
            for model, parametrization in zip(models, parametrizations, strict=True)
            if base_dim in (parametrization.get("base_dim"), model.get("dim"))
            and (n_heads := ((model.get("attention") or {}).get("heads") or {}).get("n_heads"))
        }
        if len(counts) > 1:
            return (
                f"models under parametrization=mup have {min(counts)} to {max(counts)} heads, but "
                "model.parametrization.base_head_dim=null means that all have as many as the base: set "
                "model.parametrization.base_head_dim to the features per head of the base model"
            )
    return None


def format_epochs(number: float) -> str:
    """Format a number of epochs: 0.98, 7.1, 1,800."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def format_value(value: Any) -> str:
    """Format a value as on the command line, truncated to 60 characters."""
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), str(value))
    text = " ".join(text.split()) or "''"
    return text if len(text) <= 60 else f"{text[:57]}..."
