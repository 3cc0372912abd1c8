"""Feeds a task to the trainer: training batch i is a function of (seed, i), and one epoch is the whole run.

Surprising: the loaders are plain iterables. A `DataLoader` draws from the global random state each time it
is iterated, validation included, which would tie dropout to the validation schedule; and a stock
one, resumed in mid-epoch, starts its order over. These start where the optimiser's step count says.
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

PROBE = 128  # tokens of a probe at most: an attention map of more is too large to look at


class Data(pl.LightningDataModule):
    """`task` makes the task; it is given all the settings that are not the data module's own, so that
    `data.length` or `data.path` are arguments of the task, and a misspelt one is refused by it.

    `max_epochs` is for who plans a run: none is to read the text more often; None: as often as it likes."""

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
        for key, value, least in (
            ("batch_size", batch_size, 1),
            ("val_batch_size", val_batch_size, 1),
            ("num_workers", num_workers, 0),
        ):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"data.{key}={value}: it must be a whole number, at least {least}")
        self.task = task(**options)
        self.batch_size = batch_size
        self.seed = seed
        self.num_workers = num_workers
        self.max_epochs = max_epochs
        self.split = 1  # a batch is trained in so many parts, where memory asks for it
        self._val = self.task.val_batches(val_batch_size)

    def train_dataloader(self) -> "Steps":
        trainer = self.trainer
        assert trainer is not None
        if trainer.max_steps < 1:
            raise ValueError(f"trainer.max_steps={trainer.max_steps}: a run needs a fixed number of steps")
        passes = trainer.accumulate_grad_batches
        draw = partial(self._draw_step, passes=passes, rank=trainer.global_rank, ranks=trainer.world_size)
        return Steps(
            draw,
            start=lambda: trainer.global_step,
            stop=trainer.max_steps,
            workers=self.num_workers,
            passes=passes,
        )

    def _draw_step(self, step: int, passes: int, rank: int, ranks: int) -> list[Batch]:
        """The batches of this device's forward passes in an optimizer step, in order; each is drawn once.

        Batches differ in how many targets count, and so do parts of a batch. Where a step has more than one
        part, `scored` is the number of targets that count in the whole step, on all devices.
        """
        batches = passes // self.split
        drawn = [
            self.task.train_batch(self.seed, step * batches + n, self.batch_size) for n in range(batches)
        ]
        parts = self.split * ranks
        if batches * parts == 1:
            return drawn
        scored = torch.stack([(batch["targets"] >= 0).sum() for batch in drawn]).sum()
        return [
            {**take_rows(batch, part * ranks + rank, parts), "scored": scored}
            for batch in drawn
            for part in range(self.split)
        ]

    def val_dataloader(self) -> "Steps":
        return Steps(lambda n: [self._val[n]], start=lambda: 0, stop=len(self._val), workers=0)

    def probe(self, count: int) -> Tensor:
        """The first tokens of the first validation examples, [count, at most 128], for attention maps."""
        tokens = torch.cat([batch["tokens"] for batch in self._val])
        return tokens[:count, :PROBE]

    def facts(self) -> dict[str, Any]:
        """The data of a run, as its plan and its record show them; a task that has a vocabulary adds its
        digest.
        """
        task = self.task
        known = {"vocabulary": task.vocabulary().digest()} if hasattr(task, "vocabulary") else {}
        return known | {
            "name": task.name,
            "sha256": task.fingerprint,
            "train_tokens": task.train_tokens,
            "val_tokens": task.val_tokens,
            "vocab_size": task.vocab_size,
            "val_windows": task.val_windows,
            "unit": task.unit,
            "validation": self._validation_digest(),
            **({"val_text": task.val_text["sha256"]} if hasattr(task, "val_text") else {}),
        }

    def _validation_digest(self) -> str:
        """A sha256 of all that is scored in validation: runs whose losses may be compared have the same. The
        size of the batches has no part in it.
        """
        found = hashlib.sha256(f"{self.task.unit} {self.task.vocab_size}".encode())
        for batch in self.val_dataloader():
            for rows in zip(*(batch[key] for key in sorted(batch)), strict=True):
                for row in rows:
                    found.update(row.numpy().tobytes())
        return found.hexdigest()


def take_rows(batch: Batch, part: int, parts: int) -> Batch:
    """One of `parts` parts of a batch: every so many-th row."""
    return {key: value[part::parts] for key, value in batch.items()}


class Steps:
    """The batches of steps `start()` up to `stop`; `draw(step)` gives the `passes` batches of one. The length
    is that of all steps when resumed too: the trainer counts from 0.
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
            range(self.stop),  # type: ignore[arg-type]  # all that a data set needs here is its length
            batch_size=None,
            sampler=indices,
            collate_fn=cast(Any, self.draw),  # of one index, as batch_size is None
            num_workers=self.workers,
            generator=torch.Generator(),  # its own, so that the global random state is left alone
        )
        return chain.from_iterable(loader)

    # The trainer's checkpoint holds the position already, as its step count. These two say that we know how
    # to resume; without them Lightning warns.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
