"""The config group `logger`: W&B by its own keys, other Lightning loggers by `_target_`."""

import inspect
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from pytorch_lightning.loggers.logger import Logger

from attnlab.model.build import instantiate_config
from attnlab.store.fingerprint import flatten_config
from attnlab.store.run_schema import RunConfig
from attnlab.training.loggers import logger_notes
from attnlab.training.loggers.async_logger import AsyncLogger
from attnlab.training.loggers.wandb_logger import WandbSettings
from attnlab.training.targets import locate_target

PATIENCE_SECONDS = 20.0  # time for loggers other than W&B to open and to close
# Logger class -> its package, which is also the name of attnlab's extra.
_LOGGER_EXTRAS = {TensorBoardLogger: "tensorboard", MLFlowLogger: "mlflow"}
_UNNAMED_KEYS = ("experiment", "seed", "size", "logger", "ladder", "paths", "hydra", "sweep", "arms")


def validate_loggers(group: Mapping[str, Any]) -> None:
    """Validate the group `logger`.

    Raises:
        ValueError: One line with the key, for the first logger that cannot be opened.
    """
    if not str(group.get("_target_", "attnlab.")).startswith("attnlab."):
        raise ValueError(
            f"logger._target_={group['_target_']}: give a custom logger a name, as in "
            f"+logger.mine._target_={group['_target_']}"
        )
    if any(key in group for key in logger_notes.WANDB_KEYS):
        WandbSettings.from_group(group)
    for name, logger_config in group.items():
        if name in (*logger_notes.WANDB_KEYS, "_target_"):
            continue
        key = f"logger.{name}"
        if not isinstance(logger_config, Mapping) or "_target_" not in logger_config:
            raise ValueError(
                f"{key}={logger_config} is not a logger: use logger=csv, or "
                f"+{key}._target_=package.module.Class"
            )
        kind = locate_target(str(logger_config["_target_"]))
        if not (isinstance(kind, type) and issubclass(kind, Logger)):
            raise ValueError(
                f"{key}._target_={logger_config['_target_']} is not a pytorch_lightning.loggers.Logger: "
                "use a subclass"
            )
        for library, package in _LOGGER_EXTRAS.items():
            if issubclass(kind, library) and find_spec(package) is None:
                raise ValueError(
                    f"logger={package} needs the package {package}: pip install 'attnlab[{package}]'"
                )
        arguments = _complete_arguments(kind, logger_config, Path(), defaultdict(str))
        try:
            inspect.signature(kind).bind(**{k: v for k, v in arguments.items() if not k.startswith("_")})
        except TypeError as error:
            raise ValueError(f"{key}: {logger_config['_target_']}: {error}") from error


def open_loggers(
    group: Mapping[str, Any],
    run_config: RunConfig,
    folder: Path,
    names: Iterable[str] | None = None,
    tags: Iterable[str] = (),
) -> list[AsyncLogger]:
    """Open the loggers of a run, each in its own thread.

    Args:
        names: Loggers to open; all if None.
        tags: Additional W&B tags.
    """
    labels = make_run_labels(run_config)
    labels["tags"] += tags
    batch_tokens = None if run_config.config.get("measurement") else run_config.estimate.batch_tokens
    loggers = []
    for name in logger_notes.list_loggers(group) if names is None else names:
        if name == logger_notes.WANDB:
            loggers.append(open_wandb_logger(WandbSettings.from_group(group), folder, batch_tokens, labels))
        else:
            kind = locate_target(group[name]["_target_"])
            open_logger = partial(_open_logger, kind, group[name], folder, name, labels)
            loggers.append(
                AsyncLogger(kind.__name__, open_logger, folder, name, batch_tokens, PATIENCE_SECONDS)
            )
    return loggers


