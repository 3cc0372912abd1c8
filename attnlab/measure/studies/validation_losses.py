"""Validation loss of the given weights, as for a converted or length-extended model before training."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field

from attnlab.measure import length_generalization
from attnlab.measure.measurement import MeasurementResult
from attnlab.model.loss import VALIDATION_LOSS
from attnlab.model.transformer import Transformer


class ValidationLosses:
    """Metrics: `val/loss`, and with `lengths` the metrics of `length_generalization`.

    Args:
        lengths: multiples of `trained`.
        trained: the trained length; None for data.length.
    """

    def __init__(
        self,
        lengths: Sequence[Annotated[float, Field(ge=1)]] = (),
        trained: Annotated[int, Field(ge=2)] | None = None,
    ) -> None:
        self.lengths = list(lengths)
        self.trained = trained
        self.metrics = (VALIDATION_LOSS, *length_generalization.list_length_metrics(lengths))

    def check(self, model: Transformer, data: Any) -> None:
        """Validate the lengths."""
        length_generalization.validate_lengths(self.lengths, data.task, self.trained)

    @torch.no_grad()
    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        """Measure over the validation windows."""
        by_length = length_generalization.measure_length_losses(
            module.model, data.task, self.lengths, device, self.trained
        )
        length_losses = {name: value for name, value in by_length.items() if value is not None}
        loss = compute_validation_loss(module, data.val_dataloader(), device)
        return MeasurementResult({VALIDATION_LOSS.name: loss, **length_losses})


def compute_validation_loss(module: Any, batches: Any, device: str) -> float:
    """Return the mean loss over scored targets."""
    total = 0.0
    count = 0
    for batch in batches:
        device_batch = {key: value.to(device) for key, value in batch.items()}
        total += module.losses(device_batch).double().sum().item()
        count += int((device_batch["targets"] >= 0).sum())
    return total / count
