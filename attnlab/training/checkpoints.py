"""Saving, atomic writing and selection of checkpoints."""

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

from attnlab.errors import escape_unprintable
from attnlab.store.atomic_files import CHECKPOINT_NAMES, TRUNK_CHECKPOINT, replace_atomically
from attnlab.store.run_directories import load_run_config
from attnlab.store.run_schema import RunConfig
from attnlab.training.callbacks import StepCallback, find_map_steps

SIGTERM_EXIT_CODE = 128 + signal.SIGTERM
RUN_ID_KEY = "attnlab_run"  # checkpoint key of the run id


@final
class CheckpointSaver(StepCallback):
    """Save last.ckpt every `every` steps; the one before it stays as previous.ckpt.

    Each checkpoint carries its run id, which is the folder's name. On SIGTERM, which schedulers send, the
    step ends, a checkpoint is saved, and the process exits with 143. A second SIGTERM exits at once.

    The state after `trunk_step` steps stays as trunk.ckpt, for runs of larger budgets.
    """

    def __init__(self, folder: Path, every: int, trunk_step: int | None = None) -> None:
        if every < 1:
            raise ValueError(f"sweep.checkpoint_every must be at least 1, got {every}")
        self.path = folder / CHECKPOINT_NAMES[0]
        self.every = every
        self.trunk_step = trunk_step
        self.is_due = False
        self.is_terminating = False
        self._previous_handler: Any = None  # earlier SIGTERM handler

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Install the SIGTERM handler: an exception within a step would save half a step."""
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._handle_sigterm)

    def teardown(self, trainer: pl.Trainer, module: Any, stage: str) -> None:
        """Restore the earlier SIGTERM handler."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None

    def _handle_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_terminating:
            raise SystemExit(SIGTERM_EXIT_CODE)
        self.is_terminating = True

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the run id."""
        checkpoint[RUN_ID_KEY] = self.path.parent.resolve().name

    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Save if due, unless the run is about to end, or a validation comes first, which would be lost."""
        step = trainer.global_step
        if trainer.world_size > 1:  # all ranks save a checkpoint together
            self.is_terminating = trainer.strategy.reduce_boolean_decision(self.is_terminating, all=False)
        is_due = step % self.every == 0 or self.is_terminating or step == self.trunk_step
        self.is_due = is_due and step != trainer.max_steps
        validates: Any = trainer.val_check_batch  # a number, as val_check_interval is
        if self.is_due and (step * trainer.accumulate_grad_batches) % validates:
            self._save_checkpoint(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Save the checkpoint that the validation delayed."""
        if self.is_due:
            self._save_checkpoint(trainer)

    def _save_checkpoint(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.path)
        if trainer.global_step == self.trunk_step:
            trainer.save_checkpoint(self.path.with_name(TRUNK_CHECKPOINT))
        self.is_due = False
        if self.is_terminating:
            raise SystemExit(SIGTERM_EXIT_CODE)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Atomic writing of Lightning checkpoints, in two generations.

    Checkpoints are loaded without executing code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_readable = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Replace `path`; a last.ckpt before it becomes previous.ckpt.

        The first checkpoint is read back: a callback may store objects that cannot be loaded, and a resumed
        run would silently start over.
        """
        path = Path(path)
        with replace_atomically(path) as temporary:
            try:
                torch.save(checkpoint, temporary)
            except RuntimeError as error:  # torch hides the errno
                raise OSError(f"{path} could not be written: is the disk full?") from error
            if not self.is_readable:
                self._require_readable(temporary)
            if path.name == CHECKPOINT_NAMES[0] and path.exists():
                path.replace(path.with_name(CHECKPOINT_NAMES[1]))

    def _require_readable(self, path: Path) -> None:
        try:
            self.load_checkpoint(path)
        except pickle.UnpicklingError as error:
            raise ValueError(
                "a callback's state cannot be read from a checkpoint: its state_dict() may hold tensors, "
                f"numbers, strings, and lists and dicts of them ({str(error).splitlines()[0]})"
            ) from error
        self.is_readable = True

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = True
    ) -> Any:
        """Load tensors and plain values only."""
        return torch.load(path, map_location="cpu", weights_only=True)


