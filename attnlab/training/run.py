"""One run: seed, instantiate, fit, measure, record. And what can be known about it before it starts."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from safetensors.torch import save_model

from attnlab.model.build import build_model, make
from attnlab.store.files import CHECKPOINTS, replacing
from attnlab.training import callbacks, checkpoints, measuring, settings
from attnlab.training import record as records
from attnlab.training.end import measure, summary
from attnlab.training.module import Diverged as Diverged
from attnlab.training.module import LanguageModel
from attnlab.training.parent import load_parent
from attnlab.training.preflight import check


def run(folder: Path) -> None:
    """Trains the run that `folder/spec.json` describes, or goes on from its checkpoint, and writes its
    record last; where it has a `measurement`, nothing is trained.
    """
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    first = os.environ.get("LOCAL_RANK", "0") == "0"  # of several devices, one speaks
    logger, record, code = first and mirror(spec, folder), dict[str, Any](), 1
    try:
        if spec["config"].get("measurement"):
            record = measuring.measure(folder, spec, spec.get("figures") or check(spec["config"]))
        else:
            record = train(folder, spec, logger)
        code = 0
    except SystemExit as told_to_stop:
        code = told_to_stop.code if isinstance(told_to_stop.code, int) else 1
        raise
    finally:
        if logger:
            logger.end(summary(record), code)


@settings.quiet()
def train(folder: Path, spec: Mapping[str, Any], logger: Any) -> dict[str, Any]:
    """The run itself, up to its record on disk, which is returned; nothing here waits for the logger."""
    clock, config = time.perf_counter(), spec["config"]
    settings.refuse_environment()
    torch.manual_seed(config["seed"])
    facts = spec.get("figures") or check(config)
    data = make(config["data"])
    module: LanguageModel = make(config["optim"], model=build_model(config, data.task.vocab_size))
    checkpoint = checkpoints.newest_checkpoint(folder)
    if config["parent"] and checkpoint is None:
        load_parent(module.model, config, folder.parent)

    probe = data.probe(1)
    maps = callbacks.ProbeMaps(probe, config["measure"]["maps"], facts["steps"])
    curves = callbacks.Curves(facts["batch_tokens"])
    data.split = spec.get("use", {}).get("split", 1)
    accumulate = config["trainer"]["accumulate_grad_batches"] * data.split
    often = min(config["trainer"]["log_every_n_steps"], facts["steps"])
    trainer: pl.Trainer = make(
        {**config["trainer"], "log_every_n_steps": often, "accumulate_grad_batches": accumulate},
        **settings.QUIET,
        logger=logger,
        default_root_dir=str(folder),
        max_epochs=1,
        val_check_interval=min(config["measure"]["every"], facts["steps"]) * accumulate,
        plugins=[checkpoints.AtomicCheckpointIO(), LightningEnvironment()],  # ranks are started by the worker
        callbacks=[
            *settings.callbacks(config),
            curves,
            maps,
            callbacks.Heartbeat(folder / "progress.json"),
            checkpoints.Checkpoints(folder, config["sweep"]["checkpoint_every"]),
        ],
    )
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    settings.require_all_steps(trainer, facts["steps"])
    if module.validation.get("step") != facts["steps"]:
        trainer.validate(module, data, verbose=False)
    if not trainer.is_global_zero:
        return {}

    measured = measure(module, data, maps, curves, config["measure"])
    record = records.of(folder, config, facts, clock, split=data.split, **measured)
    maps.save(folder / "attention.npz", data.task.decode(probe[0].tolist()))
    with replacing(folder / "model.safetensors") as temporary:
        save_model(module.model, str(temporary))
    records.write(folder, record, curves.rows)
    for name in CHECKPOINTS:
        (folder / name).unlink(missing_ok=True)
    return record


def mirror(spec: Mapping[str, Any], folder: Path) -> Any:
    """The run's logger, grouped by the first experiment that trains it."""
    use, config = spec.get("use", {}), spec["config"]
    arm, experiment = use.get("arm") or "run", use.get("experiment")
    return make(config["logger"]).logger(
        folder=folder,
        id=spec["id"],
        group=experiment,
        job_type=arm,
        name=f"{arm}/seed={config['seed']}",
        tags=[tag for tag in (experiment, arm) if tag],
        config=spec.get("semantic", {}).get("config", {}) | {"seed": config["seed"]},
    )
