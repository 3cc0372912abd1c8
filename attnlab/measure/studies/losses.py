"""The loss of the weights as they are: a converted or stretched model before anything is trained on it."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field

from attnlab.measure import length
from attnlab.measure.measurement import Measured, length_names
from attnlab.model.loss import VALIDATION
from attnlab.model.transformer import Transformer


class Losses:
    """Metrics: `val/loss`, and where `lengths` are given `length/<multiple>` and the others of
    `measure.length`, with multiples of `trained`, or of data.length.
    """

    def __init__(
        self,
        lengths: Sequence[Annotated[float, Field(ge=1)]] = (),
        trained: Annotated[int, Field(ge=2)] | None = None,
    ) -> None:
        self.lengths = list(lengths)
        self.trained = trained

    def check(self, model: Transformer, data: Any) -> None:
        """ValueError where the data has no such lengths."""
        length.check(self.lengths, data.task, self.trained)

    def measures(self) -> list[str]:
        """The names of all its metrics."""
        return [VALIDATION.name, *length_names(self.lengths)]

    @torch.no_grad()
    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        """Over the validation windows."""
        by_length = length.losses(module.model, data.task, self.lengths, device, self.trained)
        known = {name: value for name, value in by_length.items() if value is not None}
        metrics = {VALIDATION.name: validation_loss(module, data.val_dataloader(), device), **known}
        return Measured(metrics, declared=[VALIDATION, *map(length.declared, known)])


def validation_loss(module: Any, batches: Any, device: str) -> float:
    """Mean loss over the targets that count."""
    total = 0.0
    count = 0
    for batch in batches:
        here = {key: value.to(device) for key, value in batch.items()}
        total += module.losses(here).double().sum().item()
        count += int((here["targets"] >= 0).sum())
    return total / count
