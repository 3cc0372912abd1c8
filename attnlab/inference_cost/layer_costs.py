"""Parameters, cached numbers and FLOPs of every layer, from our `model` config.

All are exact counts of the config's tensors, and tests require them to equal those of the built model. A part
without a formula here is refused by its key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Config = dict[str, Any]

ATTENTION_KEYS = {
    "_target_", "heads", "kernel", "masks", "scale_exponent", "multiplier", "rotary", "scores", "epilogue",
    "dropout",
}  # fmt: skip
SCORES_WITHOUT_PARAMETERS = {"alibi", "coarsealibi", "softcap"}
MASKS = {"causal", "window"}


@dataclass(frozen=True)
class LayerCost:
    """One layer: attention, FFN and norms.

    Attributes:
        kind: As in the table of the command: "full", "sliding window", "latent", "shared K/V", ...
        window: Tokens that a query sees, itself included; None sees all.
        parameters: All of the layer.
        active_parameters: Those that one token uses: the chosen experts only.
        decode_flops, prefill_flops: FLOPs of a token, apart from those per key.
        decode_flops_per_key, prefill_flops_per_key: FLOPs of a query with one key, over all heads.
        cached_widths: Numbers per token of each cached tensor, such as keys and values.
        read_widths: The same of the tensors that a query reads, which an earlier layer may have cached.
        fixed_bytes_per_token: Bytes per token that are cached in float32 in any format of the cache.
        state_bytes: Bytes per sequence, whatever its length.
    """

    kind: str
    window: int | None
    parameters: int
    active_parameters: int
    decode_flops: int
    prefill_flops: int
    decode_flops_per_key: int
    prefill_flops_per_key: int
    cached_widths: tuple[int, ...]
    read_widths: tuple[int, ...]
    fixed_bytes_per_token: int = 0
    state_bytes: int = 0

    def count_keys(self, length: int) -> int:
        """Keys that the next query sees after `length` tokens, itself included."""
        return length + 1 if self.window is None else min(length + 1, self.window)

    def count_cached_tokens(self, length: int) -> int:
        """Tokens whose keys and values the next query needs, after `length` tokens."""
        return self.count_keys(length) - 1

    def sum_prefill_keys(self, length: int) -> int:
        """Keys that the queries of a prompt see, summed over its tokens."""
        full = length * (length + 1) // 2
        outside = 0 if self.window is None else max(0, length - self.window)
        return full - outside * (outside + 1) // 2


@dataclass(frozen=True)
class ModelCost:
    """All layers, and the parts outside them: embedding, positions, last norm and output head.

    Attributes:
        other_parameters: Of the parts outside layers.
        head_flops: FLOPs of a token with the output head.
        other_flops: FLOPs of a token with further parts outside layers.
        lookup_parameters: Of tables of which a token reads one row: embeddings, unless tied with the head.
        max_length: Tokens for which the model has positions; None has no limit.
        transformers_repeats: How many times `transformers` caches each key and value.
        quantization: Format of the checkpoint's weights if they are quantized, which the costs leave out.
    """

    layers: tuple[LayerCost, ...]
    other_parameters: int
    head_flops: int
    lookup_parameters: int
    other_flops: int = 0
    max_length: int | None = None
    transformers_repeats: int = 1
    quantization: str | None = None

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers) + self.other_parameters


def count_model_cost(config: Config, vocab_size: int) -> ModelCost:
    """Count a model from our config.

    Raises:
        ValueError: A part has no formula; the message names its key.
    """
    dim, n_layers = config["dim"], config["n_layers"]
    patches = config.get("layers") or [{}]
    if unknown := [key for key in ("values", "residual", "parametrization", "mixer") if config.get(key)]:
        raise ValueError(f"model.{unknown[0]} has no cost formula")
    layers = [
        _count_layer(config, _merge(config["attention"], patches[layer % len(patches)]))
        for layer in range(n_layers)
    ]
    embedding = vocab_size * dim
    positions = _count_positions(config)
    head = 0 if config["tie"] else embedding
    norm = _count_norm(config["norm"], dim)
    lookup = positions + (0 if config["tie"] else embedding)
    max_length = config["positions"]["length"] if config.get("positions") else None
    others = embedding + positions + head + norm
    return ModelCost(tuple(layers), others, 2 * embedding, lookup, max_length=max_length)


def _count_layer(config: Config, mixer: Config) -> LayerCost:
    dim = config["dim"]
    if unknown := [key for key, part in mixer.items() if part and key not in ATTENTION_KEYS]:
        raise ValueError(f"model.attention.{unknown[0]} has no cost formula")
    for key, known in (("scores", SCORES_WITHOUT_PARAMETERS), ("masks", MASKS)):
        if unknown := [name for name, part in (mixer.get(key) or {}).items() if part and name not in known]:
            raise ValueError(f"model.attention.{key}.{unknown[0]} has no cost formula")
    heads = _count_heads(mixer["heads"], dim)
    sinks = _count_epilogue(mixer.get("epilogue"))
    ffn, active_ffn, ffn_products = _count_ffn(config["ffn"], dim, config["ffn_width"], config["bias"])
    norms = _count_block_norms(config.get("block") or {}) * _count_norm(config["norm"], dim)
    shared = heads.parameters + sinks + norms
    window = ((mixer.get("masks") or {}).get("window") or {}).get("size")
    is_latent = mixer["heads"]["_target_"].endswith("LatentHeads")
    kind = "latent" if is_latent else "full" if window is None else "sliding window"
    linear = 2 * (heads.products + ffn_products)
    return LayerCost(
        kind, window, shared + ffn, shared + active_ffn, linear, linear,
        heads.decode_flops_per_key, heads.prefill_flops_per_key, heads.cached_widths, heads.cached_widths,
    )  # fmt: skip


class _HeadsCost(NamedTuple):
    """`products` are the multiplications of a token with matrices."""

    parameters: int
    products: int
    cached_widths: tuple[int, ...]
    decode_flops_per_key: int
    prefill_flops_per_key: int


def _count_heads(heads: Config, dim: int) -> _HeadsCost:
    name = heads["_target_"].rpartition(".")[2]
    n, bias = heads["n_heads"], heads.get("bias", False)
    out_bias = dim * heads.get("out_bias", False)
    if name == "LatentHeads":
        rank, width, rope = heads["rank"], heads["head_dim"], heads["rope_dim"]
        value_width = heads.get("value_dim") or width
        q_rank, q_width = heads.get("q_rank"), n * (width + rope)
        down = (q_rank or q_width) + rank + rope
        up = rank * n * (width + value_width)
        q_up = q_rank * q_width if q_rank else 0
        products = dim * down + q_up + up + n * value_width * dim
        return _HeadsCost(
            products + down * bias + out_bias + rank + (q_rank or 0),
            products,
            (rank, rope),
            2 * n * (2 * rank + rope),
            2 * n * (width + rope + value_width),
        )
    if name not in ("GroupedHeads", "DifferentialHeads"):
        raise ValueError(f"model.attention.heads ({name}) has no cost formula")
    if unknown := [key for key in ("tied", "convolution", "value_residual", "key_offset") if heads.get(key)]:
        raise ValueError(f"model.attention.heads.{unknown[0]} has no cost formula")
    kv, width = heads["n_kv_heads"], heads.get("head_dim") or dim // n
    if n % kv or (not heads.get("head_dim") and dim % n):
        raise ValueError(f"{kv} KV heads do not divide {n} heads, or those the model's dim of {dim}")
    rows = (n + 2 * kv) * width
    products = dim * rows + n * width * dim
    gains = 0
    if heads.get("qk_norm"):
        gains = (n + kv) * width if heads.get("norm_over") == "width" else 2 * width
    scores = 4 * n * width
    if name == "DifferentialHeads":  # values are twice as wide, for half as many heads
        gains += 4 * width + (2 * width if heads.get("norm_gain", True) else 0)
        scores = 2 * n * width + 4 * n * width
    parameters = products + rows * bias + out_bias + gains
    return _HeadsCost(parameters, products, (kv * width, kv * width), scores, scores)


def _count_epilogue(epilogue: Config | None) -> int:
    if not epilogue:
        return 0
    name = epilogue["_target_"].rpartition(".")[2]
    if name != "Sinks":
        raise ValueError(f"model.attention.epilogue ({name}) has no cost formula")
    return int(epilogue["n_heads"])


def _count_ffn(ffn: Config, dim: int, width: int, bias: bool) -> tuple[int, int, int]:
    """Parameters, those that one token uses, and its multiplications with matrices."""
    name = ffn["_target_"].rpartition(".")[2]
    if name in ("Mlp", "ReluMlp"):
        products = 2 * dim * width
        return products + bias * (width + dim), products + bias * (width + dim), products
    gated = 3 * dim * width
    gated_bias = bias * (2 * width + dim)
    if name == "SwiGlu":
        return gated + gated_bias, gated + gated_bias, gated
    if name != "Experts":
        raise ValueError(f"model.ffn ({name}) has no cost formula")
    count, chosen, shared_width = ffn["n_experts"], ffn["n_chosen"], ffn.get("shared_width")
    router = dim * count
    shared = 3 * dim * shared_width + dim if shared_width else 0  # with a gate
    shared += ffn.get("n_shared", 0) * gated
    fixed = router + count * bias + shared + bias * (2 * (shared_width or 0) + dim) * bool(shared_width)
    return (
        fixed + count * (gated + gated_bias),
        fixed + chosen * (gated + gated_bias),
        router + shared + chosen * gated,
    )


def _count_block_norms(block: Config) -> int:
    norms = {"pre": 2, "post": 2, "sandwich": 4}[block.get("norms", "pre")]
    return norms - bool(block.get("shared_norm"))


def _count_norm(norm: Config, dim: int) -> int:
    if not norm.get("elementwise_affine", True):
        return 0
    has_bias = norm["_target_"].rpartition(".")[2] == "LayerNorm" and norm.get("bias", True)
    return dim * (1 + has_bias)


def _count_positions(config: Config) -> int:
    positions = config.get("positions")
    if not positions:
        return 0
    name = positions["_target_"].rpartition(".")[2]
    if name != "LearnedPositions":
        raise ValueError(f"model.positions ({name}) has no cost formula")
    return int(positions["length"] * positions["dim"])


def _merge(base: Any, patch: Any) -> Any:
    """A config with the leaves of a patch."""
    if not isinstance(base, Mapping) or not isinstance(patch, Mapping):
        return patch
    return {**base, **{key: _merge(base.get(key), value) for key, value in patch.items()}}
