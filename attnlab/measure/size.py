"""What a model costs on paper and in fact: parameters, FLOPs, cached bytes, bytes saved for backward, peak
memory.
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
from attnlab.store.schema import Metric, named

# What a run is given, known before it starts.
BUDGET = named(
    Metric("parameters", "parameters", kind="count"),
    Metric("parameters_non_embedding", "non-embedding parameters", kind="count"),
    Metric("parameters_attention", "attention parameters", kind="count"),
    Metric("flops_per_token", "training FLOPs per token", kind="count"),
    Metric("kv_bytes_per_token", "KV cache per token", "B", "lower", "count"),
    Metric("tokens", "training tokens", kind="count"),
    Metric("epochs", "epochs: times that the text is read", kind="count"),
    Metric("batch_tokens", "tokens per batch", kind="count"),
    Metric("steps", "steps", kind="count"),
    Metric("lr", "learning rate", kind="count"),
    Metric("context", "context", "tokens", kind="count"),
    Metric("dtype", "number format", kind="count"),
    Metric("kernel", "attention kernel", kind="count"),
    Metric("device", "device", kind="count"),
)
MEMORY = named(
    Metric("kv_bytes_per_token_formula", "", "B", "lower", "count"),
    Metric("kv_bytes_per_token_live", "", "B", "lower", "count"),
    Metric("carried_bytes", "cached beside the tokens, at a fixed size", "B", "lower", "count"),
    Metric("saved_for_backward_bytes", "memory saved for the backward pass", "B", kind="count"),
    Metric("peak_rss_bytes", "peak memory", "B"),
    Metric("peak_cuda_bytes", "peak GPU memory", "B"),
)
THROUGHPUT = Metric("train_tokens_per_s", "training throughput", "tokens/s", "higher", "time")


def parameters(model: Transformer) -> dict[str, int]:
    """Weights in all, without embeddings (tokens, positions and an untied head), and in the mixers."""
    outside = [part for part in (model.embedding, model.head, model.positions) if part is not None]
    embedding = {id(p): p.numel() for module in outside for p in module.parameters()}
    total = sum(p.numel() for p in model.parameters())
    return {
        "parameters": total,
        "parameters_non_embedding": total - sum(embedding.values()),
        "parameters_attention": sum(p.numel() for block in model.blocks for p in block.mixer.parameters()),
    }


def flops_per_token(model: Transformer, length: int) -> int:
    """Forward and backward FLOPs per token at this length, counted by torch over the eager reference.

    `model` lives on the meta device, so nothing is computed. Matrix products only; causal scores count as
    the full square.
    """
    assert next(model.parameters()).is_meta
    with reference_kernel(model):
        counter = FlopCounterMode(display=False)
        with counter, torch.device("meta"):
            model(torch.zeros(1, length, dtype=torch.long)).sum().backward()
    return counter.get_total_flops() // length


class reference_kernel:  # noqa: N801 - a context manager, used like a function
    """Within it, every attention layer of a model computes with the eager kernel."""

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
def live_cache_bytes(model: Transformer, tokens: Tensor) -> int | None:
    """Bytes per token that the caches of all layers really hold after a prefill of `tokens` [1, T], beside
    what they carry at a fixed size. None for a model that cannot be cached.
    """
    caches = [DynamicCache() for _ in model.blocks]
    try:
        model(tokens, caches=caches)
    except Unsupported:
        return None
    held = sum(cache.live_bytes() for cache in caches) - model.carried_size()
    assert held % tokens.shape[1] == 0, (held, tokens.shape)
    return held // tokens.shape[1]


def kv_bytes(model: Transformer, tokens: Tensor | None) -> dict[str, int | None]:
    """Cached bytes per token by the formula, and as held after a prefill of `tokens` [1, T] where the weights
    are real: the same, or an AssertionError.
    """
    formula = model.state_size()
    live = None if tokens is None else live_cache_bytes(model, tokens)
    assert live in (formula, None), f"the cache holds {live} bytes per token, the formula says {formula}"
    return {
        "kv_bytes_per_token_formula": formula,
        "kv_bytes_per_token_live": live,
        "carried_bytes": model.carried_size(),
    }


def saved_for_backward(loss: Callable[[], Tensor], model: nn.Module) -> int:
    """Bytes that autograd keeps for the backward pass of `loss()`: each storage once, without parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, int] = {}
    held = []  # an address stays unique only while its tensor lives

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss()
    return sum(storages.values())


def peak_memory(device: torch.device) -> dict[str, Any]:
    """Peak bytes of this process so far: resident set (kilobytes from Linux), and allocated on CUDA."""
    return {
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_cuda_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }
