"""Loss at multiples of the trained length, on the same target tokens with more or less context.

A longer window adds context, and also has proportionally fewer tokens with little context. Its mean loss over
all positions falls even for a model that ignores distant tokens. The loss of the last targets is therefore
reported too: the same targets at every length, each with most of the window before it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnlab.model.loss import cross_entropy
from attnlab.model.transformer import Transformer
from attnlab.store.run_schema import Metric

MAX_SPANS = 32  # spans of the longest length; fewer if the validation text has fewer
TOKENS_PER_PASS = 8192  # approximate


def list_length_metrics(lengths: Sequence[float]) -> list[Metric]:
    """Return the metrics of `measure_length_losses` at these multiples of the trained length."""
    names = [f"{part}{multiple:g}" for multiple in lengths for part in ("", "last/")]
    names += [f"excess/{multiple:g}" for multiple in lengths if multiple != 1 and 1 in lengths]
    return [
        Metric(
            f"length/{name}", unit="nats", direction="lower",
            table="Loss by length", axis="multiple of the trained length", evaluated_on="lengths",
        )
        for name in names
    ]  # fmt: skip


def validate_lengths(lengths: Sequence[float], task: Any, trained_length: int | None = None) -> None:
    """Validate that the task has windows of these lengths.

    Args:
        lengths: multiples of `trained_length`, or of data.length.
    """
    if not lengths:
        return
    if not hasattr(task, "spans"):
        raise ValueError(
            f"measure.lengths={list(lengths)} needs a task with longer windows, and {task.name} has none:"
            " set measure.lengths=[]"
        )
    task.spans(1, _scale_length(max(lengths), trained_length or task.length))


def measure_length_losses(
    model: Transformer,
    task: Any,
    lengths: Sequence[float],
    device: torch.device | str,
    trained_length: int | None = None,
) -> dict[str, float | None]:
    """Measure losses at multiples of the trained length.

    Returns:
        length/<m>: mean over all targets of the spans.
        length/last/<m>: mean over the last half trained length of each span.
        length/excess/<m>: `length/<m>` - `length/1`, if 1 is among the lengths.
        A value is None if the model has no such positions: undefined, neither good nor bad.
    """
    if not lengths:
        return {}
    trained_length = trained_length or task.length
    spans = task.spans(MAX_SPANS, _scale_length(max(lengths), trained_length)).to(device)
    last = max(1, trained_length // 2)
    training = model.training
    metrics: dict[str, float | None] = {}
    try:
        model.eval()
        for multiple in lengths:
            losses = _compute_span_losses(model, spans, _scale_length(multiple, trained_length))
            for name, part in ((f"{multiple:g}", slice(None)), (f"last/{multiple:g}", slice(-last, None))):
                metrics[f"length/{name}"] = None if losses is None else losses[:, part].mean().item()
    finally:
        model.train(training)
    base = metrics.get("length/1")
    for multiple in lengths:
        loss = metrics[f"length/{multiple:g}"]
        if base is not None and multiple != 1:
            metrics[f"length/excess/{multiple:g}"] = None if loss is None else loss - base
    return metrics


@torch.no_grad()
def _compute_span_losses(model: Transformer, spans: Tensor, length: int) -> Tensor | None:
    """Return the loss of every target [N, S] of spans [N, S + 1], read in windows of `length`.

    The last window ends with the span; the remainder on the left is a shorter window. None if `length`
    exceeds the model's positions.
    """
    if length > getattr(model.positions, "length", length):
        return None
    window_losses: list[Tensor] = []
    for end in range(spans.shape[1] - 1, 0, -length):
        window = spans[:, max(0, end - length) : end + 1]
        parts = window.split(max(1, TOKENS_PER_PASS // length))
        window_losses.insert(
            0, torch.cat([cross_entropy(model(part[:, :-1]), part[:, 1:]) for part in parts])
        )
    return torch.cat(window_losses, dim=1).double()


def _scale_length(multiple: float, length: int) -> int:
    return round(multiple * length)
