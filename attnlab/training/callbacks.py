"""Recording callbacks of a run: curves, attention maps and progress.

Curves and maps are stored in the checkpoint, so a resumed run has the same ones as an uninterrupted run.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, final

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from attnlab.measure.attention_maps import (
    AttentionMaps,
    compute_attention_maps,
    encode_weights,
    select_first_document,
)
from attnlab.store.atomic_files import replace_atomically
from attnlab.store.run_directories import read_progress
from attnlab.training.validation_watch import ValidationWatch


class StepCallback(pl.Callback, ABC):
    """Callback after each optimizer step, which with accumulated gradients is not each batch."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Call `on_step_end` at the end of an optimizer step."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.on_step_end(trainer, module)

    @abstractmethod
    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Handle the end of a step; `trainer.global_step` steps are complete."""


@final
class CurveRecorder(ValidationWatch, StepCallback):
    """Rows (step, tokens, name, value) of training and validation metrics.

    The training loss is recorded every `log_every_n_steps`, the validation loss at each validation. A run
    that continues a trunk sends the rows of the trunk's steps to the loggers, which have none of them.
    """

    def __init__(self, batch_tokens: int, continues_trunk: bool = False) -> None:
        super().__init__()
        self.batch_tokens = batch_tokens
        self.continues_trunk = continues_trunk
        self.rows: list[tuple[int, int, str, float]] = []
        self.training_seconds = 0.0
        self.training_steps = 0
        self._clock_start: float | None = None

    def log_values(self, trainer: pl.Trainer, **values: float) -> None:
        """Record the values of this step and send them to the loggers."""
        step = trainer.global_step
        metrics = {name.replace("__", "/"): value for name, value in values.items()}
        self.rows += [(step, step * self.batch_tokens, name, value) for name, value in metrics.items()]
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Send the rows of a trunk to the loggers."""
        if self.continues_trunk:
            for step, rows in groupby(self.rows, key=itemgetter(0)):
                metrics = {name: value for _, _, name, value in rows}
                for logger in trainer.loggers:
                    logger.log_metrics(metrics, step=step)

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Start the clock of the training steps; it excludes validation."""
        if self._clock_start is None:
            self._clock_start = time.perf_counter()
            self._clock_start_step = trainer.global_step

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, module: Any, optimizer: torch.optim.Optimizer
    ) -> None:
        """Save the learning rate of this step; after the step the schedule holds the next one's."""
        self._lr = optimizer.param_groups[0]["lr"]

    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Record training loss and learning rate at intervals and at the last step."""
        step = trainer.global_step
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by its logger connector
        if step % every and step != trainer.max_steps:
            return
        module.require_finite()
        self._pause_clock(trainer)
        auxiliary = {f"train__{name}": value.item() for name, value in module.last_auxiliary.items()}
        self.log_values(trainer, train__loss=module.last_loss.item(), train__lr=self._lr, **auxiliary)

    def on_validation_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Pause the clock."""
        self._pause_clock(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Record the new validation loss, the accuracy if the task has one, and auxiliary losses."""
        super().on_validation_end(trainer, module)
        results = {
            key: module.validation_results[key]
            for key in ("loss", "accuracy")
            if key in module.validation_results
        } | module.validation_results["auxiliary"]
        self.log_values(trainer, **{f"val__{key}": value for key, value in results.items()})

    def _pause_clock(self, trainer: pl.Trainer) -> None:
        if self._clock_start is not None:
            self.training_seconds += time.perf_counter() - self._clock_start
            self.training_steps += trainer.global_step - self._clock_start_step
            self._clock_start = None

    def state_dict(self) -> dict[str, Any]:
        """Return the rows so far as plain lists."""
        return {**super().state_dict(), "rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the rows."""
        super().load_state_dict(state)
        self.rows = [tuple(row) for row in state["rows"]]


def find_map_steps(points: int, max_steps: int) -> list[int]:
    """Return `points` steps, evenly spaced from 0 to the last; one point is the last step."""
    if points < 2:
        return [max_steps] * points
    return sorted({round(k * max_steps / (points - 1)) for k in range(points)})


@final
class MapRecorder(StepCallback):
    """Attention maps of one probe text [1, T] at `points` steps, evenly spaced from first to last.

    The text is cut to the length of the first document in the first validation example. The last maps are
    those of the final weights, and the others those of the weights that are trained.
    """

    def __init__(self, tokens: Tensor, points: int, max_steps: int) -> None:
        if points < 0:
            raise ValueError(f"measure.maps must be at least 0, got {points}")
        self.tokens = tokens
        self.steps = find_map_steps(points, max_steps)
        self.maps_by_step: dict[int, Tensor] = {}
        self.last_maps: AttentionMaps | None = None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Record the maps of the untrained model."""
        # Not in choose_probe_window, whose source is part of the id of every measurement run.
        first_batch = next(iter(trainer.datamodule.val_dataloader()))  # type: ignore[attr-defined]
        self.tokens = self.tokens[:, : select_first_document(first_batch, 0).shape[1]]
        self.record_maps(trainer, module)

    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Record the maps if this step is one of the points before the last."""
        if trainer.global_step != trainer.max_steps:
            self.record_maps(trainer, module)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Record the maps of the final weights, which a callback such as EMA may have replaced."""
        self.record_maps(trainer, module)

    def record_maps(self, trainer: pl.Trainer, module: Any) -> None:
        """Compute the maps once per point and log a picture per layer."""
        step = trainer.global_step
        if step not in self.steps or step in self.maps_by_step:
            return
        maps = compute_attention_maps(module.model, self.tokens.to(module.device))
        if maps is None:
            self.steps = []
            return
        self.last_maps = maps
        self.maps_by_step[step] = torch.from_numpy(encode_weights(maps.weights))
        log_maps(trainer.loggers, self.maps_by_step[step].numpy(), maps.layers, step)

    def save(self, path: Path, tokens: list[str]) -> None:
        """Write attention.npz; nothing if no maps were recorded."""
        if not self.maps_by_step or self.last_maps is None:
            return
        steps = sorted(self.maps_by_step)
        with replace_atomically(path) as temporary:
            np.savez_compressed(
                temporary,
                maps=np.stack([self.maps_by_step[step].numpy() for step in steps]),
                visible=self.last_maps.visible.numpy(),
                steps=np.array(steps, dtype=np.int64),
                tokens=np.array(tokens[: self.tokens.shape[1]]),
                groups=self.last_maps.kv_groups.numpy(),
                layers=np.array(self.last_maps.layers),
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the maps so far."""
        return {"taken": self.maps_by_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the maps."""
        self.maps_by_step = state["taken"]


def log_maps(loggers: Iterable[Any], maps: np.ndarray, layers: Sequence[int], step: int) -> None:
    """Log the encoded maps [layers, heads, T, T] of one step as one captioned picture per layer."""
    legend = "one row per query, one column per key; black: no attention; heads from left to right"
    for n, layer in zip(layers, maps, strict=True):
        caption = [f"layer{n} after {step} steps: {legend}"]
        for logger in loggers:
            logger.log_image(
                f"attention/layer{n}", [np.concatenate(list(layer), axis=1)], step=step, caption=caption
            )


@final
class ProgressWriter(StepCallback):
    """Write progress.json about once a second: step, max_steps, loss, time, timed_steps, timed_seconds.

    The last two exclude the first step of this process. A run that continues `trunk` records that in place of
    its resumptions.

    Attributes:
        trunk: The run of a smaller budget that was continued; None if none was.
        resumptions: One row per resumption: the `step` of the checkpoint, the number of steps trained
            `again`, and `off`, the absolute difference in nats between the loss of the last repeated step now
            and before.
    """

    def __init__(
        self, path: Path, interval_seconds: float = 1.0, trunk: dict[str, Any] | None = None
    ) -> None:
        self.path = path
        self.continues_trunk = trunk is not None
        self.trunk = trunk
        self.interval_seconds = interval_seconds
        self.last_written = 0.0
        self._first_step: tuple[int, float] | None = None  # first step of this process, and its end time
        self.resumptions: list[dict[str, Any]] = []
        self._progress_before: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"resumed": self.resumptions, "trunk": self.trunk}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self.continues_trunk:
            self.resumptions = state_dict["resumed"]
            self.trunk = state_dict["trunk"]

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Read how far the run had progressed before a resumption."""
        if trainer.global_step and not self.continues_trunk:
            self._progress_before = read_progress(self.path.parent)
            again = max(0, self._progress_before.get("step", 0) - trainer.global_step)
            self.resumptions = [*self.resumptions, {"step": trainer.global_step, "again": again, "off": None}]

    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Write the progress; complete the row of a resumption."""
        if trainer.global_step == self._progress_before.get("step"):
            loss_difference = abs(module.last_loss.item() - self._progress_before["loss"])
            self.resumptions = [*self.resumptions[:-1], self.resumptions[-1] | {"off": loss_difference}]
        now = time.time()
        if self._first_step is None:
            self._first_step = trainer.global_step, now
        is_due = now - self.last_written >= self.interval_seconds or trainer.global_step == trainer.max_steps
        if not (is_due and trainer.is_global_zero):
            return
        self.last_written = now
        loss = module.last_loss.item()
        first_step, first_time = self._first_step
        progress = {
            "step": trainer.global_step, "max_steps": trainer.max_steps, "loss": loss, "time": now,
            "timed_steps": trainer.global_step - first_step, "timed_seconds": now - first_time,
        }  # fmt: skip
        with replace_atomically(self.path, sync=False) as temporary:
            temporary.write_text(json.dumps(progress), encoding="utf-8")
