"""Observation of what else happens with the validation batches of a run than its own validation.

A callback that trains on them, or changes them, makes the run's loss no loss of held-out data.
"""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnlab.data.data_module import DataModule
from attnlab.data.task import Batch

BATCH_HOOKS = ("on_validation_batch_start", "on_validation_batch_end")
OTHER_READS = "validation batches are read outside validation"
CHANGED_BATCHES = "validation batches change during training"
CHANGED_WEIGHTS = "weights change within a validation"
_MAP_READS = 1  # the attention maps read the first batch when training starts
_OBSERVERS = ("attnlab", "pytorch_lightning")


class CountedBatches(list[Batch]):
    """Validation batches that count their reads."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.reads += 1
            yield batch


class ValidationWatch(pl.Callback):
    """Collects in `interference` what the user's parts do with validation batches, in a phrase each.

    The hooks of a callback that receive the batches count whatever they do with them. Weights may be swapped
    around a validation, as by a moving average, but not between its first and its last batch.
    """

    def __init__(self) -> None:
        self.interference: tuple[str, ...] = ()
        self._data: DataModule | None = None
        self._batches = CountedBatches()
        self._expected_reads = 0
        self._digest: Any = None
        self._norms: Tensor | None = None

    def on_fit_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Find the hooks that receive validation batches, and start counting reads of the batches."""
        for part in (*trainer.callbacks, module):  # type: ignore[attr-defined]  # set by its callback connector
            for name in BATCH_HOOKS:
                hook = getattr(part, name)
                if str(getattr(hook, "__module__", "")).partition(".")[0] not in _OBSERVERS:
                    self._add(f"{type(part).__qualname__}.{name} receives validation batches")
        data = trainer.datamodule  # type: ignore[attr-defined]  # set by its data connector
        if isinstance(data, DataModule):
            self._data = data
            self._digest = data.describe()["validation"]
            self._batches = CountedBatches(data.val_batches)
            data.val_batches = self._batches
            self._expected_reads = _MAP_READS

    def on_validation_batch_start(
        self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Summarize the weights that are validated."""
        if batch_idx == 0:
            self._norms = _compute_norms(module)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Compare the weights after the last batch."""
        is_last = batch_idx + 1 == trainer.num_val_batches[0]
        if is_last and self._norms is not None and not torch.equal(self._norms, _compute_norms(module)):
            self._add(CHANGED_WEIGHTS)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Compare the batches and their reads with those of all validations so far."""
        self._expected_reads += len(self._batches)
        self._compare_batches()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Compare the batches and their reads since the last validation."""
        self._compare_batches()

    def _compare_batches(self) -> None:
        if self._data is None:
            return
        if self._batches.reads > self._expected_reads:
            self._add(OTHER_READS)
        if self._data.describe()["validation"] != self._digest:
            self._add(CHANGED_BATCHES)
        self._expected_reads = self._batches.reads  # which includes those of the digest

    def _add(self, phrase: str) -> None:
        self.interference = tuple(dict.fromkeys((*self.interference, phrase)))

    def state_dict(self) -> dict[str, Any]:
        """Return what was found so far: a resumed run does not repeat it."""
        return {"interference": list(self.interference)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Add what was found before."""
        for phrase in state.get("interference", ()):
            self._add(phrase)


def _compute_norms(module: pl.LightningModule) -> Tensor:
    norms = [parameter.detach().double().norm() for parameter in module.parameters()]
    return torch.stack(norms) if norms else torch.empty(0)
