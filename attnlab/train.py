"""One run: seed, instantiate, fit, measure, record. And what can be known about it before it starts."""

import json
import logging
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment
from safetensors.torch import save_model

from attnlab import callbacks, measuring, records
from attnlab.attention.layer import Attention
from attnlab.build import WEIGHTS, build_model, device_kind, device_of, make, mixer_configs
from attnlab.files import CHECKPOINTS, replacing
from attnlab.lit import Diverged as Diverged
from attnlab.lit import LanguageModel
from attnlab.measure import length, size
from attnlab.measure.accuracy import accuracy, steps_to_solve
from attnlab.measure.heads import head_scores, probe_texts
from attnlab.parent import load_parent

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)  # its start-up lines and tips
warnings.filterwarnings("ignore", message="The `srun` command is available")  # runs are no jobs of srun's
QUIET = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything about a run that can be known without training it. ValueError, one line, where it cannot
    run.

    Builds the data (and its cache), the model on the meta device, and one small real pass through every
    kind of layer.
    """
    data = make(config["data"])
    context, batch_size = data.task.length, config["data"]["batch_size"]
    trainer, optim = config["trainer"], config["optim"]
    steps, accumulate = trainer["max_steps"], trainer["accumulate_grad_batches"]
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"trainer.max_steps must be a whole number of at least 1, got {steps}")
    if str(trainer["precision"]) in ("16", "16-mixed", "16-true"):
        raise ValueError(
            f"trainer.precision={trainer['precision']}: half precision needs loss scaling; use bf16-mixed"
        )
    make(config["logger"])
    devices = trainer["devices"]
    if type(devices) is not int or devices < 1 or batch_size % devices:
        raise ValueError(
            f"trainer.devices={devices}: give a whole number that divides data.batch_size={batch_size}"
        )
    if config["measure"]["every"] < 1:
        raise ValueError(f"measure.every must be at least 1, got {config['measure']['every']}")
    length.check(config["measure"]["lengths"], data.task, config["measure"]["trained"])
    if config.get("convert") and not config["parent"]:
        raise ValueError("convert is for the weights of another run: set parent, or convert=null")
    with torch.device("meta"):
        model = build_model(config, data.task.vocab_size)
    make(optim, model=model)
    model = model.to(WEIGHTS.get(trainer["precision"], torch.float32))
    device = device_of(config)
    if device == "cuda" and devices > torch.cuda.device_count():
        raise ValueError(
            f"trainer.devices={devices}: there are {torch.cuda.device_count()} CUDA devices here"
        )
    only_measures = bool(config.get("measurement"))
    if only_measures:
        measuring.check(config, model, data)
    else:
        _try_layers(config, device)
    mixer = model.blocks[0].mixer
    facts = {
        "data": data.facts(),
        "device_kind": device_kind(device),
        **size.parameters(model),
        "flops_per_token": size.flops_per_token(model, context),
        "kv_bytes_per_token": model.state_size(),
        "tokens": 0 if only_measures else steps * accumulate * batch_size * context,
        "batch_tokens": accumulate * batch_size * context,
        "steps": 0 if only_measures else steps,
        "lr": None if only_measures else optim["lr"],
        "context": context,
        "dtype": str(trainer["precision"]),
        "kernel": getattr(mixer.kernel, "__name__", type(mixer.kernel).__name__)
        if isinstance(mixer, Attention)
        else "none",
        "device": device_kind(device),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _try_layers(config: Mapping[str, Any], device: str) -> None:
    """Runs every kind of layer once on a few tokens, backward where it will be trained here: a kernel that
    refuses does it now.
    """
    x = torch.zeros(2, 5, config["model"]["dim"])
    for mixer in mixer_configs(config):
        layer = make(mixer)
        try:
            with torch.set_grad_enabled(device == "cpu"):
                y = layer(x)
        except RuntimeError as error:
            raise ValueError(f"the parts of {mixer['_target_']} do not fit together: {error}") from error
        if y.shape != x.shape:
            raise ValueError(
                f"{mixer['_target_']} maps {tuple(x.shape)} to {tuple(y.shape)}: a mixer keeps the shape"
            )
        if y.requires_grad:
            y.sum().backward()


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


def train(folder: Path, spec: Mapping[str, Any], logger: Any) -> dict[str, Any]:
    """The run itself, up to its record on disk, which is returned; nothing here waits for the logger."""
    clock, config = time.perf_counter(), spec["config"]
    torch.manual_seed(config["seed"])
    facts = spec.get("figures") or check(config)
    data = make(config["data"])
    module: LanguageModel = make(config["optim"], model=build_model(config, data.task.vocab_size))
    checkpoint = callbacks.newest_checkpoint(folder)
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
        **QUIET,
        logger=logger,
        default_root_dir=str(folder),
        max_epochs=1,
        val_check_interval=min(config["measure"]["every"], facts["steps"]) * accumulate,
        plugins=[callbacks.AtomicCheckpointIO(), LightningEnvironment()],  # ranks are started by the worker
        callbacks=[
            curves,
            maps,
            callbacks.Heartbeat(folder / "progress.json"),
            callbacks.Checkpoints(folder, config["sweep"]["checkpoint_every"]),
        ],
    )
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
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


def measure(
    module: LanguageModel,
    data: Any,
    maps: callbacks.ProbeMaps,
    curves: callbacks.Curves,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """What is measured once the run has ended."""
    model, device = module.model, module.device
    memory = size.peak_memory(device)  # before the measurements below raise it
    batch = {
        key: value.to(device) for key, value in data.task.train_batch(data.seed, 0, data.batch_size).items()
    }
    cached = size.kv_bytes(model.eval(), batch["tokens"][:1])
    model.train()
    val = [value for _, _, name, value in curves.rows if name == "val/loss"]
    train = [value for _, _, name, value in curves.rows if name == "train/loss"]
    tokens_per_s = (
        curves.busy_steps * curves.batch_tokens / curves.busy_seconds if curves.busy_seconds else None
    )
    difference = maps.last.difference if maps.last else None
    by_position = module.validation["by_position"]
    by_length = length.losses(model, data.task, settings["lengths"], device, settings["trained"])
    return {
        "metrics": {
            "val/loss": module.validation["loss"],
            "val/best_loss": min(val),
            "train/loss": train[-1],
            **accuracy(module.validation, getattr(data.task, "conditions", ())),
            **{name: value for name, value in by_length.items() if value is not None},
        },
        "undefined": [name for name, value in by_length.items() if value is None],
        "censored": steps_to_solve(curves.rows, curves.rows[-1][0]),
        "by_position": {"val/loss": [None if math.isnan(value) else value for value in by_position]},
        "memory": {
            **cached,
            "saved_for_backward_bytes": size.saved_for_backward(lambda: module.losses(batch).mean(), model),
            **memory,
        },
        "speed": {"train_tokens_per_s": tokens_per_s},
        "kernels": {
            "max_abs_eager_fused": difference,
            "note": "maps are read with the eager kernel"
            if difference is not None
            else "no other kernel to compare with",
        },
        "head_scores": head_scores(model, probe_texts(next(iter(data.val_dataloader()))), data.task.length),
    }


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


def summary(record: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a record under the names that they have in the W&B summary."""
    found: dict[str, float] = {}
    for group in ("metrics", "memory", "budget", "speed"):
        for key, value in record.get(group, {}).items():
            if isinstance(value, int | float):
                found[key if group == "metrics" else f"{group}/{key}"] = value
    for name, table in record.get("head_scores", {}).items():
        if isinstance(table, list):  # [layer][head]
            values = [value for row in table for value in row]
            found |= {f"heads/{name}/mean": sum(values) / len(values), f"heads/{name}/max": max(values)}
    return found
