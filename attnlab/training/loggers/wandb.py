"""Weights & Biases as a mirror: what is on disk is the result, and no trouble of the mirror's may delay or
fail a run.

Surprising: training never talks to W&B. It puts what it has to say into a queue, and a thread of the
mirror's opens the W&B run, sends, and ends it; whatever goes wrong there is one line. Offline by default.
Online is tried behind a probe and bounded waits; a server that cannot be had turns it into an offline run.
`WANDB_MODE` is honoured over the config, as W&B's users expect.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, final
from urllib.error import HTTPError
from urllib.request import urlopen

from pytorch_lightning.loggers.logger import Logger

from attnlab.config import wandb_mode

PROBE_SECONDS = 3.0
LEAVING_SECONDS = 5.0  # for the mirror of a run that failed or was told to stop: its record waits for it
MODES = ("offline", "online", "disabled")
UNSENT = "unsent.txt"  # in a run's wandb/: why not all of it is with the server


@final
@dataclass(frozen=True)
class Wandb:
    """The settings of the mirror. ValueError, one line, where they cannot hold; nothing is contacted.

    `patience`: the seconds that W&B may take to answer, at the start and again at the end. `report` and
    `workspace` are the sweep's business, once its report is written.
    """

    mode: str
    project: str
    entity: str | None
    report: bool
    workspace: bool
    patience: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", wandb_mode(self.mode))
        if self.mode not in MODES:
            raise ValueError(f"logger.mode must be offline, online or disabled, got {self.mode}")
        if not self.patience > 0:
            raise ValueError(f"logger.patience must be more than 0 seconds, got {self.patience}")
        if self.workspace and self.mode != "online":
            raise ValueError(
                f"logger.workspace=true needs a W&B server, and the mode is {self.mode}: add "
                "logger.mode=online, or leave it out (logger.report=true works offline)"
            )
        if self.workspace and find_spec("wandb_workspaces") is None:
            raise ValueError(
                "logger.workspace=true needs the package wandb-workspaces: pip install 'attnlab[workspace]'"
            )

    def logger(self, folder: Path, **run: Any) -> "Mirror | Literal[False]":
        """Lightning's logger over a W&B run that a thread of its own holds, or False where it is `disabled`.

        `run`: what `wandb.init` takes. The W&B id is the run's own, so that a resumed run goes on in the same
        W&B run.
        """
        if self.mode == "disabled":
            return False
        return Mirror(lambda warn: self.open(folder, warn, **run), folder, self.patience)

    def open(self, folder: Path, warn: Callable[[str], None], **run: Any) -> Any:
        """An open W&B run, offline where the server cannot be had; then `warn` is told why."""
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its farewell waits 10 s for a mute server
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "silent": True, "console": "off", "disable_git": True, "disable_code": True,
            "x_disable_stats": True, "init_timeout": self.patience, "finish_timeout": self.patience,
            "finish_timeout_raises": True,
            "reinit": "create_new",  # somebody else's run in this process stays as it is
        }  # fmt: skip
        given = {**run, "project": self.project, "entity": self.entity, "dir": str(folder), "resume": "allow"}
        if self.mode == "online":
            try:
                _probe(wandb.setup().settings.base_url, min(PROBE_SECONDS, self.patience))
                return wandb.init(**given, mode="online", settings=wandb.Settings(**settings))
            except Exception as error:  # whatever the mirror's trouble is, the run goes on
                warn(f"is not reachable ({error})")
        return wandb.init(**given, mode="offline", settings=wandb.Settings(**settings))


def _probe(address: str, seconds: float) -> None:
    """OSError where nobody answers HTTP there; any answer will do. wandb itself would wait far longer."""
    try:
        urlopen(address, timeout=seconds).close()
    except HTTPError:
        return


@final
class Mirror(Logger):
    """A queue, and the thread that empties it into a W&B run. `open_` is given a function to warn with."""

    def __init__(self, open_: Callable[[Callable[[str], None]], Any], folder: Path, patience: float) -> None:
        super().__init__()
        self.folder, self.patience, self.warned = folder, patience, False
        self._open, self._queue = open_, SimpleQueue[Callable[[Any], Any] | None]()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="mirror")
        with suppress(OSError):
            (folder / "wandb" / UNSENT).unlink(missing_ok=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """Lightning asks for one."""
        return "wandb"

    @property
    def version(self) -> None:
        """The W&B id is the run's folder's name."""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The config is given to the run as a whole."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Numbers of one step."""
        self._queue.put(lambda wandb_logger: wandb_logger.log_metrics(dict(metrics), step=step))

    def log_image(self, key: str, images: list[Any], step: int | None = None) -> None:
        """Pictures of one step."""
        self._queue.put(lambda wandb_logger: wandb_logger.log_image(key, images, step=step))

    def end(self, summary: Mapping[str, Any], code: int) -> None:
        """Sends the summary and ends the W&B run with an exit code, waiting no longer than its patience."""
        bound = LEAVING_SECONDS if code else 2 * self.patience + PROBE_SECONDS
        self._queue.put(lambda wandb_logger: wandb_logger.experiment.summary.update(dict(summary)))
        self._queue.put(lambda wandb_logger: wandb_logger.experiment.finish(exit_code=code))
        self._queue.put(None)
        self._thread.join(bound)
        if self._thread.is_alive():
            self._warn(f"did not take the end of the run within {bound:g} s")

    def _serve(self) -> None:
        try:
            from pytorch_lightning.loggers import WandbLogger

            wandb_logger = WandbLogger(experiment=self._open(self._warn))
            while (act := self._queue.get()) is not None:
                act(wandb_logger)
        except Exception as error:  # the server's, the network's or wandb's own: none of it is the run's
            self._warn(f"gave up ({type(error).__name__}: {error})")

    def _warn(self, trouble: str) -> None:
        if self.warned:
            return
        self.warned = True
        text = f"W&B {' '.join(trouble.split())}; the run goes on, and what it logs stays on disk: "
        text += f"wandb sync {self.folder}/wandb/*run-*"
        print(text, file=sys.stderr, flush=True)
        with suppress(OSError):
            (self.folder / "wandb").mkdir(exist_ok=True)
            (self.folder / "wandb" / UNSENT).write_text(text + "\n", encoding="utf-8")
