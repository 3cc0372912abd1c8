"""Effect of a cache on a trained model: the loss of texts read through it, and its bytes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.cache import DynamicCache, create_layer_caches
from attnlab.attention.contracts import Cache
from attnlab.attention.layer import Attention
from attnlab.attention.masks.data_masks import make_batch_mask
from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.studies.fits import validate_positive
from attnlab.model.loss import VALIDATION_LOSS, cross_entropy
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import Metric

LOSS_RISE = Metric("cache/rise", "loss increase with this cache", "nats", "lower")
CACHE_BYTES = Metric("cache/bytes", "bytes in the cache after a sequence", "B", "lower", "count")
CACHE_BYTES_RATIO = Metric("cache/share", "bytes relative to a dynamic cache", "", "lower", "count")


def loss_rise_metric(condition: str) -> Metric:
    """Return the metric of the rise of answer loss under one of a task's conditions."""
    return Metric(f"{LOSS_RISE.name}/{condition}", f"loss increase at {condition}", "nats", "lower")


class CachedLosses:
    """Reads the validation texts through `make_cache`, `step` tokens per pass.

    Metrics: `cache/rise`, the loss minus that of the same texts through an uncompressed cache;
    `cache/rise/<condition>`, the same for the listed `conditions` of the task; `cache/bytes`, the bytes in
    all layers after a text, per text, including its scales, zero points and positions; `cache/share`, the
    ratio to the uncompressed cache's bytes; `val/loss` through the cache.
    """

    def __init__(
        self, make_cache: Callable[..., Cache] = DynamicCache, step: int = 1, conditions: Sequence[str] = ()
    ) -> None:
        validate_positive(step=step)
        self.make_cache = make_cache
        self.step = step
        self.conditions = list(conditions)
        self.metrics = (
            LOSS_RISE, CACHE_BYTES, CACHE_BYTES_RATIO, VALIDATION_LOSS,
            *map(loss_rise_metric, self.conditions),
        )  # fmt: skip

    def check(self, model: Transformer, data: Any) -> None:
        """Validate the measurement against model and task.

        Raises:
            ValueError: a layer has no keys and values to compress, or the task has no such condition.
        """
        if not all(isinstance(block.mixer, Attention) for block in model.blocks):
            raise ValueError(
                "measurement needs layers with keys and values, and this model has another mixer"
            )
        self.make_cache()
        task_conditions = _list_conditions(data)
        if unknown := [name for name in self.conditions if name not in task_conditions]:
            raise ValueError(
                f"measurement.conditions: the task has no {unknown[0]} (it has: {', '.join(task_conditions)})"
            )

    @torch.no_grad()
    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Read every text twice: through this cache, and in one pass through an uncompressed cache."""
        plain_losses = []
        cache_losses = []
        condition_indices = []
        bytes_held = (0.0, 0.0)
        for batch in data.val_dataloader():
            device_batch = {key: value.to(device) for key, value in batch.items()}
            is_scored = device_batch["targets"] >= 0
            full_losses, plain_bytes = _compute_losses_through_cache(
                module.model, device_batch, DynamicCache, device_batch["tokens"].shape[1]
            )
            losses, cache_bytes = _compute_losses_through_cache(
                module.model, device_batch, self.make_cache, self.step
            )
            plain_losses.append(full_losses[is_scored].double().cpu())
            cache_losses.append(losses[is_scored].double().cpu())
            if self.conditions:
                condition_indices.append(device_batch["condition"][is_scored].cpu())
            bytes_held = plain_bytes, cache_bytes  # equal for all batches: they depend on a text's tokens
        rises = torch.cat(cache_losses) - torch.cat(plain_losses)
        metrics = {
            LOSS_RISE.name: rises.mean().item(),
            CACHE_BYTES.name: bytes_held[1],
            CACHE_BYTES_RATIO.name: bytes_held[1] / bytes_held[0],
            VALIDATION_LOSS.name: torch.cat(cache_losses).mean().item(),
        }
        if self.conditions:
            conditions = torch.cat(condition_indices)
            task_conditions = _list_conditions(data)
            by_condition = conditions.bincount(rises, len(task_conditions)) / conditions.bincount(
                minlength=len(task_conditions)
            )
            rise_by_condition = dict(zip(task_conditions, by_condition.tolist(), strict=True))
            metrics |= {loss_rise_metric(name).name: rise_by_condition[name] for name in self.conditions}
        return MeasurementResult(metrics)


def _compute_losses_through_cache(
    model: Transformer, batch: dict[str, Tensor], make_cache: Callable[..., Cache], step: int
) -> tuple[Tensor, float]:
    """Return losses [B, T], and cached bytes per text."""
    tokens = batch["tokens"]
    caches = create_layer_caches(make_cache, [block.mixer for block in model.blocks])
    mask = make_batch_mask(batch)
    logits = [model(part, caches=caches, mask=mask) for part in tokens.split(step, dim=1)]
    bytes_held = sum(cache.live_bytes() for cache in caches) / len(tokens)
    return cross_entropy(torch.cat(logits, dim=1), batch["targets"]), bytes_held


def _list_conditions(data: Any) -> list[str]:
    return list(getattr(data.task, "conditions", ()))
