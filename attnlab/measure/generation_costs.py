"""Costs of a generated token, counted in a running model and predicted by formulas.

Counted are projected keys and values, query-key products, FLOPs, bytes cached and read, and bytes saved for
backward. Tests require that counts equal formulas. A model without a cache projects N (N + 1) / 2 tokens to
generate N, so "500 times fewer projections" for 1000 tokens is a count, not a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.contracts import AttentionInputs, AttentionOutput, Cache, Kernel
from attnlab.attention.layer import Attention
from attnlab.measure.resources import count_saved_bytes, reference_kernel
from attnlab.model.generation import Decoder
from attnlab.model.transformer import Transformer


@dataclass(frozen=True)
class GenerationCost:
    """Costs of a whole generation.

    Attributes:
        projections: tokens projected, per layer.
        qk_products: query-key products, per layer and head.
        flops: all layers.
        bytes_read: keys and values that attention read in the last step, all layers.
    """

    projections: int
    qk_products: int
    flops: int
    bytes_read: int


def count_generation_cost(
    model: Transformer, prompt_BT: Tensor, new_tokens: int, make_cache: Callable[..., Cache] | None
) -> GenerationCost:
    """Count costs while generating with the eager reference; FLOPs are those of matrix products, by torch."""
    layers = [block.mixer for block in model.blocks]
    assert all(isinstance(layer, Attention) for layer in layers), (
        "costs can be counted only for attention layers"
    )
    projections = [0] * len(layers)
    products = [0] * len(layers)
    reads = [0] * len(layers)

    def make_counting_kernel(n: int, kernel: Kernel) -> Kernel:
        def attend_and_count(inputs: AttentionInputs) -> AttentionOutput:
            products[n] += inputs.q.shape[2] * inputs.k.shape[2]
            reads[n] = _count_distinct_bytes(inputs.k, inputs.v)
            return kernel(inputs)

        return attend_and_count

    def make_projection_hook(n: int) -> Callable[..., None]:
        def count_projection(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            projections[n] += inputs[0].shape[1]

        return count_projection

    with reference_kernel(model), FlopCounterMode(display=False) as counter:
        hooks = [
            layer.heads.projection.register_forward_pre_hook(make_projection_hook(n))
            for n, layer in enumerate(layers)
        ]
        for n, layer in enumerate(layers):
            layer.kernel = make_counting_kernel(n, layer.kernel)
        try:
            Decoder(model, make_cache).generate(prompt_BT, new_tokens)
        finally:
            for hook in hooks:
                hook.remove()
    assert len(set(projections)) == len(set(products)) == 1, "layers have different costs"
    return GenerationCost(projections[0], products[0], counter.get_total_flops(), sum(reads))


def predict_generation_cost(
    model: Transformer, batch: int, prompt: int, new_tokens: int, cached: bool
) -> GenerationCost:
    """Predict the same costs by formula, for caches that drop nothing.

    With P prompt tokens, N new tokens and a cache: P + N - 1 projections and P² + (P+1) + ... + (P+N-1)
    products; without a cache: sums over all lengths and their squares.
    """
    steps = list_forward_passes(prompt, new_tokens, cached)
    last_keys = steps[-1][1]
    layers = [block.mixer for block in model.blocks]
    inner_weights = sum(
        weight.numel()
        for block in model.blocks
        for part in (block.ffn, getattr(block.mixer, "epilogue", None) or nn.Identity())
        for weight in part.parameters()
        if weight.ndim == 2
    )
    connections = [model.reads, *(part for b in model.blocks for part in (b.mixer_reads, b.ffn_reads))]
    connection_flops = sum(connection.flops() for connection in connections if connection is not None)
    flops = 0
    for n, (new, keys) in enumerate(steps):
        is_cached_step = cached and n > 0
        flops += 2 * batch * (new * inner_weights + model.head.weight.numel())
        flops += batch * new * connection_flops
        flops += batch * sum(
            _predict_flops(layer, new, keys, is_cached_step and layer.can_absorb) for layer in layers
        )
    size = model.embedding.weight.element_size()
    is_cached_step = cached and len(steps) > 1
    widths = [_predict_read_width(layer, is_cached_step and layer.can_absorb) for layer in layers]
    bytes_read = batch * last_keys * size * sum(widths)
    return GenerationCost(
        sum(new for new, _ in steps), sum(new * keys for new, keys in steps), flops, bytes_read
    )


def _predict_flops(layer: Attention, n_queries: int, n_keys: int, absorbed: bool) -> int:
    """Return the layer's FLOPs, with those of forget gates over absorbed keys of several groups.

    `Attention.flops` counts one group. A change there would give every run a new id.
    """
    flops = layer.flops(n_queries, n_keys, absorbed)
    if layer.forgetting is not None and absorbed:
        for groups, sign in ((getattr(layer.heads, "groups", 1), 1), (1, -1)):
            flops += sign * layer.forgetting.flops(n_queries, n_keys, groups)
    return flops


def _predict_read_width(layer: Attention, absorbed: bool) -> int:
    """Return the numbers read per key: appended features make values of absorbed heads tensors of their own.

    `Attention.read_width` omits these values, as without a forget gate.
    """
    width = layer.read_width(absorbed)
    return width + getattr(layer.heads, "rank", 0) if layer.forgetting is not None and absorbed else width


def list_forward_passes(prompt: int, new_tokens: int, cached: bool) -> list[tuple[int, int]]:
    """Return (queries, keys) of every forward pass of a generation."""
    if cached:
        return [(prompt, prompt)] + [(1, prompt + n) for n in range(1, new_tokens)]
    return [(prompt + n, prompt + n) for n in range(new_tokens)]


def count_step_bytes(model: Transformer, cached_tokens: int) -> dict[str, int]:
    """Return the bytes of a decoding step with `cached_tokens` keys at batch 1.

    These are all weights that a token passes, and the contents of the caches. Their sum over the bandwidth is
    the roofline of decoding.
    """
    outside = {id(model.embedding.weight)} - {id(model.head.weight)}  # only one row of the embedding is read
    if model.positions is not None:
        outside |= {id(weight) for weight in model.positions.parameters()}
    weights = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in outside)
    return {"weights": weights, "cache": cached_tokens * model.state_size()}


def count_saved_bytes_by_length(layer: nn.Module, dim: int, lengths: Sequence[int]) -> list[int]:
    """Return the exact bytes that one layer saves for its backward pass, batch 1, at every length."""
    saved = []
    for length in lengths:
        x = torch.zeros(1, length, dim, requires_grad=True)

        def compute_loss(x: Tensor = x) -> Tensor:
            return layer(x).sum()

        saved.append(count_saved_bytes(compute_loss, layer))
    return saved


def _count_distinct_bytes(k: Tensor, v: Tensor) -> int:
    """Return the bytes of both tensors, or of the larger one if one is a view of the other."""
    sizes = [part.numel() * part.element_size() for part in (k, v)]
    is_view = (
        k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr() and k.data_ptr() == v.data_ptr()
    )
    return max(sizes) if is_view else sum(sizes)
