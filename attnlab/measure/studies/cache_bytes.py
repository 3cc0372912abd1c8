"""Bytes that caches hold, counted in the caches themselves, beside the formula. On the meta device, so that a
model of any size costs nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnlab.attention.cache import DynamicCache, new_cache
from attnlab.attention.contracts import Cache, Capabilities, Heads
from attnlab.attention.heads.grouped import GroupedHeads
from attnlab.attention.heads.latent import LatentHeads
from attnlab.attention.rotary import identity
from attnlab.measure.measurement import Measured
from attnlab.measure.studies.fits import positive
from attnlab.model.transformer import Transformer
from attnlab.store.schema import Metric

DIM = 64  # width of a published model's input: what is cached does not depend on it
METRICS = (
    Metric("kv_bytes/held", "bytes held by the cache", "B", "lower", "count"),
    Metric("kv_bytes/layer", "bytes held by a layer's cache", "B", "lower", "count"),
    Metric("kv_bytes/unexplained", "bytes held beyond the formula", "B", "lower", "count"),
)


class CacheBytes:
    """Metrics for this run's model after `tokens` tokens of a batch: `kv_bytes/held`, `kv_bytes/layer`, and
    `kv_bytes/unexplained`, what is held less the formula: bytes per token (2 kv d_h, or the latent's rank +
    rope part) times the tokens that the cache keeps.
    """

    on_paper = True

    def __init__(self, make_cache: Callable[..., Cache] | None, tokens: int, batch: int = 1) -> None:
        positive(tokens=tokens, batch=batch)
        if make_cache is None:
            raise ValueError("measurement.make_cache is null: name a cache, as with decode=growing")
        self.make_cache = make_cache
        self.tokens = tokens
        self.batch = batch

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [metric.name for metric in METRICS]

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Fills a cache per layer and counts."""
        model: Transformer = module.model
        layers = [self._layer(block.mixer, model.embedding.weight) for block in model.blocks]
        held, formula = (sum(column) for column in zip(*layers, strict=True))
        metrics = {
            "kv_bytes/held": held,
            "kv_bytes/layer": layers[0][0],
            "kv_bytes/unexplained": held - formula,
        }
        return Measured(metrics, declared=METRICS)

    def _layer(self, mixer: Any, like: torch.Tensor) -> tuple[int, int]:
        """Bytes that one layer's cache holds, and that it should hold."""
        cache = new_cache(self.make_cache, mixer)
        holds = Capabilities.of(cache).holds
        kept = self.tokens if holds is None else min(self.tokens, holds)
        x = torch.empty(self.batch, self.tokens, like.shape[1], device="meta", dtype=like.dtype)
        return _held(cache, mixer.heads, x), self.batch * kept * mixer.state_size()


class Published:
    """`models`: name to shape, {n_layers, n_heads, n_kv_heads, head_dim} or {n_layers, n_heads, rank,
    head_dim, rope_dim}. Metrics: `kv_bytes/<name>`, what a token adds to a 16 bit cache of all layers.
    """

    on_paper = True

    def __init__(self, models: Mapping[str, Mapping[str, int]]) -> None:
        self.parts: dict[str, tuple[int, Heads]] = {}
        for name, shape in models.items():
            own = dict(shape)
            layers = own.pop("n_layers", 0)
            positive(**{f"models.{name}.n_layers": layers})
            kind: Any = LatentHeads if "rank" in own else GroupedHeads
            try:
                with torch.device("meta"):
                    self.parts[name] = layers, kind(dim=DIM, bias=False, out_bias=False, **own).bfloat16()
            except TypeError as error:
                raise ValueError(f"measurement.models.{name}: {error}") from error

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [f"kv_bytes/{name}" for name in self.parts]

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """One token through one layer of each."""
        metrics = {}
        declared = []
        for name, (layers, heads) in self.parts.items():
            x = torch.empty(1, 1, DIM, device="meta", dtype=torch.bfloat16)
            own = Metric(f"kv_bytes/{name}", f"KV cache per token of {name}", "B", "lower", "count")
            metrics[own.name] = layers * _held(DynamicCache(), heads, x)
            declared.append(own)
        return Measured(metrics, declared=declared)


def _held(cache: Cache, heads: Heads, x_BTM: torch.Tensor) -> int:
    """Bytes in the cache of a layer that has seen x."""
    where = torch.arange(x_BTM.shape[1], device="meta")[None]
    cache.append(heads.project(x_BTM, identity)[1], where)
    return cache.live_bytes()
