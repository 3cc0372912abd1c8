"""What a run is logged to, behind a queue: what is on disk in its folder is the result, and no trouble of a
log's may delay or fail it.

Surprising: whatever goes wrong in a log is one line, and the log then lacks the rest. A run that goes on from
a checkpoint takes steps again that its log has: of each name only what is later than those is written.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, final

from pytorch_lightning.loggers.logger import Logger

from attnlab.training.loggers.labels import TOKENS

WRITING_SECONDS = 60.0  # for the last of it to be on disk; no server is waited for
LEAVING_SECONDS = 5.0  # for the log of a run that failed or was told to stop: its record waits for it


class Log(Protocol):
    """An open log of one run; what it raises ends it, and not the run."""

    def last(self) -> Mapping[str, int]:
        """Name -> the last step that it has of it, of a run that goes on."""
        ...

    def metrics(self, values: Mapping[str, float], step: int | None) -> None:
        """Numbers after so many steps."""
        ...

    def image(self, key: str, image: Any, step: int | None, caption: str) -> None:
        """A picture, grey or in colours; a log without pictures does nothing."""
        ...

    def end(self, summary: Mapping[str, float], fresh: Mapping[str, float], step: int, code: int) -> None:
        """The run's figures (none of one that failed), those of them that were not logged at its last step,
        that step, its exit code; nothing comes after.
        """
        ...


@final
class Mirror(Logger):
    """A queue, and the thread that empties it into the log that `open_` gives.

    `called`: what a line about it begins with; `told` is asked, with what went wrong, how that line ends.
    With `batch_tokens` what is logged stands against the tokens seen.
    """

    def __init__(
        self,
        called: str,
        open_: Callable[[], Log],
        batch_tokens: int | None = None,
        told: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__()
        self.called, self.warned, self.batch_tokens, self._told = called, False, batch_tokens, told
        self._open, self._queue = open_, SimpleQueue[Callable[[Log], Any] | None]()
        self._step, self._last, self._seen = 0, dict[str, int](), dict[str, int | None]()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="mirror")
        self._thread.start()

    @property
    def name(self) -> str:
        """Lightning asks for one."""
        return self.called

    @property
    def version(self) -> None:
        """A run's id is the name of its folder."""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The config is given to the log as a whole."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Numbers after so many steps."""
        self._step = max(self._step, step or 0)
        self._queue.put(lambda log: self._write(log, metrics, step))

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **labels: Any) -> None:
        """Pictures of one step; `caption` has one for each."""
        for image, caption in zip(images, labels["caption"], strict=True):
            self._queue.put(partial(self._show, key, image, step, caption))

    def end(self, summary: Mapping[str, float], code: int) -> None:
        """Writes the summary and ends the log with an exit code; the disk alone is waited for."""
        bound = LEAVING_SECONDS if code else WRITING_SECONDS
        self._queue.put(lambda log: self._end(log, summary, code))
        self._queue.put(None)
        self._thread.join(bound)
        if self._thread.is_alive():
            self._warn(f"did not write the end of the run within {bound:g} s")

    def _is_new(self, name: str, step: int | None) -> bool:
        return step is None or step > self._last.get(name, -1)

    def _new(self, metrics: Mapping[str, float], step: int | None) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if self._is_new(name, step)}

    def _write(self, log: Log, metrics: Mapping[str, float], step: int | None) -> None:
        new = self._new(metrics, step)
        if new:
            self._seen |= dict.fromkeys(new, step)
            seen = {TOKENS: step * self.batch_tokens} if step is not None and self.batch_tokens else {}
            log.metrics({**new, **seen}, step)

    def _show(self, key: str, image: Any, step: int | None, caption: str, log: Log) -> None:
        if self._is_new(key, step):
            log.image(key, image, step, caption)

    def _end(self, log: Log, summary: Mapping[str, float], code: int) -> None:
        new, step = self._new(summary, self._step), self._step
        fresh = {name: value for name, value in new.items() if self._seen.get(name) != step}
        log.end(summary, fresh, step, code)

    def _serve(self) -> None:
        try:
            log = self._open()
            self._last = dict(log.last())
            while (act := self._queue.get()) is not None:
                act(log)
        except Exception as error:  # the log's own or the disk's: none of it is the run's
            self._warn(f"gave up ({type(error).__name__}: {error})")

    def _warn(self, trouble: str) -> None:
        if self.warned:
            return
        self.warned = True
        end = self._told(trouble) if self._told else ""
        said = f"{self.called} {' '.join(trouble.split())}; the run goes on"
        print(f"{said}{end}", file=sys.stderr, flush=True)
