"""Bytes, FLOPs and a lower bound of the time of serving a model, at a length and a batch."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.inference_cost.devices import DEVICES, Device
from attnlab.inference_cost.layer_costs import LayerCost, ModelCost


@dataclass(frozen=True)
class CacheFormat:
    """How numbers are cached.

    Attributes:
        bits: Of a number.
        group: Consecutive numbers of a token's tensor that share a 16-bit scale and zero point, if any do.
        bytes_per_tensor: Of a scale that a whole tensor shares.
    """

    bits: int
    group: int | None = None
    bytes_per_tensor: int = 0

    def count_token_bytes(self, width: int) -> int:
        """Bytes of `width` numbers of a token."""
        groups = 0 if self.group is None else -(-width // self.group)
        return -(-width * self.bits // 8) + 4 * groups


WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
CACHE_FORMATS = {
    "fp32": CacheFormat(32),
    "bf16": CacheFormat(16),
    "fp16": CacheFormat(16),
    "fp8": CacheFormat(8, bytes_per_tensor=4),
    "int8": CacheFormat(8, group=64),
    "int4": CacheFormat(4, group=64),
}

Value = TypeVar("Value")


@dataclass(frozen=True)
class Serving:
    """Where and how a model is served.

    Attributes:
        length: Tokens of each sequence that are cached.
        dtype: Of the weights, a key of `WEIGHT_BYTES`.
        kv_dtype: Of the cache, a key of `CACHE_FORMATS`.
        device: A key of `DEVICES`.
    """

    length: int
    batch: int
    dtype: str
    kv_dtype: str
    device: str | None


@dataclass(frozen=True)
class Costs:
    """Costs of layers or of a model.

    FLOPs are those of matrix products; a multiplication and an addition count as two.

    Attributes:
        cache_bytes_per_token: Of a sequence that is shorter than the window.
        state_bytes: Of a sequence of any length.
        cache_bytes: Of the whole batch at its length, states included.
        prefill_flops: Of prompts of this length; the output head computes the last token's logits alone.
        decode_flops, decode_bytes: Of one step, a token for each sequence of the batch. Bytes are the weights
            that one token needs, and the caches, each read once.
        intensity: FLOPs per byte of a decoding step.
        minimum_ms: Of a decoding step, if bandwidth or arithmetic alone limited it; None without a device.
    """

    cache_bytes_per_token: int
    state_bytes: int
    cache_bytes: int
    prefill_flops: int
    decode_flops: int
    decode_bytes: int
    intensity: float
    minimum_ms: float | None


@dataclass(frozen=True)
class LayerRow(Costs):
    """Layers of one kind and size: their count, and the costs of all of them together."""

    kind: str
    window: int | None
    count: int
    parameters: int


@dataclass(frozen=True)
class ServingCost(Costs):
    """Costs of a model.

    Attributes:
        largest_batch: Sequences of this length that fit beside the weights, 0 if the weights alone do not
            fit; None without a device, or if a sequence needs no memory.
        transformers_repeats: How many times `transformers` caches each key and value.
        quantization: Format of the checkpoint's weights if they are quantized; costs are those of the dtype.
    """

    parameters: int
    active_parameters: int
    weight_bytes: int
    layers: tuple[LayerRow, ...]
    largest_batch: int | None
    transformers_repeats: int
    quantization: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def compute_serving_cost(model: ModelCost, serving: Serving) -> ServingCost:
    """Costs of a model as it is served.

    Raises:
        InvalidConfig: The model has no positions for this length.
    """
    if model.max_length is not None and serving.length >= model.max_length:
        raise InvalidConfig(
            f"--length {serving.length}: the model has {model.max_length:,} learned positions, so at most "
            f"{model.max_length - 1:,} cached tokens"
        )
    device = None if serving.device is None else DEVICES[serving.device]
    weight_bytes = WEIGHT_BYTES[serving.dtype]
    rows = tuple(_build_row(layer, count, serving, device) for layer, count in Counter(model.layers).items())
    cache = sum(row.cache_bytes for row in rows)
    scales = sum(_count_scale_bytes(layer, serving) for layer in model.layers)
    active = sum(layer.active_parameters for layer in model.layers) + model.other_parameters
    outside = model.other_parameters - model.lookup_parameters  # of a table a token reads one row
    decode_bytes = sum(row.decode_bytes for row in rows) + outside * weight_bytes
    decode_flops = sum(row.decode_flops for row in rows)
    decode_flops += serving.batch * (model.head_flops + model.other_flops)
    prefill_flops = sum(row.prefill_flops for row in rows)
    prefill_flops += serving.batch * (model.head_flops + serving.length * model.other_flops)
    weights = model.parameters * weight_bytes
    per_sequence = (cache - scales) // serving.batch
    largest = None
    if device is not None and per_sequence:
        largest = max(0, int(device.memory - weights - scales) // per_sequence)
    return ServingCost(
        parameters=model.parameters,
        active_parameters=active,
        weight_bytes=weights,
        layers=rows,
        cache_bytes_per_token=sum(row.cache_bytes_per_token for row in rows),
        state_bytes=sum(row.state_bytes for row in rows),
        cache_bytes=cache,
        prefill_flops=prefill_flops,
        decode_flops=decode_flops,
        decode_bytes=decode_bytes,
        intensity=decode_flops / decode_bytes,
        minimum_ms=_compute_minimum_ms(decode_bytes, decode_flops, device),
        largest_batch=largest,
        transformers_repeats=model.transformers_repeats,
        quantization=model.quantization,
    )


def _build_row(layer: LayerCost, count: int, serving: Serving, device: Device | None) -> LayerRow:
    batch, length = serving.batch, serving.length
    cached_tokens = layer.count_cached_tokens(length)
    per_token = _count_token_bytes(layer.cached_widths, layer, serving)
    read_per_token = _count_token_bytes(layer.read_widths, layer, serving)
    scales = _count_scale_bytes(layer, serving)
    decode_bytes = count * (
        layer.active_parameters * WEIGHT_BYTES[serving.dtype]
        + batch * (read_per_token * cached_tokens + layer.state_bytes)
        + scales
    )
    decode_flops = count * batch * (
        layer.decode_flops + layer.decode_flops_per_key * layer.count_keys(length)
    )  # fmt: skip
    prefill_flops = count * batch * (
        layer.prefill_flops * length + layer.prefill_flops_per_key * layer.sum_prefill_keys(length)
    )  # fmt: skip
    return LayerRow(
        kind=layer.kind,
        window=layer.window,
        count=count,
        parameters=count * layer.parameters,
        cache_bytes_per_token=count * per_token,
        state_bytes=count * layer.state_bytes,
        cache_bytes=count * (batch * (per_token * cached_tokens + layer.state_bytes) + scales),
        prefill_flops=prefill_flops,
        decode_flops=decode_flops,
        decode_bytes=decode_bytes,
        intensity=decode_flops / decode_bytes,
        minimum_ms=_compute_minimum_ms(decode_bytes, decode_flops, device),
    )


def _count_token_bytes(widths: tuple[int, ...], layer: LayerCost, serving: Serving) -> int:
    kv_format = CACHE_FORMATS[serving.kv_dtype]
    return sum(map(kv_format.count_token_bytes, widths)) + layer.fixed_bytes_per_token


def _count_scale_bytes(layer: LayerCost, serving: Serving) -> int:
    return len(layer.cached_widths) * CACHE_FORMATS[serving.kv_dtype].bytes_per_tensor


def _compute_minimum_ms(n_bytes: int, flops: int, device: Device | None) -> float | None:
    """The roofline of Williams et al. 2009: neither bandwidth nor arithmetic is exceeded."""
    if device is None:
        return None
    return 1e3 * max(n_bytes / device.bandwidth, flops / device.flops)


def require_choice(flag: str, name: str, known: Mapping[str, Value]) -> str:
    """The name, if it is a key of `known`."""
    if name not in known:
        raise InvalidConfig(
            f"{flag} {name}: must be one of {', '.join(known)}{format_suggestions(name, known)}"
        )
    return name
