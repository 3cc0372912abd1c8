"""The data module that feeds a task to the trainer.

Training batch i is a function of (seed, i), and one epoch is the whole run. The loaders are plain iterables
that start at the optimizer's step count. A `DataLoader` would draw from the global random state at each
iteration, validation included, which would tie dropout to the validation schedule. A stock `DataLoader`
resumed in mid-epoch also restarts its order.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from attnlab.data.task import Batch, Task

MAX_MAP_TOKENS = 128  # of a probe; attention maps of longer inputs are too large to read


class DataModule(pl.LightningDataModule):
    """Builds a task and feeds its batches to the trainer.

    Args:
        task: builds the task from all settings that are not the data module's own, so that `data.length` or
            `data.path` are arguments of the task, which rejects misspelled ones.
        max_epochs: limit on how often a run may read the text, used in planning; None for no limit.
    """

    def __init__(
        self,
        task: Callable[..., Task],
        batch_size: int,
        val_batch_size: int,
        seed: int,
        num_workers: int = 0,
        max_epochs: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for key, value, minimum in (
            ("batch_size", batch_size, 1),
            ("val_batch_size", val_batch_size, 1),
            ("num_workers", num_workers, 0),
        ):
            if not isinstance(value, int) or value < minimum:
                raise ValueError(f"data.{key} must be an integer of at least {minimum}, got {value}")
        self.task = task(**options)
        self.batch_size = batch_size
        self.seed = seed
        self.num_workers = num_workers
        self.max_epochs = max_epochs
        self.micro_batches = 1  # parts that a batch is split into to fit in memory
        self.val_batch_size = val_batch_size
        self.val_batches = self.task.val_batches(val_batch_size)

    def train_dataloader(self) -> "StepLoader":
        trainer = self.trainer
        assert trainer is not None
        if trainer.max_steps < 1:
            raise ValueError(f"trainer.max_steps must be at least 1, got {trainer.max_steps}")
        passes = trainer.accumulate_grad_batches
        draw = partial(
            self._draw_step_batches, passes=passes, rank=trainer.global_rank, ranks=trainer.world_size
        )
        return StepLoader(
            draw,
            start=lambda: trainer.global_step,
            stop=trainer.max_steps,
            workers=self.num_workers,
            passes=passes,
        )

    def _draw_step_batches(self, step: int, passes: int, rank: int, ranks: int) -> list[Batch]:
        """Return the batches of this device's forward passes in an optimizer step, in order, each drawn once.

        Batches differ in their number of scored targets, and so do the parts of a batch. If a step has more
        than one part, `scored` is the number of scored targets in the whole step, on all devices.
        """
        batches = passes // self.micro_batches
        step_batches = [
            self.task.train_batch(self.seed, step * batches + n, self.batch_size) for n in range(batches)
        ]
        parts = self.micro_batches * ranks
        if batches * parts == 1:
            return step_batches
        scored = torch.stack([(batch["targets"] >= 0).sum() for batch in step_batches]).sum()
        return [
            {**take_rows(batch, part * ranks + rank, parts), "scored": scored}
            for batch in step_batches
            for part in range(self.micro_batches)
        ]

    def val_dataloader(self) -> "StepLoader":
        return StepLoader(
            lambda n: [self.val_batches[n]], start=lambda: 0, stop=len(self.val_batches), workers=0
        )

    def probe_tokens(self, count: int) -> Tensor:
        """Return the first tokens of the first validation examples [count, up to 128] for attention maps."""
        tokens = torch.cat([batch["tokens"] for batch in self.val_batches])
        return tokens[:count, :MAX_MAP_TOKENS]

    def describe(self) -> dict[str, Any]:
        """Return the description of the data for a run's plan and result.

        A task with a vocabulary adds its digest.
        """
        task = self.task
        vocabulary_entry = (
            {"vocabulary": task.vocabulary().compute_digest()} if hasattr(task, "vocabulary") else {}
        )
        return vocabulary_entry | {
            "name": task.name,
            "sha256": task.fingerprint,
            "train_tokens": task.train_tokens,
            "val_tokens": task.val_tokens,
            "vocab_size": task.vocab_size,
            "val_windows": task.val_windows,
            "unit": task.unit,
            "validation": self._hash_validation_batches(),
            **({"val_text": task.val_text["sha256"]} if hasattr(task, "val_text") else {}),
            **({"overlap": task.overlap} if hasattr(task, "overlap") else {}),
        }

    def _hash_validation_batches(self) -> str:
        """Return a sha256 of everything that validation scores, independent of the batch size.

        Two runs' losses are comparable only if this hash is equal.
        """
        digest = hashlib.sha256(f"{self.task.unit} {self.task.vocab_size}".encode())
        for batch in self.val_dataloader():
            for rows in zip(*(batch[key] for key in sorted(batch)), strict=True):
                for row in rows:
                    digest.update(row.numpy().tobytes())
        return digest.hexdigest()


def take_rows(batch: Batch, part: int, parts: int) -> Batch:
    """Return one of `parts` parts of a batch: every `parts`-th row, starting at `part`."""
    return {key: value[part::parts] for key, value in batch.items()}


class StepLoader:
    """Yields the batches of steps `start()` to `stop`; `draw(step)` returns the `passes` batches of a step.

    The length always counts all steps, also in a resumed run, because the trainer counts from 0.
    """

    def __init__(
        self,
        draw: Callable[[int], list[Batch]],
        start: Callable[[], int],
        stop: int,
        workers: int,
        passes: int = 1,
    ) -> None:
        self.draw = draw
        self.start = start
        self.stop = stop
        self.workers = workers
        self.passes = passes

    def __len__(self) -> int:
        return self.stop * self.passes

    def __iter__(self) -> Iterator[Batch]:
        indices = range(self.start(), self.stop)
        if not self.workers:
            return chain.from_iterable(map(self.draw, indices))
        loader: DataLoader[Any] = DataLoader(
            range(self.stop),  # type: ignore[arg-type]  # only the data set's length is used
            batch_size=None,
            sampler=indices,
            collate_fn=cast(Any, self.draw),  # of one index, as batch_size is None
            num_workers=self.workers,
            generator=torch.Generator(),  # a separate generator leaves the global random state unchanged
        )
        return chain.from_iterable(loader)

    # The trainer's checkpoint already holds the position, as its step count. Lightning warns unless these two
    # methods exist.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
