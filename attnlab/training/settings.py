"""What a user may say to Lightning's Trainer, what is the harness's own, and the callbacks that a user adds.

Nothing that is written is dropped: what cannot be followed is refused when the run is planned, with the
reason and what to write instead.
"""

import inspect
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytorch_lightning as pl
from hydra.utils import get_object
from lightning_fabric.plugins.environments import LightningEnvironment
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import callbacks as known

from attnlab.config import CONF
from attnlab.errors import nearest
from attnlab.model.build import make
from attnlab.store.declarations import Experiment
from attnlab.store.fingerprint import canonical

QUIET = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}

_BY_STEPS = "attnlab trains by steps: set trainer.max_steps"
_ALL_STEPS = "a run takes all of its trainer.max_steps, so that arms have seen as many tokens"
_BATCHES = "batch n is a function of (seed, n): set trainer.max_steps, data.batch_size or data.val_windows"
_CHECKPOINTS = "attnlab saves checkpoints itself: set sweep.checkpoint_every"
_VALIDATION = "set measure.every, in optimiser steps"
_PROGRESS = "`python -m attnlab status ... --watch` shows where the runs are"
_SUMMARY = "`python -m attnlab plan ...` shows parameters and FLOPs"
OWNED = {
    "barebones": "it leaves out the validation and the checkpoints that every run has",
    "callbacks": "add them as +callbacks=NAME, or ++callbacks.mine={_target_: ...}",
    "check_val_every_n_epoch": _VALIDATION,
    "default_root_dir": "the store names a run's folder: set paths.runs",
    "enable_autolog_hparams": "the record and the logger hold the whole config",
    "enable_checkpointing": _CHECKPOINTS,
    "enable_model_summary": _SUMMARY,
    "enable_progress_bar": _PROGRESS,
    "fast_dev_run": "size=debug is the quick run",
    "limit_predict_batches": "nothing is predicted",
    "limit_test_batches": "nothing is tested",
    "limit_train_batches": _BATCHES,
    "limit_val_batches": _BATCHES,
    "logger": "set logger=none or logger=wandb",
    "max_epochs": _BY_STEPS,
    "max_time": "set sweep.max_time, in seconds",
    "min_epochs": _BY_STEPS,
    "min_steps": _ALL_STEPS,
    "model_registry": _CHECKPOINTS,
    "num_nodes": "a run has one node: set trainer.devices",
    "num_sanity_val_steps": "the first validation comes early enough: set measure.every",
    "overfit_batches": _BATCHES,
    "plugins": "attnlab brings its own for checkpoints and ranks; set trainer.precision or trainer.devices",
    "reload_dataloaders_every_n_epochs": _BY_STEPS,
    "use_distributed_sampler": "each device takes its rows of the batch: set trainer.devices",
    "val_check_interval": _VALIDATION,
}
_OWN_CALLBACKS: dict[type[pl.Callback], str] = {
    known.Checkpoint: _CHECKPOINTS,
    known.ProgressBar: _PROGRESS,
    known.ModelSummary: _SUMMARY,
    known.EarlyStopping: _ALL_STEPS,
    known.Timer: "set sweep.max_time, in seconds",
    known.GradientAccumulationScheduler: "set trainer.accumulate_grad_batches",
    known.BatchSizeFinder: "set data.batch_size",
    known.LearningRateFinder: "set tune in an experiment, and optim.lr elsewhere",
    known.LearningRateMonitor: "train/lr is among the curves of every run",
}
_WHOLE_MODEL = ("auto", "ddp", "ddp_find_unused_parameters_true")  # strategies with a whole model per device
_CLOSED = ("measure", "sweep", "paths", "decode")  # groups that no constructor's signature guards
_GROUPS = ("data", "model", "size", "optim", "trainer", "logger", "callbacks", "hydra")
_HIDDEN = ("show", "command")  # of `sweep`, set by `plan`, `status` and `compare`
_FREE = "protocol"  # an experiment's own values, which others of its keys refer to


def refuse(config: Mapping[str, Any]) -> None:
    """ValueError, one line, where a setting would be dropped, or is none of those that a run may have."""
    _refuse_unread(config)
    refuse_environment()
    trainer = config["trainer"]
    for key, reason in OWNED.items():
        if key in trainer:
            value = "" if isinstance(trainer[key], Mapping | list) else f"={trainer[key]}"
            raise ValueError(f"trainer.{key}{value}: {reason}")
    _refuse_values(trainer)
    if config.get("callbacks") and config.get("measurement"):
        raise ValueError(
            "callbacks look at a training, and a measurement trains nothing: drop one of the two"
        )


def check(config: Mapping[str, Any]) -> None:
    """ValueError, one line, where the callbacks or the Trainer cannot be built."""
    built = {"trainer": config["trainer"], "callbacks": config.get("callbacks")}
    _try(canonical(built))


def callbacks(config: Mapping[str, Any]) -> list[pl.Callback]:
    """The callbacks that `callbacks` names, in its order; null takes one out. They come before the harness's
    own, whose last one saves: a checkpoint then holds what they did in its step.

    They can change what is trained, so they are part of a run's id, with the source of their classes.
    """
    chosen = config.get("callbacks") or {}
    if not isinstance(chosen, Mapping):
        raise ValueError(f"callbacks maps names to {{_target_: ...}}, one for each callback; got {chosen}")
    return [
        _callback(f"callbacks.{name}", callback) for name, callback in chosen.items() if callback is not None
    ]