def find_newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest intact checkpoint of this run, or None.

    torch loads a file with a flipped bit, so the checksums of the archive are verified. A checkpoint of
    another run, or without a run id, is renamed to `*.foreign` and reported instead of being resumed.
    """
    for name in CHECKPOINT_NAMES:
        path = folder / name
        try:
            run_id = _read_checkpoint(path).get(RUN_ID_KEY)
        except Exception:  # missing, truncated, or not written by attnlab
            continue
        if run_id == folder.resolve().name:
            return path
        _set_aside_foreign(path, run_id)
    return None


def find_trunk(folder: Path, run_config: RunConfig) -> Path | None:
    """Return the trunk checkpoint of the run that `use.trunk` names, if this run starts with the same steps.

    That run must have the same config up to a smaller `trainer.max_steps`, record curves and maps at the same
    steps, and split its batches alike. Without it, this run trains all steps, with the same result.
    """
    if run_config.use.trunk is None:
        return None
    trunk_folder = folder.parent / run_config.use.trunk.id
    path = trunk_folder / TRUNK_CHECKPOINT
    try:
        trunk = load_run_config(trunk_folder)
        checkpoint = _read_checkpoint(path)
    except Exception:  # missing or damaged
        return None
    if checkpoint.get(RUN_ID_KEY) != trunk_folder.name:
        return None
    shared_step = checkpoint["global_step"]
    steps, trunk_steps = (run.config["trainer"]["max_steps"] for run in (run_config, trunk))
    same_config = _strip_budget(run_config) == _strip_budget(trunk)
    if not same_config or run_config.use.split != trunk.use.split or trunk_steps > steps:
        return None
    if not shared_step == run_config.use.trunk.step == trunk.estimate.shared_steps:
        return None
    recorded, trunk_recorded = (
        _list_recorded_steps(run_config, budget, shared_step) for budget in (steps, trunk_steps)
    )
    return path if recorded == trunk_recorded else None


def _list_recorded_steps(run_config: RunConfig, budget: int, last_step: int) -> tuple[int, int, list[int]]:
    """Return how often curves are recorded with a budget, and the steps of maps, up to a last step."""
    measure, trainer = run_config.config["measure"], run_config.config["trainer"]
    map_steps = [step for step in find_map_steps(measure["maps"], budget) if step <= last_step]
    return min(measure["every"], budget), min(trainer["log_every_n_steps"], budget), map_steps


def _strip_budget(run_config: RunConfig) -> dict[str, Any]:
    """Return what a run's id hashes, without its number of steps."""
    config = run_config.identity["config"]
    trainer = {key: value for key, value in config["trainer"].items() if key != "max_steps"}
    return {**run_config.identity, "config": {**config, "trainer": trainer}}


def _read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint.

    Raises:
        ValueError: a checksum of the archive does not match, among other errors of damaged files.
    """
    with zipfile.ZipFile(path) as archive:
        if archive.testzip() is not None:
            raise ValueError(f"{path} is damaged")
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


def _set_aside_foreign(path: Path, run_id: Any) -> None:
    """Rename a checkpoint of another run; earlier renamed files stay."""
    reason = f"belongs to run {run_id}" if isinstance(run_id, str) else "has no run id"
    numbers = itertools.count(2)
    new_path = path.with_name(f"{path.name}.foreign")
    while new_path.exists():
        new_path = path.with_name(f"{path.name}.foreign{next(numbers)}")
    with suppress(FileNotFoundError):  # another rank was faster
        path.rename(new_path)
        print(
            escape_unprintable(
                f"{path} {reason}: training does not resume from it; it was renamed to {new_path.name}"
            ),
            flush=True,
        )
