"""A Lightning logger behind a queue and a thread: it neither delays nor fails the run that logs to it.

A run that goes on from a checkpoint repeats steps. The note in its folder holds the last step of each name
that a logger has, and only later steps are handed on.
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

from attnlab.training.loggers import notes
from attnlab.training.loggers.labels import TOKENS

LEAVING_SECONDS = 5.0  # for a run that was asked to stop; its checkpoint is saved already
DISK_SECONDS = 30.0  # beside the server's time, for starting the logger and writing files


class Log:
    """An open Lightning logger."""

    def __init__(self, logger: Any, parameters: Mapping[str, Any]) -> None:
        self.logger = logger
        self.parameters = dict(parameters)
        if parameters:
            logger.log_hyperparams(self.parameters)
            logger.save()

    def write(self, values: Mapping[str, float], step: int | None) -> None:
        """Logs numbers and has them written: a kill loses nothing that the run's checkpoint has."""
        self.logger.log_metrics(dict(values), step)
        self.logger.save()

    def show(self, key: str, image: Any, step: int | None, caption: str) -> None:
        """Logs a grey picture, where the logger takes pictures."""
        if isinstance(self.logger, TensorBoardLogger):
            self.logger.experiment.add_image(key, image, step, dataformats="HW")
            self.logger.save()
        elif isinstance(self.logger, MLFlowLogger):
            self.logger.experiment.log_image(self.logger.run_id, image, key=key, step=step)
        elif hasattr(self.logger, "log_image"):
            self.logger.log_image(key, [image], step=step, caption=[caption])

    def end(self, summary: Mapping[str, float], fresh: Mapping[str, float], step: int, code: int) -> None:
        """Logs the run's figures; `fresh` are those that were not logged at its last step."""
        if isinstance(self.logger, TensorBoardLogger) and summary:
            self.logger.log_hyperparams(self.parameters, dict(summary), step)
        elif fresh:
            self.write(fresh, step)
        self.logger.finalize("failed" if code else "success")


@final
class Background(Logger):
    """Hands on to the log that `open_log` opens in a thread. Any error of it is one line on stderr.

    Args:
        called: the logger's name in such a line.
        open_log: opens it; may take its time, or raise.
        folder: the run's.
        key: the logger's name in the run's note.
        batch_tokens: of one step; with them each row has the tokens seen.
        patience: seconds that opening and ending may each take.
        on_error: called with the error.
    """

    def __init__(
        self,
        called: str,
        open_log: Callable[[], Log],
        folder: Path,
        key: str,
        batch_tokens: int | None,
        patience: float,
        on_error: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.called = called
        self.warned = False
        self.batch_tokens = batch_tokens
        self.patience = patience
        self._open = open_log
        self._on_error = on_error
        self._folder = folder
        self._key = key
        self._last: dict[str, int] = notes.read(folder, key).get("last", {})
        self._step = 0
        self._queue = SimpleQueue[Callable[[Log], Any] | None]()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="logger")
        self._thread.start()

    @property
    def name(self) -> str:
        """Lightning asks for one."""
        return self.called

    @property
    def version(self) -> None:
        """A run's id is the name of its folder."""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The config is given to the logger as a whole when it is opened."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Numbers after so many steps."""
        self._step = max(self._step, step or 0)
        self._queue.put(partial(self._write, dict(metrics), step))

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **labels: Any) -> None:
        """Pictures of one step; `caption` has one for each."""
        self._queue.put(partial(self._show, key, images, step, labels["caption"]))

    def end(self, summary: Mapping[str, float], code: int) -> None:
        """Logs the summary and closes the logger with an exit code, within bounds."""
        bound = 2 * self.patience + DISK_SECONDS if code < 128 else LEAVING_SECONDS
        self._queue.put(partial(self._end, summary, code))
        self._queue.put(None)
        self._thread.join(bound)
        if self._thread.is_alive():
            self._warn(f"did not write the end of the run within {bound:g} s")

    def _is_new(self, name: str, step: int | None) -> bool:
        return step is None or step > self._last.get(name, -1)

    def _remember(self, names: Mapping[str, Any], step: int | None) -> None:
        if step is not None:
            self._last |= dict.fromkeys(names, step)
            notes.update(self._folder, self._key, last=self._last)

    def _write(self, metrics: Mapping[str, float], step: int | None, log: Log) -> None:
        new = {name: value for name, value in metrics.items() if self._is_new(name, step)}
        if new:
            seen = {TOKENS: step * self.batch_tokens} if step is not None and self.batch_tokens else {}
            log.write({**new, **seen}, step)
            self._remember(new, step)

    def _show(
        self, key: str, images: Sequence[Any], step: int | None, captions: Sequence[str], log: Log
    ) -> None:
        if self._is_new(key, step):
            for image, caption in zip(images, captions, strict=True):
                log.show(key, image, step, caption)
            self._remember({key: images}, step)

    def _end(self, summary: Mapping[str, float], code: int, log: Log) -> None:
        fresh = {name: value for name, value in summary.items() if self._is_new(name, self._step)}
        log.end(summary, fresh, self._step, code)
        self._remember(fresh, self._step)
        notes.update(self._folder, self._key, done=code == 0)

    def _serve(self) -> None:
        try:
            log = self._open()
            while (act := self._queue.get()) is not None:
                act(log)
        except Exception as error:  # the logger's own, its server's or the disk's: none of it is the run's
            self._warn(f"gave up ({type(error).__name__}: {error})")

    def _warn(self, trouble: str) -> None:
        if self.warned:
            return
        self.warned = True
        message = " ".join(trouble.split())
        if self._on_error:
            self._on_error(f"{self.called} {message}")
        print(f"{self.called} {message}; {notes.ON_DISK}", file=sys.stderr, flush=True)
