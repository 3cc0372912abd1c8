"""Bytes that caches hold, counted in the caches themselves, beside the formula. On the meta device, so that a
model of any size costs nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnlab.attention.cache import Growing
from attnlab.attention.heads.grouped import Heads
from attnlab.attention.heads.latent import Latent
from attnlab.attention.rotary import identity
from attnlab.measure.measurement import Measured
from attnlab.measure.studies.fits import positive
from attnlab.model.transformer import Transformer

DIM = 64  # width of a published model's input: what is cached does not depend on it


class CacheBytes:
    """Metrics for this run's model after `tokens` tokens of a batch: `kv_bytes/held`, `kv_bytes/layer`, and
    `kv_bytes/unexplained`, what is held less the formula: bytes per token (2 kv d_h, or the latent's rank +
    rope part) times the tokens that the cache keeps.
    """

    on_paper = True

    def __init__(self, make_cache: Callable[[], Any] | None, tokens: int, batch: int = 1) -> None:
        positive(tokens=tokens, batch=batch)
        if make_cache is None:
            raise ValueError("measurement.make_cache is null: name a cache, as with decode=growing")
        self.make_cache, self.tokens, self.batch = make_cache, tokens, batch

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Fills a cache per layer and counts."""
        model: Transformer = module.model
        layers = [self._layer(block.mixer.heads, model.embedding.weight) for block in model.blocks]
        held = sum(layers)
        kept = min(
            self.tokens, sum(getattr(self.make_cache(), key, 0) for key in ("size", "keep")) or self.tokens
        )
        metrics = {
            "kv_bytes/held": held,
            "kv_bytes/layer": layers[0],
            "kv_bytes/unexplained": held - self.batch * kept * model.state_size(),
        }
        return Measured(metrics, exact=metrics)

    def _layer(self, heads: Heads | Latent, like: torch.Tensor) -> int:
        x = torch.empty(self.batch, self.tokens, like.shape[1], device="meta", dtype=like.dtype)
        return _held(self.make_cache(), heads, x)


class Published:
    """`models`: name to shape, {n_layers, n_heads, n_kv_heads, head_dim} or {n_layers, n_heads, rank,
    head_dim, rope_dim}. Metrics: `kv_bytes/<name>`, what a token adds to a 16 bit cache of all layers.
    """

    on_paper = True

    def __init__(self, models: Mapping[str, Mapping[str, int]]) -> None:
        self.parts: dict[str, tuple[int, Heads | Latent]] = {}
        for name, shape in models.items():
            own = dict(shape)
            layers = own.pop("n_layers", 0)
            positive(**{f"models.{name}.n_layers": layers})
            kind: Any = Latent if "rank" in own else Heads
            try:
                with torch.device("meta"):
                    self.parts[name] = layers, kind(dim=DIM, bias=False, out_bias=False, **own).bfloat16()
            except TypeError as error:
                raise ValueError(f"measurement.models.{name}: {error}") from error

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """One token through one layer of each."""
        metrics = {}
        for name, (layers, heads) in self.parts.items():
            x = torch.empty(1, 1, DIM, device="meta", dtype=torch.bfloat16)
            metrics[f"kv_bytes/{name}"] = layers * _held(Growing(), heads, x)
        return Measured(metrics, exact=metrics)


def _held(cache: Any, heads: Heads | Latent, x_BTM: torch.Tensor) -> int:
    """Bytes in the cache of a layer that has seen x."""
    where = torch.arange(x_BTM.shape[1], device="meta")[None]
    cache.append(heads.project(x_BTM, identity)[1], where)
    return cache.live_bytes()
