"""Lightning logger behind a queue and a thread: it neither delays nor fails the run that logs to it.

A run resumed from a checkpoint repeats steps. The note in its folder holds the last logged step of each name,
and only later steps are passed on.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, final

from pytorch_lightning.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from pytorch_lightning.loggers.logger import Logger

from attnlab.training.loggers import logger_notes, wandb_logger
from attnlab.training.run_result import load_curves

TERMINATION_SECONDS = 5.0  # for a run stopped by a signal, whose checkpoint is already saved
DISK_SECONDS = 30.0  # for starting the logger and writing files, besides the server's time


@final
class AsyncLogger(Logger):
    """Logger that passes everything to another in a thread; any error becomes one line on stderr.

    Args:
        display_name: Name of the logger in such a line.
        open_logger: Opens the other Lightning logger; may block or raise.
        folder: Folder of the run.
        key: Name of the logger in the run's note.
        batch_tokens: Tokens of one step; with them each row includes the tokens seen.
        patience_seconds: Longest time that opening and closing may each take.
    """

    version = None  # the run id is the name of its folder

    def __init__(
        self,
        display_name: str,
        open_logger: Callable[[], Any],
        folder: Path,
        key: str,
        batch_tokens: int | None,
        patience_seconds: float,
    ) -> None:
        super().__init__()
        self._name = display_name
        self._open = open_logger
        self._logger: Any = None
        self._folder = folder
        self._key = key
        self._batch_tokens = batch_tokens
        self._patience = patience_seconds
        self._has_warned = False
        self._last_steps: dict[str, int] = logger_notes.read_note(folder, key).get("last", {})
        self._step = 0
        self._queue = SimpleQueue[Callable[[], Any] | None]()
        self._thread = threading.Thread(target=self._consume_queue, daemon=True, name="logger")
        self._thread.start()

    @property
    def name(self) -> str:
        """Display name, which Lightning requires."""
        return self._name

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Ignore the call: the whole config is logged when the logger opens."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Queue the metrics of a step."""
        self._step = max(self._step, step or 0)
        self._queue.put(partial(self._write_metrics, dict(metrics), step))

    def log_image(self, key: str, images: list[Any], step: int | None = None, **labels: Any) -> None:
        """Queue the gray-scale pictures of a step; `caption` has one caption per picture."""
        self._queue.put(partial(self._write_images, key, images, step, labels))

    def close(self, summary: Mapping[str, float], exit_code: int) -> None:
        """Log the run's stored curves, as far as they are missing, and the summary; close the logger.

        Series of a measurement run exist only once it has finished. Waits for a limited time.

        Args:
            exit_code: Exit status of the run.
        """
        timeout_seconds = TERMINATION_SECONDS if exit_code >= 128 else 2 * self._patience + DISK_SECONDS
        self._queue.put(partial(self._finish, summary, exit_code))
        self._queue.put(None)
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            self._warn(f"did not write the end of the run within {timeout_seconds:g} s")

    def _consume_queue(self) -> None:
        try:
            self._logger = self._open()
            while task := self._queue.get():
                task()
        except Exception as error:  # an error of the logger, its server or the disk must not fail the run
            self._warn(f"stopped ({type(error).__name__}: {error})")

    def _warn(self, problem: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        message = f"{self._name} {' '.join(problem.split())}"
        if isinstance(self._logger, WandbLogger):
            wandb_logger.record_pending_upload(self._folder, self._logger.experiment, message)
        print(f"{message}; {logger_notes.ON_DISK_MESSAGE}", file=sys.stderr, flush=True)

    def _select_new(self, values: Mapping[str, Any], step: int | None) -> dict[str, Any]:
        """Return the values that the logger lacks at this step."""
        if step is None:
            return dict(values)
        new_values = {name: value for name, value in values.items() if step > self._last_steps.get(name, -1)}
        self._last_steps |= dict.fromkeys(new_values, step)
        return new_values

    def _record_steps(self) -> None:
        """Flush, then record: a kill loses nothing that the run's checkpoint has."""
        self._logger.save()
        logger_notes.update_note(self._folder, self._key, last=self._last_steps)

    def _write_metrics(self, metrics: Mapping[str, Any], step: int | None) -> None:
        if new_metrics := self._select_new(metrics, step):
            if step is not None and self._batch_tokens:
                new_metrics[logger_notes.TOKENS_METRIC] = step * self._batch_tokens
            self._logger.log_metrics(new_metrics, step)
            self._record_steps()

    def _write_images(
        self, key: str, images: list[Any], step: int | None, labels: Mapping[str, list[Any]]
    ) -> None:
        """Log pictures, if the logger supports pictures."""
        if isinstance(self._logger, WandbLogger):  # else W&B would repeat the tokens of the row before
            import wandb

            captions = labels.get("caption", [None] * len(images))
            pictures = [
                wandb.Image(image, caption=caption) for image, caption in zip(images, captions, strict=True)
            ]
            self._write_metrics({key: pictures}, step)
        elif self._select_new({key: images}, step):
            if hasattr(self._logger, "log_image"):
                self._logger.log_image(key, images, step=step, **labels)
            for image in images:
                if isinstance(self._logger, TensorBoardLogger):
                    self._logger.experiment.add_image(key, image, step, dataformats="HW")
                elif isinstance(self._logger, MLFlowLogger):
                    self._logger.experiment.log_image(self._logger.run_id, image, key=key, step=step)
            self._record_steps()

    def _finish(self, summary: Mapping[str, float], exit_code: int) -> None:
        rows: dict[int, dict[str, float]] = {}
        for step, _, name, value in load_curves(self._folder):
            rows.setdefault(step, {})[name] = value
        for step, values in sorted(rows.items()):
            self._write_metrics(values, step)
        self._step = max([self._step, *rows])
        if isinstance(self._logger, WandbLogger):
            self._logger.experiment.summary.update(dict(summary))
            wandb_logger.finish_run(self._logger.experiment, exit_code, self._folder)
        else:
            if isinstance(self._logger, TensorBoardLogger) and summary:
                self._logger.log_hyperparams(self._logger.hparams, dict(summary), self._step)
            else:
                self._write_metrics(summary, self._step)
            self._logger.finalize("failed" if exit_code else "success")
        logger_notes.update_note(self._folder, self._key, done=exit_code == 0)
