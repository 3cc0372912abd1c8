"""Types and ranges of the values of a run's config, where no annotation of a constructor gives them.

Each key is validated once: the groups of `SWEEP` where a config is composed (the plan, `hydra.mode=RUN`, a
spec written by hand), those of `TRAINING` by `check` of attnlab's own trainer. `refuse` reads the keys that
are there, so that a user's own trainer needs none of them. Each field's description is part of the message.
Nothing here imports torch: a plan validates before anything is built.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from attnlab.errors import Refused

LARGEST = 3.4e38  # that a float32 holds, which models are made of
MOST_STEPS = 10**12
MOST_MAPS = 10_000  # all are kept until the run's end
MOST_LAYERS = 2048  # building them takes seconds, and more were never meant
MOST_TOKENS = 2**31  # of a batch, or of a window
MOST_WORKERS = 1024
EPOCHS = "epochs"  # of a run's estimate: how often it reads its text
WORN = 4  # epochs beyond which a text's tokens are worth less than new ones (Muennighoff 2023, 2305.16264)
LEAST_SEED = -(2**63)
MOST_SEED = 2**63 - 1  # that torch's generators take

Number = Annotated[int, Strict()] | Annotated[float, Strict()]


def _told(says: str, **bounds: Any) -> Any:
    return Field(None, description=says, **bounds)


def _whole(least: int, most: int) -> Any:
    return _told(f"a whole number of at least {least}, and at most {most}", ge=least, le=most)


_POSITIVE: Any = {"ge": 0, "le": LARGEST, "allow_inf_nan": False}
_FOLDER = _told("a folder", min_length=1)
_SWITCH = _told("true or false")
_SEED = _whole(LEAST_SEED, MOST_SEED)


class Values(BaseModel):
    """Keys that are not declared here are somebody else's business; one that is may be absent."""

    model_config = ConfigDict(extra="ignore", strict=True)
    ours: ClassVar[bool] = False  # only where `_target_` names a part of attnlab's: another may differ


class Top(Values):
    """What stands in no group."""

    seed: int = _SEED
    replica: int | str = _told("a whole number or a text")
    parent: str | None = _told("a run's id, an arm, or null", min_length=1)
    convert: dict[str, Any] | None = _told("{_target_: ...}, or null")
    measurement: dict[str, Any] | None = _told("{_target_: ...}, or null")


class Measure(Values):
    """What a run measures."""

    maps: int = _whole(0, MOST_MAPS)
    every: int = _whole(1, MOST_STEPS)
    lengths: list[Annotated[Number, Field(ge=1, le=MOST_TOKENS, allow_inf_nan=False)]] = _told(
        "a list of multiples of data.length of at least 1, as in [1,1.5,2]"
    )
    trained: int | None = _told("a length of at least 2 tokens, or null", ge=2, le=MOST_TOKENS)
    exclusive: bool = _SWITCH
    timing: bool = _SWITCH


class Sweep(Values):
    """How runs are carried out; none of it is in a run's id."""

    device: str | None = _told("a GPU's name as nvidia-smi has it, or null", min_length=1)
    slots: int | None = _told("the number of runs at a time, or null", ge=1, le=10_000)
    max_time: Number | None = _told("seconds, or null for no limit", gt=0, le=MOST_STEPS, allow_inf_nan=False)
    fail_fast: bool = _SWITCH
    retry_failed: bool = _SWITCH
    slots_per_gpu: int = _told("the number of runs that share a GPU, at least 1", ge=1, le=10_000)
    halve_batch: bool = _SWITCH
    unchecked: bool = _SWITCH
    checkpoint_every: int = _whole(1, MOST_STEPS)
    train: str = _told("the name of a module", min_length=1)


class Paths(Values):
    """Where things are kept."""

    runs: str = _FOLDER
    reports: str = _FOLDER
    cache: str = _FOLDER


class Logger(Values):
    """Weights & Biases."""

    ours = True
    mode: str = _told("online, offline, shared or disabled")
    project: str | None = _told("a name, or null", min_length=1)
    entity: str | None = _told("a name, or null", min_length=1)
    report: bool = _SWITCH
    workspace: bool = _SWITCH
    patience: Number = _told("more than 0 seconds, and at most a day's", gt=0, le=86400, allow_inf_nan=False)


class Trainer(Values):
    """Every setting of Lightning's Trainer that a user may give; defaults are those of `conf/trainer`."""

    accelerator: Literal["auto", "cpu", "gpu", "cuda"] = _told("auto, cpu, gpu or cuda")
    accumulate_grad_batches: int = _whole(1, 10**6)
    benchmark: bool | None = _told("true, false or null")
    detect_anomaly: bool = _SWITCH
    deterministic: bool | Literal["warn"] | None = _told("true, false, warn or null")
    devices: int = _whole(1, 10_000)
    gradient_clip_algorithm: Literal["norm", "value"] | None = _told("norm, value or null")
    gradient_clip_val: Number | None = _told("a number of at least 0, or null", **_POSITIVE)
    inference_mode: bool = _SWITCH
    log_every_n_steps: int = _whole(1, MOST_STEPS)
    max_steps: int = _whole(1, MOST_STEPS)
    precision: Literal[
        "32-true", "bf16-mixed", "bf16-true", "64-true", "32", "bf16", "64", 32, 64,
        "transformer-engine", "transformer-engine-float16", None,
    ] = _told("32-true, bf16-mixed, bf16-true or 64-true (16-mixed needs loss scaling)")  # fmt: skip
    profiler: dict[str, Any] | None = _told(
        "{_target_: pytorch_lightning.profilers.SimpleProfiler, dirpath: ., filename: profile}, or null"
    )
    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true"] = _told(
        "auto, ddp or ddp_find_unused_parameters_true, since each device holds the whole model"
    )
    sync_batchnorm: bool = _SWITCH


