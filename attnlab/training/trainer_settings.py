"""Validation of Lightning Trainer settings, and the user's callbacks.

No setting is dropped silently: an unsupported one is rejected when the run is planned, with the reason and
the alternative.
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
from pytorch_lightning import callbacks

from attnlab.config import CONF
from attnlab.errors import format_suggestions
from attnlab.model.build import instantiate_config
from attnlab.store import config_groups
from attnlab.store.experiment_schema import Experiment
from attnlab.store.fingerprint import to_canonical_json

QUIET_SETTINGS = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}

_ALL_STEPS_REASON = (
    "every run completes trainer.max_steps, so that all arms train on the same number of tokens"
)
_CHECKPOINTS_REASON = "attnlab saves checkpoints itself: set sweep.checkpoint_every"
_TIME_REASON = "set sweep.max_time, in seconds"
_PROGRESS_REASON = "`python -m attnlab status ... --watch` shows progress, and `plan` parameters and FLOPs"
_REJECTION_REASONS = {  # reason -> Trainer settings that the harness controls
    "batch n is a function of (seed, n): set trainer.max_steps, data.batch_size or data.val_windows":
        "limit_predict_batches limit_test_batches limit_train_batches limit_val_batches "
        "max_epochs min_epochs overfit_batches reload_dataloaders_every_n_epochs",
    "every run validates and saves checkpoints: use size=debug for a quick run": "barebones fast_dev_run",
    _ALL_STEPS_REASON: "min_steps",
    _TIME_REASON: "max_time",
    "set measure.every, in optimizer steps":
        "check_val_every_n_epoch num_sanity_val_steps val_check_interval",
    _CHECKPOINTS_REASON: "enable_checkpointing model_registry",
    _PROGRESS_REASON: "enable_model_summary enable_progress_bar",
    "set logger=none, or logger=wandb, which holds the whole config": "enable_autolog_hparams logger",
    "add them as +callbacks=NAME, or ++callbacks.mine={_target_: ...}": "callbacks",
    "attnlab names the run directories: set paths.runs": "default_root_dir",
    "a run uses one node and attnlab's own plugins: set trainer.devices or trainer.precision":
        "num_nodes plugins use_distributed_sampler",
}  # fmt: skip
REJECTED_SETTINGS = {key: reason for reason, keys in _REJECTION_REASONS.items() for key in keys.split()}
_REJECTED_CALLBACKS: dict[type[pl.Callback], str] = {
    callbacks.Checkpoint: _CHECKPOINTS_REASON,
    callbacks.ProgressBar: _PROGRESS_REASON,
    callbacks.ModelSummary: _PROGRESS_REASON,
    callbacks.EarlyStopping: _ALL_STEPS_REASON,
    callbacks.Timer: _TIME_REASON,
    callbacks.GradientAccumulationScheduler: "set trainer.accumulate_grad_batches",
    callbacks.BatchSizeFinder: "set data.batch_size",
    callbacks.LearningRateFinder: "set tune in an experiment, or optim.lr in a single run",
    callbacks.LearningRateMonitor: "every run logs train/lr: remove this callback",
}
_CLOSED_GROUPS = ("measure", "sweep", "paths", "decode")  # keys not covered by a constructor signature
_OPEN_GROUPS = ("data", "model", "size", "optim", "trainer", "logger", "callbacks", "hydra")
_HIDDEN_SWEEP_KEYS = ("show", "command")  # set by `plan`, `status` and `compare`
_FREE_GROUP = "protocol"  # values of an experiment that its other keys interpolate


def validate_settings(config: Mapping[str, Any]) -> None:
    """Validate all keys, the Trainer settings and the callbacks of a config.

    Raises:
        ValueError: One line, if a setting would be ignored or is unknown, or the callbacks or the Trainer
            cannot be built.
    """
    _reject_unknown_keys(config)
    reject_environment_settings()
    _validate_trainer_keys(config["trainer"])
    if config.get("callbacks") and config.get("measurement"):
        raise ValueError("measurement runs do not train, so callbacks have no effect: remove one of them")
    trainer_config = {"trainer": config["trainer"], "callbacks": config.get("callbacks")}
    _try_building(to_canonical_json(trainer_config))


def build_callbacks(config: Mapping[str, Any]) -> list[pl.Callback]:
    """Build the callbacks of the group `callbacks` in order; null removes one.

    They run before the harness's own callbacks, the last of which saves, so a checkpoint includes their
    effect on its step. They can change training, so they are part of the run id, with the source of their
    classes.
    """
    group = config.get("callbacks") or {}
    if not isinstance(group, Mapping):
        raise ValueError(f"callbacks must map names to {{_target_: ...}}, one per callback, got {group}")
    return [
        _build_callback(f"callbacks.{name}", callback)
        for name, callback in group.items()
        if callback is not None
    ]


def require_all_steps(trainer: pl.Trainer, steps: int) -> None:
    """Check that training completed all steps.

    Raises:
        RuntimeError: A callback ended the training early.
    """
    if trainer.global_step != steps:
        raise RuntimeError(
            f"training ended at step {trainer.global_step} of {steps}, stopped by a callback: "
            f"{_ALL_STEPS_REASON}"
        )


def reject_environment_settings() -> None:
    """Reject Trainer settings from the environment, which no run id covers."""
    for key in inspect.signature(pl.Trainer).parameters:
        if (name := f"PL_TRAINER_{key.upper()}") in os.environ:
            raise ValueError(f"{name} is set, but run ids do not include it: unset it")


@contextmanager
def silence_lightning() -> Iterator[None]:
    """Suppress Lightning's start-up lines and tips, and its warning about `srun`, which runs do not use."""
    log = logging.getLogger("pytorch_lightning")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The `srun` command is available")
            yield
    finally:
        log.setLevel(level)