def require_all_steps(trainer: pl.Trainer, steps: int) -> None:
    """RuntimeError where a callback has ended the training before its time."""
    if trainer.global_step != steps:
        raise RuntimeError(
            f"training ended at step {trainer.global_step} of {steps}, stopped by a callback: {_ALL_STEPS}"
        )


def refuse_environment() -> None:
    """ValueError where Lightning would take a setting from the environment, which no run's id knows of."""
    for key in inspect.signature(pl.Trainer).parameters:
        if (name := f"PL_TRAINER_{key.upper()}") in os.environ:
            raise ValueError(f"{name} is set, and would change runs behind their ids: unset it")


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's start-up lines and tips. Runs are no jobs of srun's, and need no word of it."""
    log = logging.getLogger("pytorch_lightning")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The `srun` command is available")
            yield
    finally:
        log.setLevel(level)


def _refuse_unread(config: Mapping[str, Any]) -> None:
    """ValueError, one line, for a key that nothing reads."""
    groups = _declared()
    for key in config:
        if key not in groups:
            raise ValueError(
                f"{key}: nothing reads a key of that name{nearest(key, groups)}; "
                f"values that other keys refer to go under {_FREE}"
            )
    for group in _CLOSED:
        for key in config.get(group) or {}:
            if key not in groups[group]:
                raise ValueError(f"{group}.{key}: {group} has no such key{nearest(key, groups[group])}")


@cache
def _declared() -> dict[str, set[str]]:
    """Every key at the top of a config; with their own keys those that are closed."""
    shipped = OmegaConf.merge(*(OmegaConf.load(CONF / name) for name in ("config.yaml", "decode/none.yaml")))
    assert isinstance(shipped, DictConfig)
    groups = {str(key): set[str]() for key in (*shipped, *_GROUPS, _FREE, *Experiment.key_names())}
    groups |= {group: {str(key) for key in shipped[group]} for group in _CLOSED}
    groups["sweep"] |= {"train", *_HIDDEN}
    return groups


def _refuse_values(trainer: Mapping[str, Any]) -> None:
    for key, values in (("deterministic", (True, False, None, "warn")), ("benchmark", (True, False, None))):
        if trainer.get(key) not in values:
            raise ValueError(f"trainer.{key}={trainer[key]}: it is one of {', '.join(map(str, values))}")
    if trainer.get("strategy", "auto") not in _WHOLE_MODEL:
        raise ValueError(
            f"trainer.strategy={trainer['strategy']}: each device holds the whole model; "
            f"it is one of {', '.join(_WHOLE_MODEL)}"
        )
    if isinstance(trainer.get("profiler"), str):
        raise ValueError(
            f"trainer.profiler={trainer['profiler']} has nowhere to write to: give it a file, as in "
            "{_target_: pytorch_lightning.profilers.SimpleProfiler, dirpath: ., filename: profile}"
        )
    target = get_object(trainer["_target_"])
    if isinstance(target, type) and not issubclass(target, pl.Trainer):
        raise ValueError(f"trainer._target_={trainer['_target_']} is no pytorch_lightning.Trainer")
    parameters = inspect.signature(target).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for key in trainer:
            if key not in parameters and not key.startswith("_"):
                raise ValueError(f"trainer.{key}: the Trainer has no such setting{nearest(key, parameters)}")


@cache  # an experiment's arms mostly share both, and matching asks many times
def _try(built: str) -> None:
    """Builds the callbacks and the Trainer once, on a CPU: what they refuse, they refuse now."""
    config = json.loads(built)
    added = callbacks(config)
    # these two would change this process, the others need the devices of the run; all have been looked at
    left = ("accelerator", "devices", "strategy", "deterministic", "benchmark")
    settings = {key: value for key, value in config["trainer"].items() if key not in left}
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trainer = make(
                {**settings, "accelerator": "cpu", "devices": 1},
                **QUIET,
                logger=False,
                max_epochs=1,
                plugins=[LightningEnvironment()],
                callbacks=added,
            )
        except Exception as error:  # Lightning's own class of it is no ValueError
            raise ValueError(f"trainer: {' '.join(str(error).split())}") from error
    if not isinstance(trainer, pl.Trainer):
        raise ValueError(f"trainer._target_={settings['_target_']} makes no pytorch_lightning.Trainer")


def _callback(key: str, config: Any) -> pl.Callback:
    if not isinstance(config, Mapping) or "_target_" not in config:
        raise ValueError(f"{key}={config}: a callback is given as {{_target_: package.module.Class, ...}}")
    try:
        callback = make(config)
    except Exception as error:  # a user's constructor may raise anything
        raise ValueError(f"{key}: {' '.join(str(error).split()) or type(error).__name__}") from error
    if not isinstance(callback, pl.Callback):
        raise ValueError(
            f"{key}._target_={config['_target_']} makes a {type(callback).__name__}, "
            "which is no pytorch_lightning.Callback"
        )
    for kind, reason in _OWN_CALLBACKS.items():
        if isinstance(callback, kind):
            raise ValueError(f"{key}: {reason}")
    return callback