class Optim(Values):
    """attnlab's own training step."""

    ours = True
    lr: Number = _told("a finite number above 0", **_POSITIVE | {"gt": 0})
    min_lr: Number = _told("a finite number of at least 0", **_POSITIVE)
    warmup: int = _whole(0, MOST_STEPS)
    betas: list[Annotated[Number, Field(ge=0, lt=1)]] = _told(
        "two numbers of at least 0 and below 1, as in [0.9,0.99]", min_length=2, max_length=2
    )
    weight_decay: Number = _told("a finite number of at least 0", **_POSITIVE)


class Data(Values):
    """What every task of attnlab's has."""

    ours = True
    length: int = _whole(1, MOST_TOKENS)
    batch_size: int = _whole(1, MOST_TOKENS)
    val_batch_size: int = _whole(1, MOST_TOKENS)
    val_windows: int | None = _told(
        "a whole number, at least 1, or null for all of them", ge=1, le=MOST_TOKENS
    )
    num_workers: int = _whole(0, MOST_WORKERS)
    max_epochs: Number | None = _told("a number above 0, or null", **_POSITIVE | {"gt": 0})


class Model(Values):
    """What every model of attnlab's has; its parts have signatures."""

    ours = True
    dim: int = _whole(1, MOST_TOKENS)
    n_layers: int = _whole(1, MOST_LAYERS)
    n_heads: int = _whole(1, MOST_TOKENS)
    ffn_width: int = _whole(1, MOST_TOKENS)
    dropout: Number = _told("a number of at least 0 and below 1", ge=0, lt=1)
    init_std: Number = _told("a finite number of at least 0", **_POSITIVE)
    qk_gain: Number | None = _told("a finite number above 0, or null", **_POSITIVE | {"gt": 0})
    attention: dict[str, Any] = _told("{_target_: ...}")
    mixer: dict[str, Any] | None = _told("{_target_: ...}, or null")
    layers: list[dict[str, Any]] | None = _told(
        "a list of patches of the mixer, as in [{}, {dropout: 0.1}], or null"
    )


GROUPS: Mapping[str, type[Values]] = {
    "": Top, "paths": Paths, "sweep": Sweep, "measure": Measure, "logger": Logger, "trainer": Trainer,
    "optim": Optim, "data": Data, "model": Model,
}  # fmt: skip
SWEEP = ("", "paths", "sweep", "logger")  # read by a sweep, whichever module trains its runs
TRAINING = ("measure", "trainer", "optim", "data", "model")  # read by attnlab's own trainer


def refuse(config: Mapping[str, Any], groups: Iterable[str] = GROUPS) -> None:
    """Refused, one line with the key, for the first value that is none of what its key may have."""
    for group in groups:
        if not group:
            _refuse(config, Top, "")
        elif group in config:
            content = config[group]
            if not isinstance(content, Mapping):
                raise Refused(
                    f"{group}={shown(content)}: {group} is a group of keys, as in {group}.KEY=VALUE"
                )
            target = content.get("_target_", "attnlab.")
            if not GROUPS[group].ours or str(target).startswith("attnlab."):
                _refuse(content, GROUPS[group], f"{group}.")


def _refuse(content: Mapping[str, Any], declared: type[Values], prefix: str) -> None:
    try:
        declared.model_validate({key: content[key] for key in declared.model_fields if key in content})
    except ValidationError as error:
        key = str(error.errors(include_url=False)[0]["loc"][0])
        says = declared.model_fields[key].description
        raise Refused(f"{prefix}{key} must be {says}, got {shown(content[key])}") from error


def worn(epochs: Mapping[str, float | None]) -> str | None:
    """What is to be said where an arm is trained on its text too often; arm -> epochs. None where none is."""
    often = {arm: read for arm, read in epochs.items() if read is not None and read > WORN}
    if not often:
        return None
    least = min(often.values())
    most = max(often.values())
    every = often.keys() == epochs.keys() and least == most
    who, whose = ("each arm", "its") if every else (", ".join(often), "its" if len(often) == 1 else "their")
    read = times(least) if least == most else f"{times(least)} to {times(most)}"
    return (
        f"{who} read {whose} text {read} times; beyond {WORN} repetitions are worth less (Muennighoff 2023)"
    )


def times(number: float) -> str:
    """A number of epochs: 0.98, 7.1, 1,800."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def shown(value: Any) -> str:
    """A value as a command line has it, cut where it is long."""
    text = {None: "null", True: "true", False: "false"}.get(value) if _is_word(value) else str(value)
    text = " ".join(str(text).split()) or "''"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)
