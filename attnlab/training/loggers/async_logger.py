"""Lightning logger behind a queue and a thread: it neither delays nor fails the run that logs to it.

A run resumed from a checkpoint repeats steps. The note in its folder holds the last logged step of each name,
and only later steps are passed on.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, final

from pytorch_lightning.loggers import MLFlowLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import Logger

from attnlab.training.loggers import logger_notes
from attnlab.training.loggers.run_labels import TOKENS_METRIC
from attnlab.training.run_result import load_curves

TERMINATION_SECONDS = 5.0  # for a run stopped by a signal, whose checkpoint is already saved
DISK_SECONDS = 30.0  # for starting the logger and writing files, besides the server's time


class LoggerAdapter:
    """Adapter of an open Lightning logger."""

    def __init__(self, logger: Any, parameters: Mapping[str, Any]) -> None:
        self.logger = logger
        self.parameters = dict(parameters)
        if parameters:
            logger.log_hyperparams(self.parameters)
            logger.save()

    def write_metrics(self, values: Mapping[str, float], step: int | None) -> None:
        """Log numbers and flush: a kill loses nothing that the run's checkpoint has."""
        self.logger.log_metrics(dict(values), step)
        self.logger.save()

    def write_image(self, key: str, image: Any, step: int | None, caption: str) -> None:
        """Log a gray-scale picture, if the logger supports pictures."""
        if isinstance(self.logger, TensorBoardLogger):
            self.logger.experiment.add_image(key, image, step, dataformats="HW")
            self.logger.save()
        elif isinstance(self.logger, MLFlowLogger):
            self.logger.experiment.log_image(self.logger.run_id, image, key=key, step=step)
        elif hasattr(self.logger, "log_image"):
            self.logger.log_image(key, [image], step=step, caption=[caption])

    def close(
        self, summary: Mapping[str, float], new_values: Mapping[str, float], step: int, exit_code: int
    ) -> None:
        """Log the final metrics of the run and close the logger.

        Args:
            new_values: The part of `summary` that was not logged at the last step.
        """
        if isinstance(self.logger, TensorBoardLogger) and summary:
            self.logger.log_hyperparams(self.parameters, dict(summary), step)
        elif new_values:
            self.write_metrics(new_values, step)
        self.logger.finalize("failed" if exit_code else "success")


@final
class AsyncLogger(Logger):
    """Logger that passes everything to an adapter in a thread; any error becomes one line on stderr.

    Args:
        display_name: Name of the logger in such a line.
        open_adapter: Opens the adapter; may block or raise.
        folder: Folder of the run.
        key: Name of the logger in the run's note.
        batch_tokens: Tokens of one step; with them each row includes the tokens seen.
        patience_seconds: Longest time that opening and closing may each take.
        on_error: Called with the error message.
    """

    def __init__(
        self,
        display_name: str,
        open_adapter: Callable[[], LoggerAdapter],
        folder: Path,
        key: str,
        batch_tokens: int | None,
        patience_seconds: float,
        on_error: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.display_name = display_name
        self.has_warned = False
        self.batch_tokens = batch_tokens
        self.patience_seconds = patience_seconds
        self._open = open_adapter
        self._on_error = on_error
        self._folder = folder
        self._key = key
        self._last_steps: dict[str, int] = logger_notes.read_note(folder, key).get("last", {})
        self._step = 0
        self._queue = SimpleQueue[Callable[[LoggerAdapter], Any] | None]()
        self._thread = threading.Thread(target=self._consume_queue, daemon=True, name="logger")
        self._thread.start()

    @property
    def name(self) -> str:
        """Display name, which Lightning requires."""
        return self.display_name

    @property
    def version(self) -> None:
        """Always None: the run id is the name of its folder."""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Ignore the call: the adapter logs the whole config when it opens."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Queue the metrics of a step."""
        self._step = max(self._step, step or 0)
        self._queue.put(partial(self._write_metrics, dict(metrics), step))

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **labels: Any) -> None:
        """Queue the pictures of a step; `caption` has one caption per picture."""
        self._queue.put(partial(self._write_images, key, images, step, labels["caption"]))

    def close(self, summary: Mapping[str, float], exit_code: int) -> None:
        """Log the run's stored curves, as far as they are missing, and the summary; close the logger.

        Series of a measurement run exist only once it has finished. Waits for a limited time.

        Args:
            exit_code: Exit status of the run.
        """
        timeout_seconds = 2 * self.patience_seconds + DISK_SECONDS if exit_code < 128 else TERMINATION_SECONDS
        self._queue.put(partial(self._close_adapter, summary, exit_code))
        self._queue.put(None)
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            self._warn(f"did not write the end of the run within {timeout_seconds:g} s")

    def _is_new(self, name: str, step: int | None) -> bool:
        return step is None or step > self._last_steps.get(name, -1)

    def _record_steps(self, names: Mapping[str, Any], step: int | None) -> None:
        if step is not None:
            self._last_steps |= dict.fromkeys(names, step)
            logger_notes.update_note(self._folder, self._key, last=self._last_steps)

    def _write_metrics(self, metrics: Mapping[str, float], step: int | None, adapter: LoggerAdapter) -> None:
        new_metrics = {name: value for name, value in metrics.items() if self._is_new(name, step)}
        if new_metrics:
            tokens = (
                {TOKENS_METRIC: step * self.batch_tokens} if step is not None and self.batch_tokens else {}
            )
            adapter.write_metrics({**new_metrics, **tokens}, step)
            self._record_steps(new_metrics, step)

    def _write_images(
        self,
        key: str,
        images: Sequence[Any],
        step: int | None,
        captions: Sequence[str],
        adapter: LoggerAdapter,
    ) -> None:
        if self._is_new(key, step):
            for image, caption in zip(images, captions, strict=True):
                adapter.write_image(key, image, step, caption)
            self._record_steps({key: images}, step)

    def _close_adapter(self, summary: Mapping[str, float], exit_code: int, adapter: LoggerAdapter) -> None:
        rows: dict[int, dict[str, float]] = {}
        for step, _, name, value in load_curves(self._folder):
            rows.setdefault(step, {})[name] = value
        for step, values in sorted(rows.items()):
            self._write_metrics(values, step, adapter)
        self._step = max([self._step, *rows])
        new_values = {name: value for name, value in summary.items() if self._is_new(name, self._step)}
        adapter.close(summary, new_values, self._step, exit_code)
        self._record_steps(new_values, self._step)
        logger_notes.update_note(self._folder, self._key, done=exit_code == 0)

    def _consume_queue(self) -> None:
        try:
            adapter = self._open()
            while (task := self._queue.get()) is not None:
                task(adapter)
        except Exception as error:  # an error of the logger, its server or the disk must not fail the run
            self._warn(f"stopped ({type(error).__name__}: {error})")

    def _warn(self, problem: str) -> None:
        if self.has_warned:
            return
        self.has_warned = True
        message = " ".join(problem.split())
        if self._on_error:
            self._on_error(f"{self.display_name} {message}")
        print(f"{self.display_name} {message}; {logger_notes.ON_DISK_MESSAGE}", file=sys.stderr, flush=True)
