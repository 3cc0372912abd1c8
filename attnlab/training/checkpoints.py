"""Checkpoints: when they are saved, how they are written and which of them can be read."""

import itertools
import pickle
import signal
import threading
import zipfile
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, final

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from attnlab.errors import printable
from attnlab.store.files import CHECKPOINTS, replacing
from attnlab.training.callbacks import OnStep

TERMINATED = 128 + signal.SIGTERM
RUN = "attnlab_run"  # the key of a checkpoint that holds its run's id


@final
class Checkpoints(OnStep):
    """Saves last.ckpt every `every` steps; the one before it stays as previous.ckpt.

    Each carries its run's id, which is the folder's name. SIGTERM, the word of a scheduler, lets the step
    end, saves once more and exits with 143; said twice, it exits at once.
    """

    def __init__(self, folder: Path, every: int) -> None:
        if every < 1:
            raise ValueError(f"sweep.checkpoint_every must be at least 1, got {every}")
        self.path = folder / CHECKPOINTS[0]
        self.every = every
        self.due = False
        self.leaving = False
        self._before: Any = None  # what SIGTERM did before

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Takes SIGTERM over: raised within a step, it would leave half of one in the checkpoint."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._leave)

    def teardown(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        """Gives it back."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _leave(self, _number: int, _frame: FrameType | None) -> None:
        if self.leaving:
            raise SystemExit(TERMINATED)
        self.leaving = True

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        """Says whose it is."""
        checkpoint[RUN] = self.path.parent.resolve().name

    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Saves, unless the run is about to end, or a validation comes first: it would be lost."""
        step = trainer.global_step
        if trainer.world_size > 1:  # a checkpoint is saved by all ranks together, or by none
            self.leaving = trainer.strategy.reduce_boolean_decision(self.leaving, all=False)
        self.due = (step % self.every == 0 or self.leaving) and step != trainer.max_steps
        validates: Any = trainer.val_check_batch  # a number, as val_check_interval is
        if self.due and (step * trainer.accumulate_grad_batches) % validates:
            self._save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Saves what the validation kept waiting."""
        if self.due:
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.path)
        self.due = False
        if self.leaving:
            raise SystemExit(TERMINATED)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, written beside, synced and renamed, in two generations; read without
    executing anything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.can_be_read = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Replaces `path`; what was there becomes previous.ckpt. The first one is read back: a callback may
        keep what cannot be, and a run that is resumed would begin anew without a word.
        """
        path = Path(path)
        with replacing(path) as temporary:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:  # torch hides the system's reason behind its own
                raise OSError(f"{path} could not be written: is the disk full?") from error
            if not self.can_be_read:
                self._read_back(temporary)
            if path.exists():
                path.replace(path.with_name(CHECKPOINTS[1]))

    def _read_back(self, path: Path) -> None:
        try:
            self.load_checkpoint(path)
        except pickle.UnpicklingError as error:
            raise ValueError(
                "a callback's state cannot be read from a checkpoint: its state_dict() may hold tensors, "
                f"numbers, strings, and lists and dicts of them ({str(error).splitlines()[0]})"
            ) from error
        self.can_be_read = True

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = True
    ) -> Any:
        """Tensors and plain values only."""
        return torch.load(path, map_location="cpu", weights_only=True)


def newest_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint of this very run that can be read whole, else the one before it, else None.

    Torch loads a file in which a bit has flipped; the archive's own checksums tell. One of another run, or
    that does not say whose it is, would be resumed without a word: it is put aside as `*.foreign`, and named.
    """
    for name in CHECKPOINTS:
        path = folder / name
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    continue
            whose = torch.load(path, map_location="cpu", weights_only=True).get(RUN)
        except Exception:  # missing, cut short, or not ours
            continue
        if whose == folder.resolve().name:
            return path
        _put_aside(path, whose)
    return None


def _put_aside(path: Path, whose: Any) -> None:
    """Renames a checkpoint of another run; what was put aside before stays."""
    says = f"is of run {whose}" if isinstance(whose, str) else "does not say of which run it is"
    numbers = itertools.count(2)
    aside = path.with_name(f"{path.name}.foreign")
    while aside.exists():
        aside = path.with_name(f"{path.name}.foreign{next(numbers)}")
    with suppress(FileNotFoundError):  # another rank was faster
        path.rename(aside)
        print(printable(f"{path} {says}: it is not resumed, and kept as {aside.name}"), flush=True)
