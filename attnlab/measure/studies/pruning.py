"""Pruning of heads of a trained model, one at a time and cumulatively, without further training.

Importance (the rise of the loss without a head) is measured on one half of the validation windows, and all
metrics on the other half: a head that is unimportant by chance would bias its own removal.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.heads.projections import merge_heads
from attnlab.attention.layer import Attention
from attnlab.measure.head_patterns import match_head_patterns
from attnlab.measure.head_scoring import compute_head_scores, select_probe_examples
from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.studies.validation_losses import compute_validation_loss
from attnlab.model.initialization import make_named_generator
from attnlab.model.loss import VALIDATION_LOSS
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import Metric

Head = tuple[int, int]  # layer, head
# names based on scores of text; the others are based on random tokens
TEXT_PATTERNS = ("positional", "local", "sink", "uniform")
N_EXAMPLES_PER_HALF = 16  # of each of the two sets of texts for pattern names
PRUNED_PERCENTAGES = (25, 50, 75)  # of the heads
METRICS = (
    *(
        Metric(f"pruned/{share}", f"loss increase with {share}% of the heads removed", "nats", "lower")
        for share in PRUNED_PERCENTAGES
    ),
    Metric("removable/share", "proportion of heads that can be removed", "", "higher", "share"),
    Metric(
        "labels/agreement",
        "proportion of heads with the same pattern names on another text",
        "",
        "higher",
        "share",
    ),
    VALIDATION_LOSS,
)


class Pruning:
    """Removes heads and measures the rise of the loss.

    Metrics: `removable/share`, the proportion of heads whose removal alone raises the loss by at most
    `tolerance` times max(loss, 1 nat); `pruned/<25|50|75>`, the rise of the loss in nats without this
    percentage of heads; `labels/agreement`, the proportion of heads with the same pattern names on two sets
    of texts.

    Args:
        mean: replace a head's output by its mean instead of zeros.
        shuffled: remove heads in random order instead of the least important first.
    """

    metrics = METRICS

    def __init__(
        self, seed: int, tolerance: float = 0.01, mean: bool = False, shuffled: bool = False
    ) -> None:
        if not 0 < tolerance < 1:
            raise ValueError(
                f"measurement.tolerance must be a proportion of the loss between 0 and 1, got {tolerance}"
            )
        self.seed = seed
        self.tolerance = tolerance
        self.mean = mean
        self.shuffled = shuffled

    def check(self, model: Transformer, data: Any) -> None:
        """Validate the measurement against model and data.

        Raises:
            ValueError: the model has a mixer without heads, or the data has fewer than two windows.
        """
        if not all(isinstance(block.mixer, Attention) for block in model.blocks):
            raise ValueError("measurement needs attention heads to remove, and this model has another mixer")
        if data.task.val_windows < 2:
            raise ValueError("measurement needs two validation windows: raise data.val_windows")

    @torch.no_grad()
    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Rank the heads, then remove them."""
        model: Transformer = module.model
        halves = [
            [{key: value[part::2] for key, value in batch.items()} for batch in data.val_dataloader()]
            for part in (0, 1)
        ]
        halves = [[batch for batch in half if len(batch["tokens"])] for half in halves]
        heads = [(n, h) for n, block in enumerate(model.blocks) for h in range(_count_heads(block.mixer))]
        mean_outputs = _compute_mean_outputs(model, module, halves[0], device) if self.mean else None

        def compute_loss(half: int, ablated: Sequence[Head]) -> float:
            with ablate_heads(model, ablated, mean_outputs):
                return compute_validation_loss(module, halves[half], device)

        full_loss = compute_loss(1, [])
        ablated_losses = [compute_loss(1, [head]) for head in heads]
        importance = {head: compute_loss(0, [head]) for head in heads}
        if self.shuffled:
            permutation = torch.randperm(len(heads), generator=make_named_generator(self.seed, "pruning"))
            order = [heads[n] for n in permutation.tolist()]
        else:
            order = sorted(heads, key=importance.__getitem__)
        rises = {count: compute_loss(1, order[:count]) - full_loss for count in range(1, len(heads) + 1)}
        rises[0] = 0.0
        metrics = {
            f"pruned/{percentage}": rises[round(percentage * len(heads) / 100)]
            for percentage in PRUNED_PERCENTAGES
        }
        metrics |= {
            "removable/share": compute_removable_proportion(ablated_losses, full_loss, self.tolerance),
            VALIDATION_LOSS.name: full_loss,
        }
        metrics["labels/agreement"] = _compute_pattern_agreement(model, halves, data.task.length)
        series = {"loss_rise_by_heads_gone": dict(sorted(rises.items()))}
        return MeasurementResult(metrics, series=series)


