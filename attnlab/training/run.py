"""Train one run: seed, instantiate, fit, measure, write the result."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from safetensors.torch import save_model

from attnlab.measure.text.probe_window import choose_probe_window
from attnlab.model import build
from attnlab.model.build import build_data, build_model, instantiate_config
from attnlab.store.atomic_files import CHECKPOINT_NAMES, replace_atomically
from attnlab.store.guards import trust
from attnlab.store.run_schema import RunConfig, RunResult
from attnlab.training import callbacks, checkpoints, measurement_run, run_result, trainer_settings
from attnlab.training.final_metrics import measure_final_metrics, summarize_metrics
from attnlab.training.language_model import LanguageModel
from attnlab.training.loggers.async_logger import AsyncLogger
from attnlab.training.loggers.logger_group import open_loggers
from attnlab.training.preflight import check as check
from attnlab.training.preflight import count_resource as count_resource  # part of the trainer interface
from attnlab.training.remeasure import measure_again as measure_again
from attnlab.training.warm_start import load_parent_weights


def run(folder: Path) -> None:
    """Train the run described by `folder/spec.json`, or resume it from its checkpoint; write the result last.

    A run with a `measurement` trains nothing.
    """
    run_config = trust.load_trusted_run(folder)
    is_rank_zero = os.environ.get("LOCAL_RANK", "0") == "0"  # only one rank logs
    loggers = open_loggers(run_config.config["logger"], run_config, folder) if is_rank_zero else []
    result = None
    exit_code = 1
    try:
        only_measures = bool(run_config.config.get("measurement"))
        result = (
            measurement_run.run_measurement(folder, run_config)
            if only_measures
            else train(folder, run_config, loggers)
        )
        exit_code = 0
    except SystemExit as stop_request:
        exit_code = stop_request.code if isinstance(stop_request.code, int) else 1
        raise
    finally:
        close_loggers(loggers, {} if result is None else summarize_metrics(result), exit_code)


def device_kind(config: Mapping[str, Any]) -> str:
    """Return "cpu", or the name of the GPU that a run would train on here."""
    return build.get_device_kind(build.select_device(config))


def verify(config: Mapping[str, Any]) -> list[Any]:
    """Run the conformance tests of attention on a run config and return their results."""
    from attnlab import testing

    return testing.verify(config)


@trainer_settings.silence_lightning()
def train(folder: Path, run_config: RunConfig, loggers: list[AsyncLogger]) -> RunResult | None:
    """Train and write the result, which is returned (None on other ranks); never waits for a logger."""
    start_time = time.perf_counter()
    config = run_config.config
    estimate = run_config.estimate
    trainer_settings.reject_environment_settings()
    torch.manual_seed(config["seed"])
    data = build_data(run_config)
    module: LanguageModel = instantiate_config(
        config["optim"], model=build_model(config, data.task.vocab_size)
    )
    checkpoint = checkpoints.find_newest_checkpoint(folder)
    trunk = None if checkpoint else checkpoints.find_trunk(folder, run_config)
    if config["parent"] and not (checkpoint or trunk):
        load_parent_weights(module.model, config, folder.parent)

    steps = config["trainer"]["max_steps"]
    probe_window = choose_probe_window(data)
    maps = callbacks.MapRecorder(probe_window, config["measure"]["maps"], steps)
    assert estimate.batch_tokens is not None, "a training run needs batches"
    curves = callbacks.CurveRecorder(estimate.batch_tokens, continues_trunk=trunk is not None)
    progress_writer = callbacks.ProgressWriter(
        folder / "progress.json",
        trunk=run_config.use.trunk.to_dict() if run_config.use.trunk and trunk else None,
    )
    trunk_step = estimate.shared_steps if run_config.use.keeps_trunk else None
    data.micro_batches = run_config.use.split
    accumulate = config["trainer"]["accumulate_grad_batches"] * data.micro_batches
    log_interval = min(config["trainer"]["log_every_n_steps"], steps)
    trainer: pl.Trainer = instantiate_config(
        {**config["trainer"], "log_every_n_steps": log_interval, "accumulate_grad_batches": accumulate},
        **trainer_settings.QUIET_SETTINGS,
        logger=loggers or False,
        default_root_dir=str(folder),
        max_epochs=1,
        val_check_interval=min(config["measure"]["every"], steps) * accumulate,
        plugins=[checkpoints.AtomicCheckpointIO(), LightningEnvironment()],  # ranks are started by the worker
        callbacks=[
            *trainer_settings.build_callbacks(config),
            curves,
            maps,
            progress_writer,
            checkpoints.CheckpointSaver(folder, config["sweep"]["checkpoint_every"], trunk_step),
        ],
    )
    trainer.fit(module, data, ckpt_path=checkpoint or trunk, weights_only=True)
    trainer_settings.require_all_steps(trainer, steps)
    if module.validation_results.get("step") != steps:
        trainer.validate(module, data, verbose=False)
    if not trainer.is_global_zero:
        return None

    measured = measure_final_metrics(module, data, maps, curves, config["measure"])
    result = run_result.make_run_result(
        run_config,
        start_time,
        split=data.micro_batches,
        resumed=progress_writer.resumptions,
        trunk=progress_writer.trunk,
        **measured,
    )
    maps.save(folder / "attention.npz", data.task.decode(probe_window[0].tolist()))
    with replace_atomically(folder / "model.safetensors") as temporary:
        save_model(module.model, str(temporary))
    if hasattr(data.task, "vocabulary"):
        data.task.vocabulary().write(folder)
    run_result.save_run(folder, result, curves.rows)
    for name in CHECKPOINT_NAMES:
        (folder / name).unlink(missing_ok=True)
    return result


def close_loggers(loggers: list[AsyncLogger], metrics: Mapping[str, float], exit_code: int) -> None:
    """Close each logger with the metrics of the run and its exit code."""
    for logger in loggers:
        logger.close(metrics, exit_code)