def open_wandb_logger(
    settings: WandbSettings, folder: Path, batch_tokens: int | None, labels: Mapping[str, Any]
) -> AsyncLogger:
    """Open a logger over a W&B run; `labels` are arguments of `wandb.init`.

    The W&B id is the run id, so a run resumed from a checkpoint continues the same W&B run.
    """

    def open_logger() -> WandbLogger:
        run = settings.open_run(folder, folder.parent, **labels)
        logger_notes.update_note(folder, logger_notes.WANDB, tags=[*(run.tags or ())])
        axis = logger_notes.TOKENS_METRIC if batch_tokens else "trainer/global_step"  # of WandbLogger
        run.define_metric(axis)
        run.define_metric("*", step_metric=axis, step_sync=True)
        return WandbLogger(experiment=run)

    return AsyncLogger("W&B", open_logger, folder, logger_notes.WANDB, batch_tokens, settings.patience)


def _open_logger(
    kind: type, logger_config: Mapping[str, Any], folder: Path, name: str, labels: Mapping[str, Any]
) -> Any:
    arguments = _complete_arguments(kind, logger_config, folder, labels)
    is_mlflow = issubclass(kind, MLFlowLogger)
    if is_mlflow:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        arguments["run_id"] = logger_notes.read_note(folder, name).get("run_id")
    logger = instantiate_config(arguments)
    if is_mlflow:
        logger_notes.update_note(folder, name, run_id=logger.run_id)
    parameters = {**labels, **labels["config"], "tags": ", ".join(labels["tags"])}
    del parameters["config"], parameters["job_type"]
    separator = "." if is_mlflow else "/"  # MLflow names files after the keys
    logger.log_hyperparams({key.replace("/", separator): leaf for key, leaf in flatten_config(parameters)})
    logger.save()
    return logger


def _complete_arguments(
    kind: type, logger_config: Mapping[str, Any], folder: Path, labels: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a logger's config with arguments from the folder and labels of the run that it omits."""
    defaults: dict[str, Any] = {}
    if issubclass(kind, TensorBoardLogger):
        path = Path(*to_folder_names(labels["group"]), *to_folder_names(labels["name"]))
        defaults = {"save_dir": str(folder / "tensorboard"), "name": str(path), "version": ""}
    elif issubclass(kind, MLFlowLogger):
        tags = {"experiment": labels["group"], "arm": labels["job_type"], "attnlab_id": labels["id"]}
        defaults = {
            "run_name": labels["name"],
            "tags": {name: value for name, value in tags.items() if value},
            "tracking_uri": (folder.parent / "mlflow").absolute().as_uri(),
        }
    elif "save_dir" in inspect.signature(kind).parameters:
        defaults = {"save_dir": str(folder)}
    unset = [name for name in defaults if logger_config.get(name) is None]
    arguments = {**logger_config, **{name: defaults[name] for name in unset}}
    if issubclass(kind, MLFlowLogger) and (uri := os.environ.get("MLFLOW_TRACKING_URI")):
        arguments["tracking_uri"] = uri
    return arguments


def make_run_labels(run_config: RunConfig) -> dict[str, Any]:
    """Return the labels of a run, the same in each logger, as arguments of `wandb.init`.

    The group is the first experiment that trains it, and the name has the overrides that define a variant
    where there is none. The config holds the keys that decide its result, `axes` (the option chosen in each
    group, as in `axes.heads`), arm, experiment, size, commit and versions.
    """
    use = run_config.use
    arm = run_config.arm
    words = [word.lstrip("+") for word in run_config.overrides if not use.experiment]
    variant = [word for word in words if re.split("[=.]", word)[0] not in _UNNAMED_KEYS]
    provenance = {
        "seed": run_config.seed,
        "axes": use.axes,
        "arm": arm,
        "experiment": use.experiment,
        "size": use.axes.get("size"),
        "commit": use.commit,
        "versions": run_config.identity.get("versions", {}),
    }
    return {
        "id": run_config.id,
        "group": use.experiment,
        "job_type": arm,
        "name": f"{' '.join(variant) or arm}/seed={run_config.seed}",
        "tags": [tag for tag in (use.experiment, arm) if tag],
        "config": {**run_config.identity.get("config", {}), **provenance},
    }


def to_folder_names(name: str | None) -> list[str]:
    """Split a name into folder names: characters other than letters, digits and `_.=+ ~-` become `_`."""
    parts = [part for part in (name or "").rsplit("/", 1) if part.strip(".")]
    return [re.sub(r"[^\w.=+ ~-]", "_", part).lstrip(".")[:120] for part in parts]