def _reject_unknown_keys(config: Mapping[str, Any]) -> None:
    """Reject keys that no code reads."""
    groups = _collect_known_keys()
    for key in config:
        if key not in groups:
            raise ValueError(
                f"{key}: there is no such key{format_suggestions(key, groups)}; "
                f"put values that other keys interpolate under {_FREE_GROUP}"
            )
    for group in _CLOSED_GROUPS:
        for key in config.get(group) or {}:
            if key not in groups[group]:
                raise ValueError(
                    f"{group}.{key}: {group} has no such key{format_suggestions(key, groups[group])}"
                )


@cache
def _collect_known_keys() -> dict[str, set[str]]:
    """Return all top-level keys of a config, with the subkeys of closed groups."""
    shipped = OmegaConf.merge(*(OmegaConf.load(CONF / name) for name in ("config.yaml", "decode/none.yaml")))
    assert isinstance(shipped, DictConfig)
    groups = {str(key): set[str]() for key in (*shipped, *_OPEN_GROUPS, _FREE_GROUP, *Experiment.list_keys())}
    groups |= {group: {str(key) for key in shipped[group]} for group in _CLOSED_GROUPS}
    groups["sweep"] |= {*config_groups.SweepGroup.model_fields, *_HIDDEN_SWEEP_KEYS}
    return groups


def _validate_trainer_keys(trainer: Mapping[str, Any]) -> None:
    """Check each Trainer key against `config_groups.TrainerGroup` and the Trainer's signature."""
    target = get_object(trainer["_target_"])
    if isinstance(target, type) and not issubclass(target, pl.Trainer):
        raise ValueError(f"trainer._target_={trainer['_target_']} is not a pytorch_lightning.Trainer")
    parameters = inspect.signature(target).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    rejected_keys = {*inspect.signature(pl.Trainer).parameters} - {*config_groups.TrainerGroup.model_fields}
    for key in trainer:
        if key in rejected_keys:
            value = "" if isinstance(trainer[key], Mapping | list) else f"={trainer[key]}"
            reason = REJECTED_SETTINGS.get(key, "attnlab does not use this setting: remove it")
            raise ValueError(f"trainer.{key}{value}: {reason}")
        if not takes_any and key not in parameters and not key.startswith("_"):
            raise ValueError(
                f"trainer.{key}: the Trainer has no such setting{format_suggestions(key, parameters)}"
            )


@cache  # most arms share both, and budget matching checks many configs
def _try_building(config_json: str) -> None:
    """Build the callbacks and the Trainer once on a CPU, so that their own errors appear now."""
    config = json.loads(config_json)
    # The last two would change this process, the others need the run's devices; all are validated before.
    untested_keys = ("accelerator", "devices", "strategy", "deterministic", "benchmark")
    settings = {key: value for key, value in config["trainer"].items() if key not in untested_keys}
    settings |= {**QUIET_SETTINGS, "accelerator": "cpu", "devices": 1, "logger": False, "max_epochs": 1}
    user_callbacks = build_callbacks(config)
    with silence_lightning(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trainer = instantiate_config(settings, plugins=[LightningEnvironment()], callbacks=user_callbacks)
        except Exception as error:  # Lightning's own exception class is no ValueError
            raise ValueError(f"trainer: {' '.join(str(error).split())}") from error
    if not isinstance(trainer, pl.Trainer):
        raise ValueError(
            f"trainer._target_={settings['_target_']} does not build a pytorch_lightning.Trainer"
        )


def _build_callback(key: str, config: Any) -> pl.Callback:
    if not isinstance(config, Mapping) or "_target_" not in config:
        raise ValueError(f"{key}={config} is not a callback: use {{_target_: package.module.Class, ...}}")
    try:
        callback = instantiate_config(config)
    except Exception as error:  # a user's constructor may raise anything
        raise ValueError(f"{key}: {' '.join(str(error).split()) or type(error).__name__}") from error
    if not isinstance(callback, pl.Callback):
        raise ValueError(
            f"{key}._target_={config['_target_']} builds a {type(callback).__name__}, "
            "which is not a pytorch_lightning.Callback"
        )
    for kind, reason in _REJECTED_CALLBACKS.items():
        if isinstance(callback, kind):
            raise ValueError(f"{key}: {reason}")
    return callback
