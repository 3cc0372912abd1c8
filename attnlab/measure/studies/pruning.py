"""Heads taken out of a trained model, one at a time and one after another, without any training after.

Importance (the loss that a head's absence costs) is found on one half of the validation windows, and all
figures come from the other half: a head that is unimportant by chance would flatter its own removal.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attnlab.attention.heads.projections import merged
from attnlab.attention.layer import Attention
from attnlab.measure.heads import head_scores, probe_texts
from attnlab.measure.measurement import Measured
from attnlab.measure.patterns import names_of
from attnlab.measure.studies.losses import validation_loss
from attnlab.model.initial import named_generator
from attnlab.model.loss import VALIDATION
from attnlab.model.transformer import Transformer
from attnlab.store.schema import Metric

Head = tuple[int, int]  # layer, head
BY_TEXT = ("positional", "local", "sink", "uniform")  # names that come from text; others from random tokens
TEXTS = 16  # in each of the two sets that heads are named on
SHARES = (25, 50, 75)  # of the heads, in percent
METRICS = (
    *(
        Metric(f"pruned/{share}", f"rise of the loss with {share} % of the heads gone", "nats", "lower")
        for share in SHARES
    ),
    Metric("removable/share", "share of heads that can be taken out", "", "higher", "share"),
    Metric("labels/agreement", "share of heads with the same names on another text", "", "higher", "share"),
    VALIDATION,
)


class Pruning:
    """Metrics: `removable/share`, the share of heads whose absence alone raises the loss by at most
    `tolerance` of it, or of one nat where it is less; `pruned/<25|50|75>`, the rise of the loss in nats with
    that share of heads gone; `labels/agreement`, the share of heads that get the same names on two sets of
    texts.

    `mean` puts a head's mean output in its place, else zeros. `shuffled` takes heads in random order instead
    of the least important first.
    """

    def __init__(
        self, seed: int, tolerance: float = 0.01, mean: bool = False, shuffled: bool = False
    ) -> None:
        if not 0 < tolerance < 1:
            raise ValueError(f"measurement.tolerance={tolerance}: give a share of the loss between 0 and 1")
        self.seed = seed
        self.tolerance = tolerance
        self.mean = mean
        self.shuffled = shuffled

    def check(self, model: Transformer, data: Any) -> None:
        """ValueError where there are no heads to take out, or no windows to do it on."""
        if not all(isinstance(block.mixer, Attention) for block in model.blocks):
            raise ValueError(
                "measurement: heads are taken out of attention, and this model has another mixer"
            )
        if data.task.val_windows < 2:
            raise ValueError("measurement needs two validation windows: raise data.val_windows")

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [metric.name for metric in METRICS]

    @torch.no_grad()
    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Ranks the heads, then takes them out."""
        model: Transformer = module.model
        halves = [[_rows(batch, part) for batch in data.val_dataloader()] for part in (0, 1)]
        halves = [[batch for batch in half if len(batch["tokens"])] for half in halves]
        heads = [(n, h) for n, block in enumerate(model.blocks) for h in range(_count(block.mixer))]
        stand_ins = _means(model, module, halves[0], device) if self.mean else None

        def loss(half: int, gone: Sequence[Head]) -> float:
            with without(model, gone, stand_ins):
                return validation_loss(module, halves[half], device)

        whole = loss(1, [])
        alone = [loss(1, [head]) for head in heads]
        importance = {head: loss(0, [head]) for head in heads}
        if self.shuffled:
            drawn = torch.randperm(len(heads), generator=named_generator(self.seed, "pruning"))
            order = [heads[n] for n in drawn.tolist()]
        else:
            order = sorted(heads, key=importance.__getitem__)
        rises = {count: loss(1, order[:count]) - whole for count in range(1, len(heads) + 1)}
        rises[0] = 0.0
        metrics = {f"pruned/{share}": rises[round(share * len(heads) / 100)] for share in SHARES}
        metrics |= {"removable/share": removable(alone, whole, self.tolerance), VALIDATION.name: whole}
        metrics["labels/agreement"] = _agreement(model, halves, data.task.length)
        series = {"loss_rise_by_heads_gone": dict(sorted(rises.items()))}
        return Measured(metrics, declared=METRICS, series=series)


def removable(alone: Sequence[float], whole: float, tolerance: float) -> float:
    """The share of `alone`, losses with one head gone, that is near enough to `whole`, the loss with all.

    A task that is solved leaves a loss near zero, of which any rise is a large share: there a nat counts.
    """
    return sum(loss - whole <= tolerance * max(whole, 1.0) for loss in alone) / len(alone)


@contextmanager
def without(
    model: Transformer, gone: Sequence[Head], stand_ins: Sequence[Tensor] | None = None
) -> Iterator[None]:
    """Within it these heads give zeros, or their row of `stand_ins` (per layer [head, width])."""

    def replaced(layer: int, y_BHTV: Tensor) -> Tensor:
        taken = [head for n, head in gone if n == layer]
        if not taken:
            return y_BHTV
        y_BHTV = y_BHTV.clone()
        y_BHTV[:, taken] = 0.0 if stand_ins is None else stand_ins[layer][taken][:, None].to(y_BHTV)
        return y_BHTV

    with _before_merging(model, replaced):
        yield


def _means(model: Transformer, module: Any, batches: Any, device: str) -> list[Tensor]:
    """Mean output of every head over the tokens of the batches: per layer [head, width]."""
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}

    def kept(layer: int, y_BHTV: Tensor) -> Tensor:
        outputs = merged(y_BHTV).flatten(0, -2)
        sums[layer] = sums.get(layer, 0) + outputs.sum(0)
        counts[layer] = counts.get(layer, 0) + len(outputs)
        return y_BHTV

    with _before_merging(model, kept):
        validation_loss(module, batches, device)
    return [
        (sums[n] / counts[n]).unflatten(-1, (_count(block.mixer), -1)) for n, block in enumerate(model.blocks)
    ]


@contextmanager
def _before_merging(model: Transformer, change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Within it the attended values of every layer, [B, H, T, V], are what `change(layer, values)` makes."""
    layers: list[Any] = [block.mixer.heads for block in model.blocks]
    for n, heads in enumerate(layers):

        def changed(y_BHTV: Tensor, n: int = n, merge: Callable[[Tensor], Tensor] = heads.merge) -> Tensor:
            return merge(change(n, y_BHTV))

        heads.merge = changed
    try:
        yield
    finally:
        for heads in layers:
            del heads.merge  # the class's own again


def _agreement(model: Transformer, halves: Sequence[Sequence[Any]], length: int) -> float:
    """The share of heads whose names agree between texts of the two halves."""
    by_half = []
    for half in halves:
        texts = [text for batch in half for text in probe_texts(batch, TEXTS)][:TEXTS]
        scores = head_scores(model, texts, length)
        tables = {name: table for name, table in scores.items() if name not in ("chance", "notes")}
        names = names_of({name: table for name, table in tables.items() if table}, scores["chance"])
        by_half.append([{name for name in head if name in BY_TEXT} for layer in names for head in layer])
    return sum(first == second for first, second in zip(*by_half, strict=True)) / len(by_half[0])


def _count(layer: Attention) -> int:
    """Heads whose outputs are merged."""
    return layer.heads.n_heads


def _rows(batch: dict[str, Tensor], part: int) -> dict[str, Tensor]:
    return {key: value[part::2] for key, value in batch.items()}
