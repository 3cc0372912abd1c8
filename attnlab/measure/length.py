"""Loss at multiples of the trained length, on the same target tokens, with more or less context before them.

Surprising: a longer window does not only add context, it also has fewer tokens with little of it, so its mean
over all positions falls even for a model that ignores what is far. Hence the loss of the last targets too:
the same ones at every length, each with most of the window before it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer
from attnlab.store.schema import Metric

SPANS = 32  # stretches of validation text, each of the longest length; fewer where the text has fewer
TOKENS = 8192  # in one forward pass, about


def declared(name: str) -> Metric:
    """What one of the figures below is."""
    return Metric(
        name, unit="nats", direction="lower",
        table="Loss by length", axis="multiple of the trained length", scores="lengths",
    )  # fmt: skip


def check(lengths: Sequence[float], task: Any, trained: int | None = None) -> None:
    """ValueError where the text has no windows of these lengths, multiples of `trained` or of data.length."""
    if not lengths:
        return
    if not hasattr(task, "spans"):
        raise ValueError(
            f"measure.lengths={list(lengths)}: {task.name} is no running text with longer windows"
        )
    task.spans(1, _tokens(max(lengths), trained or task.length))


def losses(
    model: Transformer,
    task: Any,
    lengths: Sequence[float],
    device: torch.device | str,
    trained: int | None = None,
) -> dict[str, float | None]:
    """`length/<m>`: mean over all targets of the spans. `length/last/<m>`: over the last half trained length
    of each span. `length/excess/<m>`: `length/<m>` less `length/1`, where 1 is among the lengths. None where
    the model has no position to give: that is undefined, and neither good nor bad.
    """
    if not lengths:
        return {}
    trained = trained or task.length
    spans = task.spans(SPANS, _tokens(max(lengths), trained)).to(device)
    last = max(1, trained // 2)
    training = model.training
    metrics: dict[str, float | None] = {}
    try:
        model.eval()
        for multiple in lengths:
            taken = _losses(model, spans, _tokens(multiple, trained))
            for name, part in ((f"{multiple:g}", slice(None)), (f"last/{multiple:g}", slice(-last, None))):
                metrics[f"length/{name}"] = None if taken is None else taken[:, part].mean().item()
    finally:
        model.train(training)
    base = metrics.get("length/1")
    for multiple in lengths:
        here = metrics[f"length/{multiple:g}"]
        if base is not None and multiple != 1:
            metrics[f"length/excess/{multiple:g}"] = None if here is None else here - base
    return metrics


@torch.no_grad()
def _losses(model: Transformer, spans: Tensor, length: int) -> Tensor | None:
    """Loss of every target [N, S] of spans [N, S + 1], read in windows of `length`, the last of which ends
    with the span; what remains on the left is a shorter window.
    """
    if length > getattr(model.positions, "length", length):
        return None
    taken: list[Tensor] = []
    for end in range(spans.shape[1] - 1, 0, -length):
        window = spans[:, max(0, end - length) : end + 1]
        parts = window.split(max(1, TOKENS // length))
        taken.insert(0, torch.cat([cross_entropy(model(part[:, :-1]), part[:, 1:]) for part in parts]))
    return torch.cat(taken, dim=1).double()


def _tokens(multiple: float, length: int) -> int:
    return round(multiple * length)
