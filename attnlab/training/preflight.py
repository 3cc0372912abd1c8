"""What can be known about a run before it starts."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from attnlab.attention.cache import new_caches
from attnlab.attention.contracts import Capabilities, Channel
from attnlab.attention.layer import Attention
from attnlab.measure import length, maps, size, timing
from attnlab.measure.leakage import longest_prefix
from attnlab.measure.measurement import length_names, on_paper
from attnlab.model.build import WEIGHTS, build_model, device_kind, device_of, make, mixer_configs
from attnlab.model.transformer import Transformer
from attnlab.store import values
from attnlab.training import end, measuring, settings, targets
from attnlab.training.estimates import epochs, memory
from attnlab.training.loggers import group
from attnlab.training.module import LanguageModel
from attnlab.training.parent import check_vocabulary
from attnlab.training.refusals import signatures, sizes
from attnlab.training.refusals.building import building


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything about a run that can be known without training it. ValueError, one line, where it cannot
    run. Keys of a sweep (`values.SWEEP`) are valid already.

    Builds the data (and its cache), the model once, on the meta device, and one small real pass through every
    kind of layer.
    """
    memory.imported()  # before a text is read
    _validate(config)
    with building("data"):
        data = make(config["data"])
    length.check(config["measure"]["lengths"], data.task, config["measure"]["trained"])
    if config["parent"]:
        check_vocabulary(config, data)
    often = epochs.check(config, data)
    module, model = _build(config, data)
    device = _device(config)
    room = sizes.check_model(config, model, data.task.vocab_size, device)
    if (prefix := longest_prefix(model)) >= data.task.length:
        raise ValueError(
            f"model.attention.masks: a prefix of {prefix} tokens leaves no target outside it in windows of "
            f"{data.task.length}: lower its n, or raise data.length"
        )
    kind = device_kind(device)
    facts = {
        "device_kind": kind,
        "device": kind,
        "room_bytes": room,
        "epochs": often,
        **_sizes(config, model, data.task.length),
        **(
            _measurement(config, model, data)
            if config.get("measurement")
            else _training(config, module, model, data, device)
        ),
    }
    return {key: value for key, value in facts.items() if value is not None}


def count_resource(config: Mapping[str, Any], name: str) -> float:
    """A resource that arms are matched by: parameters, flops_per_token or kv_bytes_per_token. ValueError as
    from `check`, of which this is the cheap part: the model alone is built, on the meta device.
    """
    _validate(config)
    with building("data"):
        data = make(config["data"])
    with building("model"), torch.device("meta"):
        model = build_model(config, data.task.vocab_size)
    if name == "flops_per_token":
        return size.flops_per_token(model, data.task.length)
    return {**size.parameters(model), "kv_bytes_per_token": model.state_size()}[name]


def _validate(config: Mapping[str, Any]) -> None:
    """ValueError, one line, for the first key that has a wrong value, before anything is built."""
    values.refuse(config, values.TRAINING)
    targets.check(config)
    signatures.check(config)
    settings.check(config)
    group.validate(config["logger"])
    sizes.check_data(config)
    devices = config["trainer"]["devices"]
    batch_size = config["data"]["batch_size"]
    if batch_size % devices:
        raise ValueError(
            f"trainer.devices={devices}: give a whole number that divides data.batch_size={batch_size}"
        )
    patches = len(config["model"].get("layers") or [])
    layers = config["model"]["n_layers"]
    if patches > layers:
        raise ValueError(
            f"model.layers has {patches} patches for {layers} layers, so some say nothing: raise "
            "model.n_layers, or leave some out"
        )
    if config.get("convert") and not config["parent"]:
        raise ValueError("convert is for the weights of another run: set parent, or convert=null")


def _build(config: Mapping[str, Any], data: Any) -> tuple[Any, Transformer]:
    """The module that trains and its model, on the meta device."""
    with building("model"), torch.device("meta"):
        model = build_model(config, data.task.vocab_size)
    with building("optim"):
        module = make(config["optim"], model=model)
        if isinstance(module, LanguageModel):
            module.optimizer(1)
    with building("decode"):
        _try_cache(config, model)
    return module, model.to(WEIGHTS.get(config["trainer"]["precision"], torch.float32))


def _try_cache(config: Mapping[str, Any], model: Transformer) -> None:
    cache = (config.get("decode") or {}).get("cache")
    if cache:
        new_caches(make(cache), [block.mixer for block in model.blocks])


def _device(config: Mapping[str, Any]) -> str:
    """ "cpu" or "cuda"; ValueError where there are fewer devices than the run asks for."""
    device = device_of(config)
    devices = config["trainer"]["devices"]
    if device == "cuda" and devices > torch.cuda.device_count():
        raise ValueError(
            f"trainer.devices={devices}: there are {torch.cuda.device_count()} CUDA devices here"
        )
    return device


def _sizes(config: Mapping[str, Any], model: Transformer, context: int) -> dict[str, Any]:
    """The budget: what the model costs, and what it will be trained on. `model` lives on the meta device."""
    trainer = config["trainer"]
    mixer = model.blocks[0].mixer
    batch_tokens = trainer["accumulate_grad_batches"] * config["data"]["batch_size"] * context
    trained = {"steps": 0, "tokens": 0, "lr": None}
    if not config.get("measurement"):
        steps = trainer["max_steps"]
        trained = {"steps": steps, "tokens": steps * batch_tokens, "lr": config["optim"]["lr"]}
    return {
        **size.parameters(model),
        "flops_per_token": size.flops_per_token(model, context),
        "kv_bytes_per_token": model.state_size(),
        "batch_tokens": batch_tokens,
        **trained,
        "context": context,
        "dtype": str(trainer["precision"]),
        "kernel": getattr(mixer.kernel, "__name__", type(mixer.kernel).__name__)
        if isinstance(mixer, Attention)
        else "none",
    }


def _measurement(config: Mapping[str, Any], model: Transformer, data: Any) -> dict[str, Any]:
    """Facts of a run that only measures. Without its validation data where it only looks at shapes."""
    with building("measurement"):
        measurement = measuring.check(config, model, data)
    left_out = ("validation", "val_text") if on_paper(measurement) else ()
    return {
        "data": {key: value for key, value in data.facts().items() if key not in left_out},
        "declared": {name: asdict(metric) for name, metric in size.BUDGET.items()},
        "figures": measuring.figures(measurement),
    }


def _training(
    config: Mapping[str, Any], module: Any, model: Transformer, data: Any, device: str
) -> dict[str, Any]:
    """Facts of a run that trains: what it takes, what it will measure, and the digests of the code that
    measures it. `module` and its `model` are of no use afterwards.
    """
    with building("model.attention"):
        _try_layers(config, device)
        maps.check(model)
    expected = end.expected(data.task)
    timed = timing.TIMES if config["measure"].get("timing", True) else {}
    lengths = length_names(config["measure"]["lengths"])
    return {
        "data": data.facts(),
        "declared": {name: asdict(metric) for name, metric in (size.BUDGET | expected).items()},
        "figures": [*expected, *lengths, *size.MEMORY, size.THROUGHPUT.name, *timed],
        "measured_by": end.digests(end.MEASURED),
        "observed_by": end.digests(end.OBSERVED),
        "memory_bytes": memory.peak(config, module, data, "cuda" if sizes.elsewhere(config) else device),
    }


def _try_layers(config: Mapping[str, Any], device: str) -> None:
    """Runs every kind of layer once on a few tokens, backward where it will be trained here: a kernel that
    refuses does it now.
    """
    x = torch.zeros(2, 5, config["model"]["dim"])
    channel = Channel()
    for mixer in mixer_configs(config):
        layer = make(mixer)
        declared = Capabilities.of(layer)
        shares = bool(declared.reads or declared.publishes)
        try:
            with torch.set_grad_enabled(device == "cpu"):
                y = layer(x, channel=channel) if shares else layer(x)
        except RuntimeError as error:
            raise ValueError(f"the parts of {mixer['_target_']} do not fit together: {error}") from error
        if y.shape != x.shape:
            raise ValueError(
                f"{mixer['_target_']} maps {tuple(x.shape)} to {tuple(y.shape)}: a mixer keeps the shape"
            )
        if y.requires_grad:
            y.sum().backward(retain_graph=shares)  # what it published is read by the next one
