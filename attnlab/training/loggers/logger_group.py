"""The config group `logger`: W&B by its own keys, other Lightning loggers by `_target_`."""

import inspect
import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import MLFlowLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import Logger

from attnlab.model.build import instantiate_config
from attnlab.store.fingerprint import flatten_config
from attnlab.store.run_schema import RunConfig
from attnlab.training.loggers import logger_notes
from attnlab.training.loggers.async_logger import AsyncLogger, LoggerAdapter
from attnlab.training.loggers.run_labels import flatten_labels, make_run_labels, to_folder_names
from attnlab.training.loggers.wandb_logger import WandbSettings
from attnlab.training.targets import locate_target

PATIENCE_SECONDS = 20.0  # time for loggers other than W&B to open and to close
# Logger class -> its package, which is also the name of attnlab's extra.
_LOGGER_EXTRAS = {TensorBoardLogger: "tensorboard", MLFlowLogger: "mlflow"}


def validate_loggers(group: Mapping[str, Any]) -> None:
    """Validate the group `logger`."""
    if not str(group.get("_target_", "attnlab.")).startswith("attnlab."):
        raise ValueError(
            f"logger._target_={group['_target_']}: give a custom logger a name, as in "
            f"+logger.mine._target_={group['_target_']}"
        )
    if any(key in group for key in logger_notes.WANDB_KEYS):
        WandbSettings.from_group(group)
    for key, logger_config in group.items():
        if key not in (*logger_notes.WANDB_KEYS, "_target_"):
            _validate_logger(f"logger.{key}", logger_config)


def _validate_logger(key: str, logger_config: Any) -> None:
    if not isinstance(logger_config, Mapping) or "_target_" not in logger_config:
        raise ValueError(
            f"{key}={logger_config} is not a logger: use logger=csv, or +{key}._target_=package.module.Class"
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
    arguments = {
        **{name: value for name, value in logger_config.items() if not name.startswith("_")},
        **_default_arguments(kind, logger_config),
    }
    try:
        inspect.signature(kind).bind(**arguments)
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
    names = logger_notes.list_loggers(group) if names is None else [*names]
    if not names:
        return []
    run_labels = make_run_labels(run_config)
    batch_tokens = None if run_config.config.get("measurement") else run_config.estimate.batch_tokens
    run_labels["tags"] = [*run_labels["tags"], *tags]
    loggers = []
    for name in names:
        if name == logger_notes.WANDB:
            loggers.append(WandbSettings.from_group(group).make_logger(folder, batch_tokens, **run_labels))
        else:
            display_name = locate_target(group[name]["_target_"]).__name__
            loggers.append(
                AsyncLogger(
                    display_name,
                    _make_opener(group[name], name, folder, run_labels),
                    folder,
                    name,
                    batch_tokens,
                    PATIENCE_SECONDS,
                )
            )
    return loggers


def _make_opener(
    logger_config: Mapping[str, Any], name: str, folder: Path, run_labels: Mapping[str, Any]
) -> Any:
    """Return a function that opens a Lightning logger for a run."""

    def open_adapter() -> LoggerAdapter:
        kind = locate_target(logger_config["_target_"])
        arguments = {**logger_config, **_default_arguments(kind, logger_config, folder, run_labels)}
        if issubclass(kind, MLFlowLogger):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            arguments["run_id"] = logger_notes.read_note(folder, name).get("run_id")
        logger = instantiate_config(arguments)
        if isinstance(logger, MLFlowLogger):
            logger_notes.update_note(folder, name, run_id=logger.run_id)
        separator = "." if isinstance(logger, MLFlowLogger) else "/"  # MLflow names files after the keys
        return LoggerAdapter(
            logger,
            {key.replace("/", separator): leaf for key, leaf in flatten_config(flatten_labels(run_labels))},
        )

    return open_adapter


def _default_arguments(
    kind: type,
    logger_config: Mapping[str, Any],
    folder: Path = Path(),
    run_labels: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return arguments from the folder and labels of the run that the config omits."""
    run_labels = run_labels or {"name": ""}
    defaults: dict[str, Any] = {}
    if issubclass(kind, TensorBoardLogger):
        name = Path(*to_folder_names(run_labels.get("group")), *to_folder_names(run_labels["name"]))
        defaults = {"save_dir": str(folder / "tensorboard"), "name": str(name), "version": ""}
    elif issubclass(kind, MLFlowLogger):
        tags = {
            "experiment": run_labels.get("group"),
            "arm": run_labels.get("job_type"),
            "attnlab_id": run_labels.get("id"),
        }
        defaults = {
            "run_name": run_labels["name"],
            "tags": {name: value for name, value in tags.items() if value},
            "tracking_uri": (folder.parent / "mlflow").absolute().as_uri(),
        }
    elif "save_dir" in inspect.signature(kind).parameters:
        defaults = {"save_dir": str(folder)}
    arguments = {name: value for name, value in defaults.items() if logger_config.get(name) is None}
    if issubclass(kind, MLFlowLogger) and (uri := os.environ.get("MLFLOW_TRACKING_URI")):
        arguments["tracking_uri"] = uri
    return arguments
