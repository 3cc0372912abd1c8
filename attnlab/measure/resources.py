"""Costs of a model, by formula and counted.

Parameters, FLOPs, cached bytes, bytes saved for backward, peak memory.
"""

import resource
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.cache import DynamicCache
from attnlab.attention.contracts import Unsupported
from attnlab.attention.kernels.eager import eager
from attnlab.attention.layer import Attention
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import Metric, index_by_name

# Resources of a run, known before it starts.
BUDGET_METRICS = index_by_name(
    Metric("parameters", "parameters", kind="count"),
    Metric("parameters_non_embedding", "non-embedding parameters", kind="count"),
    Metric("parameters_attention", "attention parameters", kind="count"),
    Metric("flops_per_token", "training FLOPs per token", kind="count"),
    Metric("kv_bytes_per_token", "KV cache per token", "B", "lower", "count"),
    Metric("tokens", "training tokens", kind="count"),
    Metric("epochs", "epochs (passes over the training text)", kind="count"),
    Metric("batch_tokens", "tokens per batch", kind="count"),
    Metric("steps", "steps", kind="count"),
    Metric("lr", "learning rate", kind="count"),
    Metric("context", "context", "tokens", kind="count"),
    Metric("dtype", "data type", kind="count"),
    Metric("kernel", "attention kernel", kind="count"),
    Metric("device", "device", kind="count"),
)
MEMORY_METRICS = index_by_name(
    Metric("kv_bytes_per_token_formula", "", "B", "lower", "count"),
    Metric("kv_bytes_per_token_live", "", "B", "lower", "count"),
    Metric("carried_bytes", "carried state of fixed size", "B", "lower", "count"),
    Metric("saved_for_backward_bytes", "memory saved for the backward pass", "B", kind="count"),
    Metric("peak_rss_bytes", "peak memory", "B"),
    Metric("peak_cuda_bytes", "peak GPU memory", "B"),
)
THROUGHPUT = Metric("train_tokens_per_s", "training throughput", "tokens/s", "higher", "time")


def count_parameters(model: Transformer) -> dict[str, int]:
    """Count all weights, those without embeddings (tokens, positions, untied head), and those of mixers."""
    outside = [part for part in (model.embedding, model.head, model.positions) if part is not None]
    embedding = {id(p): p.numel() for module in outside for p in module.parameters()}
    total = sum(p.numel() for p in model.parameters())
    return {
        "parameters": total,
        "parameters_non_embedding": total - sum(embedding.values()),
        "parameters_attention": sum(p.numel() for block in model.blocks for p in block.mixer.parameters()),
    }


def count_flops_per_token(model: Transformer, length: int) -> int:
    """Return forward and backward FLOPs per token at this length, counted by torch on the eager reference.

    `model` is on the meta device, so nothing is computed. Only matrix products count, those of auxiliary
    losses too; causal scores count as the full square.
    """
    assert next(model.parameters()).is_meta
    with reference_kernel(model):
        counter = FlopCounterMode(display=False)
        with counter, torch.device("meta"):
            auxiliary: dict[str, Tensor] = {}
            logits = model(torch.zeros(1, length, dtype=torch.long), auxiliary_losses=auxiliary)
            sum(auxiliary.values(), logits.sum()).backward()
    return counter.get_total_flops() // length


class reference_kernel:  # noqa: N801 - a context manager, used like a function
    """Within this context, every attention layer of a model computes with the eager kernel."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, Attention)]

    def __enter__(self) -> None:
        self.kernels = [layer.kernel for layer in self.layers]
        for layer in self.layers:
            layer.kernel = eager

    def __exit__(self, *error: object) -> None:
        for layer, kernel in zip(self.layers, self.kernels, strict=True):
            layer.kernel = kernel


@torch.no_grad()
def count_live_cache_bytes(model: Transformer, tokens: Tensor) -> int | None:
    """Return the bytes per token in the caches of all layers after a prefill of `tokens` [1, T].

    Carried state of fixed size does not count. None for a model that cannot be cached.
    """
    caches = [DynamicCache() for _ in model.blocks]
    try:
        model(tokens, caches=caches)
    except Unsupported:
        return None
    cached_bytes = sum(cache.live_bytes() for cache in caches) - model.carried_size()
    assert cached_bytes % tokens.shape[1] == 0, (cached_bytes, tokens.shape)
    return cached_bytes // tokens.shape[1]


def count_kv_bytes(model: Transformer, tokens: Tensor | None) -> dict[str, int | None]:
    """Return cached bytes per token by the formula, and counted after a prefill of `tokens` [1, T].

    `tokens` is None if the weights are on the meta device.

    Raises:
        AssertionError: count and formula differ.
    """
    formula = model.state_size()
    live = None if tokens is None else count_live_cache_bytes(model, tokens)
    assert live in (formula, None), f"the cache holds {live} bytes per token, the formula says {formula}"
    return {
        "kv_bytes_per_token_formula": formula,
        "kv_bytes_per_token_live": live,
        "carried_bytes": model.carried_size(),
    }


def count_saved_bytes(compute_loss: Callable[[], Tensor], model: nn.Module) -> int:
    """Return the bytes that autograd saves for the backward pass of `compute_loss()`.

    Each storage counts once; parameters do not count.
    """
    parameter_storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, int] = {}
    live_tensors = []  # an address is unique only while its tensor is alive

    def record_storage(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameter_storages:
            storages[storage.data_ptr()] = storage.nbytes()
            live_tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_storage, lambda tensor: tensor):
        compute_loss()
    return sum(storages.values())


def read_peak_memory(device: torch.device) -> dict[str, Any]:
    """Return this process's peak bytes so far: resident set and CUDA allocation."""
    return {
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # kilobytes on Linux
        "peak_cuda_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }
