"""Bytes, FLOPs and a lower bound of the time of serving a model, at a length and a batch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.inference_cost.devices import DEVICES, Device
from attnlab.inference_cost.layer_costs import LayerCost, ModelCost, count_model_cost
from attnlab.model.huggingface.families import FAMILIES
from attnlab.model.huggingface.families.read_config import (
    convert_config_to_ours,
    find_family,
    validate_fixed_keys,
)

NUMBER_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}

Value = TypeVar("Value")


@dataclass(frozen=True)
class Serving:
    """Where and how a model is served.

    Attributes:
        length: Tokens of each sequence that are cached.
        weight_bytes, cache_bytes: Bytes of a number.
    """

    length: int
    batch: int
    weight_bytes: float
    cache_bytes: float
    device: Device | None


@dataclass(frozen=True)
class LayerRow:
    """Layers of one kind and size: their count, and the costs of all of them together.

    Attributes:
        cache_bytes_per_token: Of a sequence that is shorter than the window.
        cache_bytes: Of the whole batch at its length.
    """

    kind: str
    window: int | None
    count: int
    parameters: int
    cache_bytes_per_token: float
    cache_bytes: float
    decode_flops: int
    prefill_flops: int


@dataclass(frozen=True)
class ServingCost:
    """Costs of a model. FLOPs count a multiplication and an addition as two.

    Attributes:
        decode_flops, decode_bytes: Of one step, a token for each sequence of the batch. Bytes are the weights
            that at least one token needs, once, and the caches.
        prefill_flops: Of prompts of this length; the output head computes the last token's logits alone.
        intensity: FLOPs per byte of a decoding step.
        minimum_ms: Of a decoding step, if bandwidth or arithmetic alone limited it; None without a device.
        largest_batch: Sequences of this length that fit beside the weights; None without a device.
    """

    parameters: int
    active_parameters: int
    weight_bytes: float
    layers: tuple[LayerRow, ...]
    cache_bytes_per_token: float
    cache_bytes: float
    decode_flops: int
    decode_bytes: float
    prefill_flops: int
    intensity: float
    minimum_ms: float | None
    largest_batch: int | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def load_model_cost(path: Path) -> ModelCost:
    """Count the model of a config.json, or of a folder that has one.

    Raises:
        InvalidConfig: The config cannot be read exactly; in one line, with its key.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        theirs = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InvalidConfig(f"{file}: {error.strerror}: give a config.json or its folder") from error
    except ValueError as error:
        raise InvalidConfig(f"{file}: not JSON: {error}") from error
    if not isinstance(theirs, dict):
        raise InvalidConfig(f"{file}: not a mapping of keys to values")
    try:
        family = find_family(theirs, FAMILIES)
        validate_fixed_keys(family, theirs)
        return count_model_cost(convert_config_to_ours(family, theirs, complete=True), theirs["vocab_size"])
    except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        raise InvalidConfig(f"{file}: {error}") from error


def compute_serving_cost(model: ModelCost, serving: Serving) -> ServingCost:
    """Costs of a model as it is served."""
    rows = _group_layers(model.layers, serving)
    cache = sum(row.cache_bytes for row in rows)
    head = 2 * model.head_products
    active = sum(layer.active_parameters for layer in model.layers) + model.other_parameters
    decode_flops = sum(row.decode_flops for row in rows) + serving.batch * head
    read_weights = active - model.lookup_parameters  # of a table a token reads one row
    decode_bytes = read_weights * serving.weight_bytes + cache
    weights = model.parameters * serving.weight_bytes
    device = serving.device
    return ServingCost(
        parameters=model.parameters,
        active_parameters=active,
        weight_bytes=weights,
        layers=rows,
        cache_bytes_per_token=sum(row.cache_bytes_per_token for row in rows),
        cache_bytes=cache,
        decode_flops=decode_flops,
        decode_bytes=decode_bytes,
        prefill_flops=sum(row.prefill_flops for row in rows) + serving.batch * head,
        intensity=decode_flops / decode_bytes,
        minimum_ms=device and 1e3 * max(decode_bytes / device.bandwidth, decode_flops / device.flops),
        largest_batch=device and max(0, int((device.memory - weights) // (cache / serving.batch))),
    )


def _group_layers(layers: tuple[LayerCost, ...], serving: Serving) -> tuple[LayerRow, ...]:
    counts: dict[LayerCost, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(_build_row(layer, count, serving) for layer, count in counts.items())


def _build_row(layer: LayerCost, count: int, serving: Serving) -> LayerRow:
    batch, length = serving.batch, serving.length
    per_token = count * layer.cached_numbers * serving.cache_bytes
    linear = 2 * layer.weight_products
    return LayerRow(
        layer.kind, layer.window, count, count * layer.parameters, per_token,
        batch * per_token * layer.count_cached_tokens(length),
        count * batch * (linear + layer.decode_flops_per_key * layer.count_keys(length)),
        count * batch * (linear * length + layer.prefill_flops_per_key * layer.sum_prefill_keys(length)),
    )  # fmt: skip


def parse_number_format(flag: str, name: str) -> float:
    """Bytes of a number of a format.

    Raises:
        InvalidConfig: The format is not known.
    """
    return _look_up(flag, name, NUMBER_BYTES)


def parse_device(name: str) -> Device:
    """A device by its name.

    Raises:
        InvalidConfig: The device is not known.
    """
    return _look_up("--device", name, DEVICES)


def _look_up(flag: str, name: str, known: Mapping[str, Value]) -> Value:
    if name not in known:
        raise InvalidConfig(
            f"{flag} {name}: must be one of {', '.join(known)}{format_suggestions(name, known)}"
        )
    return known[name]
