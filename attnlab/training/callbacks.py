"""What a run does beside its steps: keep curves, take attention maps, say where it is, save checkpoints.

Curves and maps live in the checkpoint, so that a resumed run has the curves and maps of an undisturbed one.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from attnlab.measure.maps import Maps, attention_maps, encode
from attnlab.store.files import replacing
from attnlab.store.runs import progress


class OnStep(pl.Callback, ABC):
    """A callback after each optimiser step, which with accumulated gradients is not each batch."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Calls `on_step_end` where a step has ended."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.on_step_end(trainer, module)

    @abstractmethod
    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """`trainer.global_step` steps are done."""


@final
class Curves(OnStep):
    """Rows (step, tokens, name, value): the training loss every `log_every_n_steps`, the validation loss
    whenever it is taken.
    """

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens = batch_tokens
        self.rows: list[tuple[int, int, str, float]] = []
        self.busy_seconds = 0.0
        self.busy_steps = 0
        self._mark: float | None = None

    def add(self, trainer: pl.Trainer, **values: float) -> None:
        """Keeps the values of this step and sends them to the logger."""
        step = trainer.global_step
        named = {name.replace("__", "/"): value for name, value in values.items()}
        self.rows += [(step, step * self.batch_tokens, name, value) for name, value in named.items()]
        for logger in trainer.loggers:
            logger.log_metrics(named, step=step)

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Starts the clock of the training steps; validation in between does not count."""
        if self._mark is None:
            self._mark = time.perf_counter()
            self._mark_step = trainer.global_step

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, module: Any, optimizer: torch.optim.Optimizer
    ) -> None:
        """Notes the learning rate of this step: once it is done, the schedule has the next step's."""
        self._lr = optimizer.param_groups[0]["lr"]

    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Training loss and learning rate, at intervals and at the end."""
        step = trainer.global_step
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # its logger connector's
        if step % every and step != trainer.max_steps:
            return
        module.require_finite()
        self._pause(trainer)
        self.add(trainer, train__loss=module.last_loss.item(), train__lr=self._lr)

    def on_validation_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Stops the clock."""
        self._pause(trainer)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """The validation loss just taken, and the accuracy where the task has one."""
        taken = {key: module.validation[key] for key in ("loss", "accuracy") if key in module.validation}
        self.add(trainer, **{f"val__{key}": value for key, value in taken.items()})

    def _pause(self, trainer: pl.Trainer) -> None:
        if self._mark is not None:
            self.busy_seconds += time.perf_counter() - self._mark
            self.busy_steps += trainer.global_step - self._mark_step
            self._mark = None

    def state_dict(self) -> dict[str, Any]:
        """Rows so far, as plain lists."""
        return {"rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues the rows."""
        self.rows = [tuple(row) for row in state["rows"]]


@final
class ProbeMaps(OnStep):
    """Attention maps of one probe text [1, T] at `points` steps, evenly from the first to the last."""

    def __init__(self, tokens: Tensor, points: int, max_steps: int) -> None:
        if points < 0:
            raise ValueError(f"measure.maps must be 0 or more, got {points}")
        self.tokens = tokens
        self.steps = (
            sorted({round(k * max_steps / max(points - 1, 1)) for k in range(points)})
            if points > 1
            else [max_steps]
        )
        self.steps = self.steps if points else []
        self.taken: dict[int, Tensor] = {}
        self.last: Maps | None = None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """The maps of the untrained model."""
        self.take(trainer, module)

    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """The maps at this step, if it is one of the points."""
        self.take(trainer, module)

    def take(self, trainer: pl.Trainer, module: Any) -> None:
        """Reads the maps once per point and shows a picture per layer to the logger."""
        step = trainer.global_step
        if step not in self.steps or step in self.taken:
            return
        maps = attention_maps(module.model, self.tokens.to(module.device))
        if maps is None:
            self.steps = []
            return
        self.last = maps
        self.taken[step] = torch.from_numpy(encode(maps.weights))
        show_maps(trainer.loggers, self.taken[step].numpy(), maps.layers, step)

    def save(self, path: Path, tokens: list[str]) -> None:
        """Writes attention.npz; nothing where no maps were taken."""
        if not self.taken or self.last is None:
            return
        steps = sorted(self.taken)
        with replacing(path) as temporary:
            np.savez_compressed(
                temporary,
                maps=np.stack([self.taken[step].numpy() for step in steps]),
                visible=self.last.visible.numpy(),
                steps=np.array(steps, dtype=np.int64),
                tokens=np.array(tokens),
                groups=self.last.groups.numpy(),
                layers=np.array(self.last.layers),
            )

    def state_dict(self) -> dict[str, Any]:
        """Maps so far."""
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues."""
        self.taken = state["taken"]


def show_maps(loggers: Iterable[Any], maps: np.ndarray, layers: Sequence[int], step: int) -> None:
    """Logs the encoded maps [layers, heads, T, T] of one step: a captioned picture per layer."""
    read = "a row per query, a column per key, black: no attention; heads from left to right"
    for n, layer in zip(layers, maps, strict=True):
        caption = [f"layer{n} after {step} steps: {read}"]
        for logger in loggers:
            logger.log_image(
                f"attention/layer{n}", [np.concatenate(list(layer), axis=1)], step=step, caption=caption
            )


@final
class Heartbeat(OnStep):
    """progress.json, about once a second: {step, max_steps, loss, time, timed_steps, timed_seconds}; the last
    two are of the steps after the first one of this process.

    `resumed`: a row for each time that the run went on from a checkpoint: the `step` it held, how many more
    had been trained (`again`), and how far the last one's loss is now from what it was then (`off`, nats).
    """

    def __init__(self, path: Path, every: float = 1.0) -> None:
        self.path = path
        self.every = every
        self.last = 0.0
        self._first: tuple[int, float] | None = None  # the first step of this process, and when it ended
        self.resumed: list[dict[str, Any]] = []
        self._then: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"resumed": self.resumed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.resumed = state_dict["resumed"]

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Reads how far the run was."""
        if trainer.global_step:
            self._then = progress(self.path.parent)
            again = max(0, self._then.get("step", 0) - trainer.global_step)
            self.resumed = [*self.resumed, {"step": trainer.global_step, "again": again, "off": None}]

    def on_step_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Says where the run is."""
        if trainer.global_step == self._then.get("step"):
            off = abs(module.last_loss.item() - self._then["loss"])
            self.resumed = [*self.resumed[:-1], self.resumed[-1] | {"off": off}]
        now = time.time()
        if self._first is None:
            self._first = trainer.global_step, now
        due = now - self.last >= self.every or trainer.global_step == trainer.max_steps
        if not (due and trainer.is_global_zero):
            return
        self.last = now
        loss = module.last_loss.item()
        first, since = self._first
        beat = {
            "step": trainer.global_step, "max_steps": trainer.max_steps, "loss": loss, "time": now,
            "timed_steps": trainer.global_step - first, "timed_seconds": now - since,
        }  # fmt: skip
        with replacing(self.path, sync=False) as temporary:
            temporary.write_text(json.dumps(beat), encoding="utf-8")
