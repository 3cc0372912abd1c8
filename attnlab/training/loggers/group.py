"""The group `logger` as a whole: W&B by its keys, and Lightning loggers by `_target_`."""

import inspect
import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import MLFlowLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import Logger

from attnlab.model.build import make
from attnlab.store.fingerprint import flatten
from attnlab.store.schema import RunSpec
from attnlab.training.loggers import notes
from attnlab.training.loggers.background import Background, Log
from attnlab.training.loggers.labels import flat, folders, labels
from attnlab.training.loggers.wandb import Wandb
from attnlab.training.targets import located

PATIENCE = 20.0  # seconds for a logger of a user's own to open and to end
_EXTRAS = {TensorBoardLogger: "tensorboard", MLFlowLogger: "mlflow"}  # class: package, and attnlab's extra


def validate(group: Mapping[str, Any]) -> None:
    """ValueError, one line with the key, for the first logger that cannot be opened."""
    if not str(group.get("_target_", "attnlab.")).startswith("attnlab."):
        raise ValueError(
            f"logger._target_={group['_target_']}: give a logger of your own a name, as in "
            f"+logger.mine._target_={group['_target_']}"
        )
    if any(key in group for key in notes.WANDB_KEYS):
        Wandb.of(group)
    for key, part in group.items():
        if key not in (*notes.WANDB_KEYS, "_target_"):
            _validate_part(f"logger.{key}", part)


def _validate_part(key: str, part: Any) -> None:
    if not isinstance(part, Mapping) or "_target_" not in part:
        raise ValueError(
            f"{key}={part} is no logger: use logger=csv, or +{key}._target_=package.module.Class"
        )
    kind = located(str(part["_target_"]))
    if not (isinstance(kind, type) and issubclass(kind, Logger)):
        raise ValueError(
            f"{key}._target_={part['_target_']} is no pytorch_lightning.loggers.Logger: name a class that is"
        )
    for library, package in _EXTRAS.items():
        if issubclass(kind, library) and find_spec(package) is None:
            raise ValueError(f"logger={package} needs the package: pip install 'attnlab[{package}]'")
    given = {
        **{name: value for name, value in part.items() if not name.startswith("_")},
        **_default_arguments(kind, part),
    }
    try:
        inspect.signature(kind).bind(**given)
    except TypeError as error:
        raise ValueError(f"{key}: {part['_target_']}: {error}") from error


def open_loggers(
    group: Mapping[str, Any],
    spec: RunSpec,
    folder: Path,
    names: Iterable[str] | None = None,
    tags: Iterable[str] = (),
) -> list[Background]:
    """Opens the loggers of a run (or those of `names`), each in a thread of its own; `tags` is for W&B."""
    names = notes.list_loggers(group) if names is None else [*names]
    if not names:
        return []
    run = labels(spec)
    tokens = spec.estimate.batch_tokens
    run["tags"] = [*run["tags"], *tags]
    opened = []
    for name in names:
        if name == notes.WANDB:
            opened.append(Wandb.of(group).logger(folder, tokens, **run))
        else:
            called = located(group[name]["_target_"]).__name__
            opened.append(
                Background(
                    called, _make_opener(group[name], name, folder, run), folder, name, tokens, PATIENCE
                )
            )
    return opened


def _make_opener(part: Mapping[str, Any], name: str, folder: Path, run: Mapping[str, Any]) -> Any:
    """A function that opens a Lightning logger for a run."""

    def open_log() -> Log:
        kind = located(part["_target_"])
        given = {**part, **_default_arguments(kind, part, folder, run)}
        if issubclass(kind, MLFlowLogger):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            given["run_id"] = notes.read(folder, name).get("run_id")
        logger = make(given)
        if isinstance(logger, MLFlowLogger):
            notes.update(folder, name, run_id=logger.run_id)
        separator = "." if isinstance(logger, MLFlowLogger) else "/"  # its files are called by the keys
        return Log(logger, {key.replace("/", separator): leaf for key, leaf in flatten(flat(run))})

    return open_log


def _default_arguments(
    kind: type, part: Mapping[str, Any], folder: Path = Path(), run: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments that a run's folder and labels give where the config leaves them out."""
    run = run or {"name": ""}
    given: dict[str, Any] = {}
    if issubclass(kind, TensorBoardLogger):
        name = Path(*folders(run.get("group")), *folders(run["name"]))
        given = {"save_dir": str(folder / "tensorboard"), "name": str(name), "version": ""}
    elif issubclass(kind, MLFlowLogger):
        tags = {"experiment": run.get("group"), "arm": run.get("job_type"), "attnlab_id": run.get("id")}
        given = {
            "run_name": run["name"],
            "tags": {name: value for name, value in tags.items() if value},
            "tracking_uri": (folder.parent / "mlflow").absolute().as_uri(),
        }
    elif "save_dir" in inspect.signature(kind).parameters:
        given = {"save_dir": str(folder)}
    filled = {name: value for name, value in given.items() if part.get(name) is None}
    if issubclass(kind, MLFlowLogger) and (uri := os.environ.get("MLFLOW_TRACKING_URI")):
        filled["tracking_uri"] = uri
    return filled
