"""One run: seed, instantiate, fit, measure, record. And what can be known about it before it starts."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from safetensors.torch import save_model

from attnlab.measure.text.probe import probe
from attnlab.model import build
from attnlab.model.build import build_model, make
from attnlab.store import runs, values
from attnlab.store.files import CHECKPOINTS, replacing
from attnlab.store.guards import inputs
from attnlab.store.schema import Estimate, RunRecord, RunSpec
from attnlab.training import callbacks, checkpoints, measuring, settings
from attnlab.training import record as records
from attnlab.training.again import measure_again as measure_again
from attnlab.training.end import measure, summary
from attnlab.training.loggers.background import Background
from attnlab.training.loggers.group import open_loggers
from attnlab.training.module import LanguageModel
from attnlab.training.parent import load_parent
from attnlab.training.preflight import check
from attnlab.training.preflight import count_resource as count_resource  # a part of a trainer


def run(folder: Path) -> None:
    """Trains the run that `folder/spec.json` describes, or goes on from its checkpoint, and writes its
    record last; where it has a `measurement`, nothing is trained.
    """
    spec = _estimated(runs.spec(folder))
    first = os.environ.get("LOCAL_RANK", "0") == "0"  # of several devices, one speaks
    loggers = open_loggers(spec.config["logger"], spec, folder) if first else []
    record = None
    code = 1
    try:
        only_measures = bool(spec.config.get("measurement"))
        record = measuring.measure(folder, spec) if only_measures else train(folder, spec, loggers)
        code = 0
    except SystemExit as asked_to_stop:
        code = asked_to_stop.code if isinstance(asked_to_stop.code, int) else 1
        raise
    finally:
        end_loggers(loggers, {} if record is None else summary(record), code)


def device_kind(config: Mapping[str, Any]) -> str:
    """ "cpu", or the name of the card that a run would train on here."""
    return build.device_kind(build.device_of(config))


def verify(config: Mapping[str, Any]) -> list[Any]:
    """What the laws of attention say of a run's config."""
    from attnlab import testing

    return testing.verify(config)


def _estimated(spec: RunSpec) -> RunSpec:
    """A spec that a sweep wrote knows what can be known before; one written by hand is checked here."""
    if spec.estimate.steps is not None:
        return spec
    values.refuse(spec.config, values.SWEEP)
    inputs.check(spec.config)
    return spec.but(estimate=Estimate.model_validate(check(spec.config)))


@settings.quiet()
def train(folder: Path, spec: RunSpec, loggers: list[Background]) -> RunRecord | None:
    """The run itself, up to its record on disk, which is returned; nothing here waits for a logger."""
    clock = time.perf_counter()
    config = spec.config
    estimate = spec.estimate
    settings.refuse_environment()
    torch.manual_seed(config["seed"])
    data = make(config["data"])
    module: LanguageModel = make(config["optim"], model=build_model(config, data.task.vocab_size))
    checkpoint = checkpoints.newest_checkpoint(folder)
    if config["parent"] and checkpoint is None:
        load_parent(module.model, config, folder.parent, spec.use.composed)

    steps = config["trainer"]["max_steps"]
    shown = probe(data)
    maps = callbacks.ProbeMaps(shown, config["measure"]["maps"], steps)
    assert estimate.batch_tokens is not None, "a run that trains has batches"
    curves = callbacks.Curves(estimate.batch_tokens)
    heartbeat = callbacks.Heartbeat(folder / "progress.json")
    data.split = spec.use.split
    accumulate = config["trainer"]["accumulate_grad_batches"] * data.split
    often = min(config["trainer"]["log_every_n_steps"], steps)
    trainer: pl.Trainer = make(
        {**config["trainer"], "log_every_n_steps": often, "accumulate_grad_batches": accumulate},
        **settings.QUIET,
        logger=loggers or False,
        default_root_dir=str(folder),
        max_epochs=1,
        val_check_interval=min(config["measure"]["every"], steps) * accumulate,
        plugins=[checkpoints.AtomicCheckpointIO(), LightningEnvironment()],  # ranks are started by the worker
        callbacks=[
            *settings.callbacks(config),
            curves,
            maps,
            heartbeat,
            checkpoints.Checkpoints(folder, config["sweep"]["checkpoint_every"]),
        ],
    )
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    settings.require_all_steps(trainer, steps)
    if module.validation.get("step") != steps:
        trainer.validate(module, data, verbose=False)
    if not trainer.is_global_zero:
        return None

    measured = measure(module, data, maps, curves, config["measure"])
    record = records.of(spec, clock, split=data.split, resumed=heartbeat.resumed, **measured)
    maps.save(folder / "attention.npz", data.task.decode(shown[0].tolist()))
    with replacing(folder / "model.safetensors") as temporary:
        save_model(module.model, str(temporary))
    if hasattr(data.task, "vocabulary"):
        data.task.vocabulary().write(folder)
    records.write(folder, record, curves.rows)
    for name in CHECKPOINTS:
        (folder / name).unlink(missing_ok=True)
    return record


def end_loggers(loggers: list[Background], figures: Mapping[str, float], code: int) -> None:
    """Closes each logger with the figures of the run and its exit code."""
    for logger in loggers:
        logger.end(figures, code)
