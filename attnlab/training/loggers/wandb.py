"""Weights & Biases as a mirror.

Surprising: a run never talks to W&B. What it logs goes into a W&B run that is offline whatever the mode. With
the mode `online` a note beside it says that it is to be sent, and `sweep.execute.sending` sends it, while the
run goes on. `WANDB_MODE` is honoured over the config, as W&B's users expect.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, final

from attnlab.config import wandb_mode
from attnlab.training.loggers.files import records
from attnlab.training.loggers.labels import TOKENS
from attnlab.training.loggers.mirror import Mirror
from attnlab.training.loggers.unsent import command, note

_STEP = "trainer/global_step"  # as Lightning calls it; W&B's own counts the rows
MODES = ("offline", "online", "disabled")


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
        if self.mode not in MODES:
            raise ValueError(f"logger.mode must be offline, online or disabled, got {self.mode}")
        object.__setattr__(self, "mode", wandb_mode(self.mode))
        if self.mode not in MODES:
            raise ValueError(
                f"logger.mode must be offline, online or disabled, and WANDB_MODE={self.mode} replaces it: "
                "set WANDB_MODE to one of these, or unset it"
            )
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

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "Wandb":
        """Its part of the group `logger`."""
        return cls(**{field.name: group[field.name] for field in fields(cls) if field.name in group})

    def logger(self, folder: Path, batch_tokens: int | None = None, **run: Any) -> "Mirror | Literal[False]":
        """Lightning's logger over a W&B run that a thread of its own holds, or False where it is `disabled`.

        `batch_tokens` make tokens the x-axis of its charts; `run`: what `wandb.init` takes. The W&B id is
        the run's own, so that a resumed run goes on in the same W&B run.
        """
        if self.mode == "disabled":
            return False
        if self.mode == "online":
            _note(folder, "has not been sent all of this run yet")

        def told(trouble: str) -> str:
            _note(folder, trouble)
            return f", and what it has logged stays on disk: {command(folder / 'wandb')}"

        def opened() -> _Log:
            last = _last(folder, run["id"])
            return _Log(self.open(folder, **run), batch_tokens, last)

        return Mirror("W&B", opened, batch_tokens, told)

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


def _note(folder: Path, why: str) -> None:
    with suppress(OSError):
        note(folder / "wandb", why)


def _last(folder: Path, name: str) -> dict[str, int]:
    """Name -> the last step of it in the W&B files of a run."""
    last = dict[str, int]()
    for file in folder.glob(f"wandb/*run-*-{name}/*.wandb"):
        for record in records(file.read_bytes()):
            row = {(item.key or item.nested_key[0]): item.value_json for item in record.history.item}
            if _STEP in row:
                last |= {key: max(last.get(key, -1), int(row[_STEP])) for key in row}
    return last


class _Log:
    """An open W&B run."""

    def __init__(self, run: Any, batch_tokens: int | None, last: dict[str, int]) -> None:
        from pytorch_lightning.loggers import WandbLogger

        self._logger, self._last = WandbLogger(experiment=run), last
        if batch_tokens:
            run.define_metric(TOKENS)
            run.define_metric("*", step_metric=TOKENS, step_sync=True)

    def last(self) -> dict[str, int]:
        return self._last

    def metrics(self, values: Mapping[str, float], step: int | None) -> None:
        self._logger.log_metrics({**values}, step=step)

    def image(self, key: str, image: Any, step: int | None, caption: str) -> None:
        self._logger.log_image(key, [image], step=step, caption=[caption])

    def end(self, summary: Mapping[str, float], fresh: Mapping[str, float], step: int, code: int) -> None:
        self._logger.experiment.summary.update(dict(summary))
        self._logger.experiment.finish(exit_code=code)
