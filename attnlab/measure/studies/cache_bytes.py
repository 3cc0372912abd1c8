"""Bytes in caches, counted in the caches themselves, next to the formula.

Runs on the meta device, so a model of any size costs nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnlab.attention.cache import DynamicCache, create_layer_cache
from attnlab.attention.contracts import Cache, Capabilities, Heads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.rotary import identity_rotation
from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.studies.fits import validate_positive
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import Metric

INPUT_DIM = 64  # input of a published model's layer; cached bytes do not depend on it
METRICS = (
    Metric("kv_bytes/held", "bytes in the cache", "B", "lower", "count"),
    Metric("kv_bytes/layer", "bytes in the cache of one layer", "B", "lower", "count"),
    Metric("kv_bytes/unexplained", "bytes in the cache beyond the formula", "B", "lower", "count"),
)


class CacheBytes:
    """Counts the cached bytes of this run's model after `tokens` tokens of a batch.

    Metrics: `kv_bytes/held`; `kv_bytes/layer`; `kv_bytes/unexplained`, the counted bytes minus the formula.
    The formula is the bytes per token (2 kv d_h, or the latent's rank + RoPE part) times the cached tokens.
    """

    metrics = METRICS
    shapes_only = True

    def __init__(self, make_cache: Callable[..., Cache] | None, tokens: int, batch: int = 1) -> None:
        validate_positive(tokens=tokens, batch=batch)
        if make_cache is None:
            raise ValueError("measurement.make_cache is null: set a cache, as in decode=dynamic")
        self.make_cache = make_cache
        self.tokens = tokens
        self.batch = batch

    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Fill a cache per layer and count its bytes."""
        model: Transformer = module.model
        layers = [self._count_layer_bytes(block.mixer, model.embedding.weight) for block in model.blocks]
        cached_bytes, predicted_bytes = (sum(column) for column in zip(*layers, strict=True))
        metrics = {
            "kv_bytes/held": cached_bytes,
            "kv_bytes/layer": layers[0][0],
            "kv_bytes/unexplained": cached_bytes - predicted_bytes,
        }
        return MeasurementResult(metrics)

    def _count_layer_bytes(self, mixer: Any, embedding_weight: torch.Tensor) -> tuple[int, int]:
        """Return the counted and the predicted bytes of one layer's cache."""
        cache = create_layer_cache(self.make_cache, mixer)
        max_tokens = Capabilities.from_part(cache).max_cached_tokens
        cached_tokens = self.tokens if max_tokens is None else min(self.tokens, max_tokens)
        x = torch.empty(
            self.batch, self.tokens, embedding_weight.shape[1], device="meta", dtype=embedding_weight.dtype
        )
        return _count_held_bytes(cache, mixer.heads, x), self.batch * cached_tokens * mixer.state_size()


class PublishedModels:
    """Counts the cached bytes per token of published model shapes, in a 16-bit cache of all layers.

    Args:
        models: name -> shape, {n_layers, n_heads, n_kv_heads, head_dim} or {n_layers, n_heads, rank,
            head_dim, rope_dim}. The metrics are `kv_bytes/<name>`.
    """

    shapes_only = True

    def __init__(self, models: Mapping[str, Mapping[str, int]]) -> None:
        self.heads_by_model: dict[str, tuple[int, Heads]] = {}
        for name, shape in models.items():
            options = dict(shape)
            layers = options.pop("n_layers", 0)
            validate_positive(**{f"models.{name}.n_layers": layers})
            heads_class: Any = LatentHeads if "rank" in options else GroupedHeads
            try:
                with torch.device("meta"):
                    self.heads_by_model[name] = (
                        layers,
                        heads_class(dim=INPUT_DIM, bias=False, out_bias=False, **options).bfloat16(),
                    )
            except TypeError as error:
                raise ValueError(f"measurement.models.{name}: {error}") from error
        self.metrics = [
            Metric(f"kv_bytes/{name}", f"KV cache per token of {name}", "B", "lower", "count")
            for name in models
        ]

    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Cache one token in one layer of each model."""
        x = torch.empty(1, 1, INPUT_DIM, device="meta", dtype=torch.bfloat16)
        return MeasurementResult(
            {
                f"kv_bytes/{name}": layers * _count_held_bytes(DynamicCache(), heads, x)
                for name, (layers, heads) in self.heads_by_model.items()
            }
        )


def _count_held_bytes(cache: Cache, heads: Heads, x_BTM: torch.Tensor) -> int:
    """Return the bytes in a layer's cache after the input x."""
    positions = torch.arange(x_BTM.shape[1], device="meta")[None]
    cache.append(heads.project(x_BTM, identity_rotation)[1], positions)
    return cache.live_bytes()
