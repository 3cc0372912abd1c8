"""Checks and facts of a run before it starts."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from attnlab.attention.cache import create_layer_cache, create_layer_caches
from attnlab.attention.contracts import Capabilities, SharedTensors
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data_masks import make_batch_mask
from attnlab.data.data_module import DataModule
from attnlab.measure import attention_maps, length_generalization, resources, step_timing
from attnlab.measure.leakage import find_longest_prefix, load_first_batch
from attnlab.measure.measurement import is_shapes_only
from attnlab.measure.training_pass import get_weight_dtype
from attnlab.model.build import (
    build_model,
    get_device_kind,
    instantiate_config,
    list_mixer_configs,
    require_layer_per_patch,
    select_device,
)
from attnlab.model.finite_weights import require_finite_file
from attnlab.model.transformer import Transformer
from attnlab.store import config_groups, fingerprint, run_directories
from attnlab.store.guards import digests, parent_split
from attnlab.store.guards.undeclared_reads import UndeclaredReads
from attnlab.store.run_schema import Metric, index_by_name
from attnlab.store.safe_paths import is_plain_name
from attnlab.training import final_metrics, measurement_run, targets, trainer_settings
from attnlab.training.estimates import epoch_counts, training_memory
from attnlab.training.estimates.guessing_loss import compute_guessing_loss
from attnlab.training.language_model import LanguageModel
from attnlab.training.loggers import logger_group
from attnlab.training.validation import drawn_batches, memory_limits, signatures
from attnlab.training.validation.build_errors import convert_build_errors
from attnlab.training.warm_start import validate_parent_vocabulary


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a run config and return its facts without training: budget, data, metrics, memory.

    The keys of a sweep (`config_groups.SWEEP_GROUPS`) are validated before. Builds the data (and its cache),
    the model once on the meta device, and runs every kind of layer once on a small real input.

    Raises:
        ValueError: One line, if the run cannot work, or a part reads a file that no run id would cover.
    """
    training_memory.measure_import_memory()  # before any corpus is read
    with UndeclaredReads(config):
        return _collect_facts(config)


def _collect_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    _validate_config(config)
    with convert_build_errors("data"):
        data = instantiate_config(config["data"])
        if isinstance(data, DataModule):
            drawn_batches.validate_batches(data)
    length_generalization.validate_lengths(
        config["measure"]["lengths"], data.task, config["measure"]["trained"]
    )
    if config["parent"]:
        validate_parent_vocabulary(config, data)
        _validate_parent_split(config, data)
        _validate_parent_weights(config)
    epochs = epoch_counts.validate_epochs(config, data)
    module, model = _build_module(config, data)
    device = _select_device(config)
    device_memory = memory_limits.validate_model_memory(config, model, data.task.vocab_size, device)
    if (prefix := find_longest_prefix(model)) >= data.task.length:
        raise ValueError(
            f"model.attention.masks: a prefix of {prefix} tokens covers every target in windows of "
            f"{data.task.length}: lower its n, or raise data.length"
        )
    _require_compiler(config)
    if model.changes_with_length:
        model.require_equal_rows(make_batch_mask(load_first_batch(data, "cpu")))
    if not config.get("measurement"):
        with convert_build_errors("model.attention"):
            _try_layers(config, device)
    _validate_conditioning(config, model)
    device_kind = get_device_kind(device)
    facts = {
        "device_kind": device_kind,
        "device": device_kind,
        "device_memory_bytes": device_memory,
        "epochs": epochs,
        **_collect_budget(config, model, data.task.length),
        **(
            _collect_measurement_facts(config, model, data)
            if config.get("measurement")
            else _collect_training_facts(config, module, model, data, device)
        ),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _validate_conditioning(config: Mapping[str, Any], model: Transformer) -> None:
    """Raise ValueError for a norm of the output of `ExclusiveEpilogue`, in bfloat16.

    Where a token attends mainly to itself, that output is a small difference of large numbers, and the norm
    magnifies its rounding: to errors of the output's own size in bfloat16, at most 0.001 in float32.
    """
    is_magnified = any(
        block.mixer_after is not None and getattr(block.mixer, "passes_values", False)
        for block in model.blocks
    )
    if is_magnified and step_timing.is_bf16(config):
        raise ValueError(
            f"trainer.precision={config['trainer']['precision']}: a norm after attention (block=post, "
            "sandwich) magnifies the rounding of epilogue=exclusive: set trainer.precision=32-true or "
            "block=pre"
        )


def _validate_parent_split(config: Mapping[str, Any], data: Any) -> None:
    """Raise InvalidConfig if a finished parent may have been trained on this run's validation text."""
    name = str(config["parent"])
    folder = Path(config["paths"]["runs"]) / name
    result = run_directories.load_run_result(folder) if is_plain_name(name) else None
    if result is not None and result.is_done:
        parent_split.require_same_split(name, result.estimate.data, data.describe())


def _validate_parent_weights(config: Mapping[str, Any]) -> None:
    """Raise ValueError for NaN or infinite weights of a parent that has finished."""
    name = str(config["parent"])
    weights = Path(config["paths"]["runs"]) / name / digests.WEIGHTS_FILE
    if is_plain_name(name) and weights.is_file():
        try:
            require_finite_file(weights)
        except ValueError as error:
            raise ValueError(f"parent={name}: {error}") from error


def count_resource(config: Mapping[str, Any], name: str) -> float:
    """Return a resource that arms are matched by: parameters, flops_per_token or kv_bytes_per_token.

    The cheap part of `check`: only the model is built, on the meta device.
    """
    with UndeclaredReads(config):
        _validate_config(config)
        with convert_build_errors("data"):
            data = instantiate_config(config["data"])
        with convert_build_errors("model"), torch.device("meta"):
            model = build_model(config, data.task.vocab_size)
    if name == "flops_per_token":
        return resources.count_flops_per_token(model, data.task.length)
    return {**resources.count_parameters(model), "kv_bytes_per_token": model.state_size()}[name]


def _validate_config(config: Mapping[str, Any]) -> None:
    """Validate the config before anything is built."""
    config_groups.validate_groups(config, config_groups.TRAINING_GROUPS)
    config_groups.require_training_keys(config)
    targets.validate_targets(config)
    signatures.validate_signatures(config)
    trainer_settings.validate_settings(config)
    logger_group.validate_loggers(config["logger"])
    memory_limits.validate_data_memory(config)
    devices = config["trainer"]["devices"]
    batch_size = config["data"]["batch_size"]
    if batch_size % devices:
        raise ValueError(
            f"trainer.devices={devices} does not divide data.batch_size={batch_size}: change one of them"
        )
    patches = config["model"].get("layers") or []
    require_layer_per_patch(config)
    _require_removed_parts(config["model"])
    window = config["model"].get("window")
    if window is not None and all(
        window != value for patch in patches for _, value in fingerprint.flatten_config(patch)
    ):
        raise ValueError(
            f"model.window={window} has no effect, because no layer patch uses it: select layers that do, as "
            "in layers=local_global, or remove it with ~model.window"
        )
    if config.get("convert") and not config["parent"]:
        raise ValueError("convert applies to the weights of another run: set parent, or convert=null")


def _require_removed_parts(model: Mapping[str, Any]) -> None:
    """Raise ValueError if a patch of `model.layers` only removes parts that the mixer does not have."""
    mixer = OmegaConf.create(model.get("mixer") or model["attention"])
    for layer, patch in enumerate(model.get("layers") or []):
        values = dict(fingerprint.flatten_config(patch))
        if all(value is None and OmegaConf.select(mixer, key) is None for key, value in values.items()):
            raise ValueError(
                f"model.layers[{layer}] removes {' and '.join(values)}, which the layers do not have: select "
                "such a part, as position=rope does for rotary, or layers without this patch, as in "
                "layers=local_global"
            )


def _build_module(config: Mapping[str, Any], data: Any) -> tuple[Any, Transformer]:
    """Build the LightningModule and its model, both on the meta device."""
    with convert_build_errors("model"), torch.device("meta"):
        model = build_model(config, data.task.vocab_size)
    with convert_build_errors("optim"):
        module = instantiate_config(config["optim"], model=model)
        if isinstance(module, LanguageModel):
            module.optimizer(1)
    with convert_build_errors("decode"):
        _try_cache(config, model)
    return module, model.to(get_weight_dtype(config))


def _try_cache(config: Mapping[str, Any], model: Transformer) -> None:
    cache = (config.get("decode") or {}).get("cache")
    if cache:
        make_cache = instantiate_config(cache)
        create_layer_caches(make_cache, [block.mixer for block in model.blocks])
        _require_supported_cache(make_cache, model)


def _require_supported_cache(make_cache: Callable[..., Any], model: Transformer) -> None:
    """Raise ValueError if a layer needs tokens or attention weights that its cache does not have."""
    shared_window = None
    for n, block in enumerate(model.blocks):
        layer = block.mixer
        cache = create_layer_cache(make_cache, layer)
        if getattr(make_cache, "takes_layer", False) and isinstance(layer, Attention):
            window = Capabilities.from_part(layer.mask).visible_window
            if layer.writes_shared_kv:
                shared_window = window
            elif layer.reads_shared_kv and shared_window and not _is_covered(window, shared_window):
                raise ValueError(
                    f"model.layers: layer {n} reads keys that the cache of the layer with writes_shared_kv "
                    f"drops after {shared_window[0]} tokens: use decode=dynamic, or the same window in both"
                )
        capabilities = Capabilities.from_part(cache)
        if "weights" in capabilities.needs and getattr(layer, "reads_shared_kv", False):
            raise ValueError(
                f"{type(cache).__name__} evicts tokens by attention weights, and a layer that reads shared "
                "keys has no tokens to evict: use layers=uniform or another cache"
            )
        if capabilities.leaves_gaps and isinstance(layer, Attention) and layer.query_lookback:
            raise ValueError(
                f"{type(layer.score_map).__name__} mixes scores of adjacent tokens, and "
                f"{type(cache).__name__} drops tokens between others: use another cache or score"
            )


def _is_covered(window: tuple[int, int] | None, other: tuple[int, int]) -> bool:
    """Whether every key in a window (size, keep) is in the other; None is no window."""
    return window is not None and window[0] <= other[0] and window[1] <= other[1]


def _select_device(config: Mapping[str, Any]) -> str:
    """Return "cpu" or "cuda"."""
    device = select_device(config)
    devices = config["trainer"]["devices"]
    if device == "cuda" and devices > torch.cuda.device_count():
        raise ValueError(
            f"trainer.devices={devices}, but this machine has only {torch.cuda.device_count()} CUDA devices:"
            " lower trainer.devices"
        )
    return device


def _require_compiler(config: Mapping[str, Any]) -> None:
    """Check that torch.compile finds a C++ compiler, which it needs on a GPU too.

    Raises:
        ValueError: The config compiles, and there is none.
    """
    candidates = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++"]
    if config["optim"].get("compile") and not any(map(shutil.which, candidates)):
        raise ValueError(
            f"optim.compile=true needs a C++ compiler, and {' or '.join(candidates)} is not installed: "
            "install g++, or set optim.compile=false"
        )


def _collect_budget(config: Mapping[str, Any], model: Transformer, context: int) -> dict[str, Any]:
    """Return the budget: cost of the model, and amount of training. `model` lives on the meta device."""
    trainer = config["trainer"]
    mixer = model.blocks[0].mixer
    batch_tokens = trainer["accumulate_grad_batches"] * config["data"]["batch_size"] * context
    training = {"steps": 0, "tokens": 0, "lr": None}
    if not config.get("measurement"):
        steps = trainer["max_steps"]
        training = {"steps": steps, "tokens": steps * batch_tokens, "lr": config["optim"]["lr"]}
    return {
        **resources.count_parameters(model),
        "flops_per_token": resources.count_flops_per_token(model, context),
        "kv_bytes_per_token": model.state_size(),
        "batch_tokens": batch_tokens,
        **training,
        "context": context,
        "dtype": str(trainer["precision"]),
        "kernel": getattr(mixer.kernel, "__name__", type(mixer.kernel).__name__)
        if isinstance(mixer, Attention)
        else "none",
    }


def _collect_measurement_facts(config: Mapping[str, Any], model: Transformer, data: Any) -> dict[str, Any]:
    """Return the facts of a measurement run, without validation data if it only reads shapes."""
    with convert_build_errors("measurement"):
        measurement = measurement_run.build_checked_measurement(config, model, data)
        make_cache = getattr(measurement, "make_cache", None)
        if make_cache and not is_shapes_only(measurement):
            _require_supported_cache(make_cache, model)
    metrics = getattr(measurement, "metrics", None)  # None: unknown in advance
    omitted_keys = ("validation", "val_text") if is_shapes_only(measurement) else ()
    return {
        "data": {key: value for key, value in data.describe().items() if key not in omitted_keys},
        **_describe_metrics(index_by_name(*(metrics or ())) | resources.MEMORY_METRICS),
        **({"metric_names": None} if metrics is None else {}),
    }


def _describe_metrics(metrics: dict[str, Metric]) -> dict[str, Any]:
    definitions = {name: asdict(metric) for name, metric in (resources.BUDGET_METRICS | metrics).items()}
    return {"metric_definitions": definitions, "metric_names": [*metrics]}


def _collect_training_facts(
    config: Mapping[str, Any], module: Any, model: Transformer, data: Any, device: str
) -> dict[str, Any]:
    """Return the facts of a training run: data, metrics, digests of the measuring code, and peak memory.

    `module` and its `model` are unusable afterwards.
    """
    with convert_build_errors("model.attention"):
        attention_maps.validate_head_counts(model)
    metrics = final_metrics.define_metrics(data.task, model, config["measure"])
    if config["measure"].get("timing", True):
        metrics |= step_timing.TIME_METRICS
    shared_steps = None
    if isinstance(module, LanguageModel):
        shared_steps = module.schedule.find_decay_start(module.warmup, config["trainer"]["max_steps"])
    return {
        "shared_steps": shared_steps,
        "data": data.describe() | ({} if data.task.train_tokens else _describe_guess(data)),
        **_describe_metrics(metrics),
        "measured_by": final_metrics.hash_measuring_code(
            {name: part.modules for name, part in final_metrics.MEASURED_PARTS.items()}
        ),
        "observed_by": final_metrics.hash_measuring_code(final_metrics.OBSERVED_PARTS),
        "memory_bytes": training_memory.estimate_peak_memory(
            config, module, data, "cuda" if memory_limits.get_planned_device(config) else device
        ),
    }


def _describe_guess(data: Any) -> dict[str, float]:
    """Return the loss of a guess on generated data, to six digits."""
    loss = compute_guessing_loss(data.val_dataloader(), data.task.vocab_size)
    return {} if loss is None else {"guessing_loss": float(f"{loss:.6g}")}


def _try_layers(config: Mapping[str, Any], device: str) -> None:
    """Run every kind of layer once on a few tokens, with backward if trained here, so kernels fail early."""
    x = torch.zeros(2, 5, config["model"]["dim"])
    shared_tensors = SharedTensors()
    for mixer in list_mixer_configs(config):
        layer = instantiate_config(mixer)
        capabilities = Capabilities.from_part(layer)
        shares = bool(capabilities.reads_shared or capabilities.writes_shared)
        try:
            with torch.set_grad_enabled(device == "cpu"):
                y = layer(x, shared_tensors=shared_tensors) if shares else layer(x)
        except RuntimeError as error:
            if "keys" in capabilities.reads_shared:
                raise ValueError(
                    "model.layers: layers with shared keys and values read those of grouped heads, and the "
                    f"selected heads store others: use heads=mha, gqa, mqa, single or tied_qkv ({error})"
                ) from error
            raise ValueError(f"the parts of {mixer['_target_']} are incompatible: {error}") from error
        if y.shape != x.shape:
            raise ValueError(
                f"{mixer['_target_']} maps {tuple(x.shape)} to {tuple(y.shape)}: a mixer must preserve "
                "the shape"
            )
        if y.requires_grad:
            y.sum().backward(retain_graph=shares)  # the next layer reads its shared tensors
