"""What can be known about a run before it starts."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from attnlab.attention.layer import Attention
from attnlab.measure import length, size
from attnlab.model.build import WEIGHTS, build_model, device_kind, device_of, make, mixer_configs
from attnlab.training import end, measuring, settings, targets


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything about a run that can be known without training it. ValueError, one line, where it cannot
    run.

    Builds the data (and its cache), the model on the meta device, and one small real pass through every
    kind of layer.
    """
    targets.check(config)
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
    settings.check(config)
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
    declared = size.BUDGET | ({} if only_measures else end.expected(data.task))
    facts = {
        "data": data.facts(),
        "declared": {name: asdict(metric) for name, metric in declared.items()},
        "measured_by": {} if only_measures else end.digests(end.MEASURED),
        "observed_by": {} if only_measures else end.digests(end.OBSERVED),
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
