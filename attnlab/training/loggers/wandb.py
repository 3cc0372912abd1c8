"""Weights & Biases as a mirror: what is on disk is the result, and no trouble of the mirror's may delay or
fail a run.

Surprising: a run never talks to W&B. What it logs goes into a queue, and a thread writes it into a W&B run
that is offline whatever the mode; whatever goes wrong there is one line. With the mode `online` a note beside
it says that it is to be sent, and `sweep.execute.sending` sends it, while the run goes on. `WANDB_MODE` is
honoured over the config, as W&B's users expect.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, final

from pytorch_lightning.loggers.logger import Logger

from attnlab.config import wandb_mode
from attnlab.training.loggers.unsent import command, note

WRITING_SECONDS = 60.0  # for the last of it to be on disk; no server is waited for
LEAVING_SECONDS = 5.0  # for the mirror of a run that failed or was told to stop: its record waits for it
MODES = ("offline", "online", "disabled")
TOKENS = "tokens"  # seen in training so far: the x-axis


@final
@dataclass(frozen=True)
class Wandb:
    """The settings of the mirror. ValueError, one line, where they cannot hold; nothing is contacted.

    `patience`: the seconds that a command waits for W&B in all, once its runs have ended. It, `report` and
    `workspace` are the sweep's business.
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

    def logger(self, folder: Path, batch_tokens: int | None = None, **run: Any) -> "Mirror | Literal[False]":
        """Lightning's logger over a W&B run that a thread of its own holds, or False where it is `disabled`.

        `batch_tokens` make tokens the x-axis of its charts; `run`: what `wandb.init` takes. The W&B id is
        the run's own, so that a resumed run goes on in the same W&B run.
        """
        if self.mode == "disabled":
            return False
        opened = partial(self.open, folder, **run)
        return Mirror(opened, folder, online=self.mode == "online", batch_tokens=batch_tokens)

    def open(self, folder: Path, **run: Any) -> Any:
        """An open W&B run that is written into `folder`/wandb; no server is asked for anything."""
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its farewell waits 10 s for a mute server
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True,
            reinit="create_new",  # somebody else's run in this process stays as it is
        )  # fmt: skip
        begun = any(folder.glob(f"wandb/*run-*-{run['id']}/*.wandb"))  # then it goes on where that ends
        given: dict[str, Any] = {**run, "project": self.project, "entity": self.entity, "dir": str(folder)}
        return wandb.init(**given, mode="offline", resume="allow" if begun else None, settings=settings)


@final
class Mirror(Logger):
    """A queue, and the thread that empties it into the W&B run that `open_` gives. `online`: to be sent.
    With `batch_tokens` what is logged stands against the tokens seen.
    """

    def __init__(
        self,
        open_: Callable[[], Any],
        folder: Path,
        online: bool = False,
        batch_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.folder, self.warned, self.batch_tokens = folder, False, batch_tokens
        self._open, self._queue = open_, SimpleQueue[Callable[[Any], Any] | None]()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="mirror")
        if online:
            self._note("has not been sent all of this run yet")
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
        """Numbers after so many steps."""
        seen = {TOKENS: step * self.batch_tokens} if step is not None and self.batch_tokens else {}
        self._queue.put(lambda wandb_logger: wandb_logger.log_metrics({**metrics, **seen}, step=step))

    def log_image(self, key: str, images: list[Any], step: int | None = None, **labels: Any) -> None:
        """Pictures of one step; `caption` has one for each."""
        self._queue.put(lambda wandb_logger: wandb_logger.log_image(key, images, step=step, **labels))

    def end(self, summary: Mapping[str, Any], code: int) -> None:
        """Writes the summary and ends the W&B run with an exit code; the disk alone is waited for."""
        bound = LEAVING_SECONDS if code else WRITING_SECONDS
        self._queue.put(lambda wandb_logger: wandb_logger.experiment.summary.update(dict(summary)))
        self._queue.put(lambda wandb_logger: wandb_logger.experiment.finish(exit_code=code))
        self._queue.put(None)
        self._thread.join(bound)
        if self._thread.is_alive():
            self._warn(f"did not write the end of the run within {bound:g} s")

    def _serve(self) -> None:
        try:
            from pytorch_lightning.loggers import WandbLogger

            wandb_logger = WandbLogger(experiment=self._open())
            if self.batch_tokens:
                wandb_logger.experiment.define_metric(TOKENS)
                wandb_logger.experiment.define_metric("*", step_metric=TOKENS, step_sync=True)
            while (act := self._queue.get()) is not None:
                act(wandb_logger)
        except Exception as error:  # wandb's own or the disk's: none of it is the run's
            self._warn(f"gave up ({type(error).__name__}: {error})")

    def _warn(self, trouble: str) -> None:
        if self.warned:
            return
        self.warned = True
        self._note(trouble)
        said = f"W&B {' '.join(trouble.split())}; the run goes on, and what it has logged stays on disk"
        print(f"{said}: {command(self.folder / 'wandb')}", file=sys.stderr, flush=True)

    def _note(self, why: str) -> None:
        with suppress(OSError):
            note(self.folder / "wandb", why)
