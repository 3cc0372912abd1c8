"""What a cache costs a trained model: the loss of texts read through it, beside the bytes that it holds."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.cache import DynamicCache, new_caches
from attnlab.attention.contracts import Cache
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data import of_batch
from attnlab.measure.measurement import Measured
from attnlab.measure.studies.fits import positive
from attnlab.model.loss import VALIDATION, cross_entropy
from attnlab.model.transformer import Transformer
from attnlab.store.schema import Metric

RISE = Metric("cache/rise", "rise of the loss with this cache", "nats", "lower")
BYTES = Metric("cache/bytes", "bytes held after a text", "B", "lower", "count")
SHARE = Metric("cache/share", "share of a plain cache's bytes", "", "lower", "count")


def rise(condition: str) -> Metric:
    """Of the loss of the answers under one of a task's conditions."""
    return Metric(f"{RISE.name}/{condition}", f"rise of the loss at {condition}", "nats", "lower")


class CachedLosses:
    """Reads the validation texts `step` tokens a pass through `make_cache`. Metrics: `cache/rise`, the loss
    beyond that of the same texts through a plain cache, and `cache/rise/<condition>` by those of the task's
    `conditions` that are named; `cache/bytes`, held by all layers after a text, per text, scales, zero points
    and positions that are kept for it included; `cache/share` of what the plain one holds; `val/loss` through
    the cache.
    """

    def __init__(
        self, make_cache: Callable[..., Cache] = DynamicCache, step: int = 1, conditions: Sequence[str] = ()
    ) -> None:
        positive(step=step)
        self.make_cache = make_cache
        self.step = step
        self.conditions = list(conditions)

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [metric.name for metric in (RISE, BYTES, SHARE, VALIDATION, *map(rise, self.conditions))]

    def check(self, model: Transformer, data: Any) -> None:
        """ValueError where a layer keeps no keys and values to lose something of, or the task has no such
        condition.
        """
        if not all(isinstance(block.mixer, Attention) for block in model.blocks):
            raise ValueError("measurement: caches hold keys and values, and this model has another mixer")
        self.make_cache()
        known = _conditions(data)
        if unknown := [name for name in self.conditions if name not in known]:
            raise ValueError(
                f"measurement.conditions: the task has no {unknown[0]} (it has: {', '.join(known)})"
            )

    @torch.no_grad()
    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Every text twice: through this cache, and in one pass through a plain one."""
        plain = []
        kept = []
        asked = []
        held = (0.0, 0.0)
        for batch in data.val_dataloader():
            here = {key: value.to(device) for key, value in batch.items()}
            counted = here["targets"] >= 0
            whole, before = _read(module.model, here, DynamicCache, here["tokens"].shape[1])
            losses, after = _read(module.model, here, self.make_cache, self.step)
            plain.append(whole[counted].double().cpu())
            kept.append(losses[counted].double().cpu())
            if self.conditions:
                asked.append(here["condition"][counted].cpu())
            held = before, after  # of any batch: they go by the tokens of a text
        rises = torch.cat(kept) - torch.cat(plain)
        metrics = {
            RISE.name: rises.mean().item(),
            BYTES.name: held[1],
            SHARE.name: held[1] / held[0],
            VALIDATION.name: torch.cat(kept).mean().item(),
        }
        if self.conditions:
            which = torch.cat(asked)
            known = _conditions(data)
            by_condition = which.bincount(rises, len(known)) / which.bincount(minlength=len(known))
            found = dict(zip(known, by_condition.tolist(), strict=True))
            metrics |= {rise(name).name: found[name] for name in self.conditions}
        return Measured(metrics, declared=[RISE, BYTES, SHARE, VALIDATION, *map(rise, self.conditions)])


def _read(
    model: Transformer, batch: dict[str, Tensor], make_cache: Callable[..., Cache], step: int
) -> tuple[Tensor, float]:
    """Losses [B, T], and bytes held per text."""
    tokens = batch["tokens"]
    caches = new_caches(make_cache, [block.mixer for block in model.blocks])
    mask = of_batch(batch)
    logits = [model(part, caches=caches, mask=mask) for part in tokens.split(step, dim=1)]
    held = sum(cache.live_bytes() for cache in caches) / len(tokens)
    return cross_entropy(torch.cat(logits, dim=1), batch["targets"]), held


def _conditions(data: Any) -> list[str]:
    return list(getattr(data.task, "conditions", ()))