def compute_removable_proportion(
    ablated_losses: Sequence[float], full_loss: float, tolerance: float
) -> float:
    """Return the proportion of `ablated_losses` within tolerance of `full_loss`.

    Each ablated loss is without one head. A solved task has a loss near zero, so that any rise is a large
    proportion of it; the tolerance is then relative to one nat.
    """
    return sum(loss - full_loss <= tolerance * max(full_loss, 1.0) for loss in ablated_losses) / len(
        ablated_losses
    )


@contextmanager
def ablate_heads(
    model: Transformer, ablated: Sequence[Head], stand_ins: Sequence[Tensor] | None = None
) -> Iterator[None]:
    """Within this context, these heads output zeros, or their row of `stand_ins`.

    `stand_ins` holds [head, width] per layer.
    """

    def replace_outputs(layer: int, y_BHTV: Tensor) -> Tensor:
        heads = [head for n, head in ablated if n == layer]
        if not heads:
            return y_BHTV
        y_BHTV = y_BHTV.clone()
        y_BHTV[:, heads] = 0.0 if stand_ins is None else stand_ins[layer][heads][:, None].to(y_BHTV)
        return y_BHTV

    with _intercept_merge(model, replace_outputs):
        yield


def _compute_mean_outputs(model: Transformer, module: Any, batches: Any, device: str) -> list[Tensor]:
    """Return the mean output of every head over the tokens of the batches, per layer [head, width]."""
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    def accumulate_outputs(layer: int, y_BHTV: Tensor) -> Tensor:
        outputs = merge_heads(y_BHTV).flatten(0, -2)
        sums[layer] = sums.get(layer, 0) + outputs.sum(0)
        counts[layer] = counts.get(layer, 0) + len(outputs)
        return y_BHTV

    with _intercept_merge(model, accumulate_outputs):
        compute_validation_loss(module, batches, device)
    return [
        (sums[n] / counts[n]).unflatten(-1, (_count_heads(block.mixer), -1))
        for n, block in enumerate(model.blocks)
    ]


@contextmanager
def _intercept_merge(model: Transformer, change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Within this context, `change(layer, values)` replaces every layer's attended values [B, H, T, V]."""
    layers: list[Any] = [block.mixer.heads for block in model.blocks]
    for n, heads in enumerate(layers):

        def merge_intercepted(
            y_BHTV: Tensor, n: int = n, merge: Callable[[Tensor], Tensor] = heads.merge
        ) -> Tensor:
            return merge(change(n, y_BHTV))

        heads.merge = merge_intercepted
    try:
        yield
    finally:
        for heads in layers:
            del heads.merge  # restores the method of the class


def _compute_pattern_agreement(model: Transformer, halves: Sequence[Sequence[Any]], length: int) -> float:
    """Return the proportion of heads with the same names on texts of the two halves."""
    by_half = []
    for half in halves:
        examples = [text for batch in half for text in select_probe_examples(batch, N_EXAMPLES_PER_HALF)][
            :N_EXAMPLES_PER_HALF
        ]
        scores = compute_head_scores(model, examples, length)
        tables = {name: table for name, table in scores.items() if name not in ("chance", "notes")}
        names = match_head_patterns(
            {name: table for name, table in tables.items() if table}, scores["chance"]
        )
        by_half.append(
            [{name for name in head if name in TEXT_PATTERNS} for layer in names for head in layer]
        )
    return sum(first == second for first, second in zip(*by_half, strict=True)) / len(by_half[0])


def _count_heads(layer: Attention) -> int:
    """Return the number of heads whose outputs are merged."""
    return layer.heads.n_heads
