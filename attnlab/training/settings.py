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
from attnlab.store import values
from attnlab.store.declarations import Experiment
from attnlab.store.fingerprint import canonical

QUIET = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}

_ALL_STEPS = "a run takes all of its trainer.max_steps, so that arms have seen as many tokens"
_CHECKPOINTS = "attnlab saves checkpoints itself: set sweep.checkpoint_every"
_TIME = "set sweep.max_time, in seconds"
_SHOWN = "`python -m attnlab status ... --watch` shows progress, and `plan` parameters and FLOPs"
_REASONS = {  # -> the settings of Lightning's Trainer that are the harness's own
    "batch n is a function of (seed, n): set trainer.max_steps, data.batch_size or data.val_windows":
        "limit_predict_batches limit_test_batches limit_train_batches limit_val_batches "
        "max_epochs min_epochs overfit_batches reload_dataloaders_every_n_epochs",
    "every run validates and saves checkpoints: size=debug is the quick run": "barebones fast_dev_run",
    _ALL_STEPS: "min_steps",
    _TIME: "max_time",
    "set measure.every, in optimizer steps":
        "check_val_every_n_epoch num_sanity_val_steps val_check_interval",
    _CHECKPOINTS: "enable_checkpointing model_registry",
    _SHOWN: "enable_model_summary enable_progress_bar",
    "set logger=none, or logger=wandb, which holds the whole config": "enable_autolog_hparams logger",
    "add them as +callbacks=NAME, or ++callbacks.mine={_target_: ...}": "callbacks",
    "the store names a run's folder: set paths.runs": "default_root_dir",
    "a run has one node and attnlab's plugins: set trainer.devices or trainer.precision":
        "num_nodes plugins use_distributed_sampler",
}  # fmt: skip
REFUSED = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}
_OWN_CALLBACKS: dict[type[pl.Callback], str] = {
    known.Checkpoint: _CHECKPOINTS,
    known.ProgressBar: _SHOWN,
    known.ModelSummary: _SHOWN,
    known.EarlyStopping: _ALL_STEPS,
    known.Timer: _TIME,
    known.GradientAccumulationScheduler: "set trainer.accumulate_grad_batches",
    known.BatchSizeFinder: "set data.batch_size",
    known.LearningRateFinder: "set tune in an experiment, and optim.lr elsewhere",
    known.LearningRateMonitor: "train/lr is among the curves of every run",
}
_CLOSED = ("measure", "sweep", "paths", "decode")  # groups that no constructor's signature guards
_GROUPS = ("data", "model", "size", "optim", "trainer", "logger", "callbacks", "hydra")
_HIDDEN = ("show", "command")  # of `sweep`, set by `plan`, `status` and `compare`
_FREE = "protocol"  # an experiment's own values, which others of its keys refer to


def check(config: Mapping[str, Any]) -> None:
    """ValueError, one line, where a setting would be dropped, is none of those that a run may have, or the
    callbacks or the Trainer cannot be built.
    """
    _refuse_unread(config)
    refuse_environment()
    _refuse_trainer(config["trainer"])
    if config.get("callbacks") and config.get("measurement"):
        raise ValueError(
            "callbacks look at a training, and a measurement trains nothing: drop one of the two"
        )
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


def _refuse_trainer(trainer: Mapping[str, Any]) -> None:
    """ValueError, one line, for a key that neither `values.Trainer` nor a user's own Trainer has."""
    target = get_object(trainer["_target_"])
    if isinstance(target, type) and not issubclass(target, pl.Trainer):
        raise ValueError(f"trainer._target_={trainer['_target_']} is no pytorch_lightning.Trainer")
    parameters = inspect.signature(target).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = {*inspect.signature(pl.Trainer).parameters} - {*values.Trainer.model_fields}
    for key in trainer:
        if key in known:
            value = "" if isinstance(trainer[key], Mapping | list) else f"={trainer[key]}"
            reason = REFUSED.get(key, "attnlab has no use for this setting: leave it out")
            raise ValueError(f"trainer.{key}{value}: {reason}")
        if not takes_any and key not in parameters and not key.startswith("_"):
            raise ValueError(f"trainer.{key}: the Trainer has no such setting{nearest(key, parameters)}")


@cache  # an experiment's arms mostly share both, and matching asks many times
def _try(built: str) -> None:
    """Builds the callbacks and the Trainer once, on a CPU: what they refuse, they refuse now."""
    config = json.loads(built)
    # these two would change this process, the others need the devices of the run; all have been looked at
    left = ("accelerator", "devices", "strategy", "deterministic", "benchmark")
    settings = {key: value for key, value in config["trainer"].items() if key not in left}
    settings |= {**QUIET, "accelerator": "cpu", "devices": 1, "logger": False, "max_epochs": 1}
    added = callbacks(config)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trainer = make(settings, plugins=[LightningEnvironment()], callbacks=added)
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
