"""The group `logger` as a whole: W&B where it has a mode, and each part of it that is a logger by itself."""

from pathlib import Path
from typing import Any, Literal, final

from pytorch_lightning.loggers.logger import Logger

from attnlab.training.loggers.wandb import Wandb


@final
class Several:
    """W&B's settings, and loggers by name. ValueError, one line, where one cannot be."""

    def __init__(self, **parts: Any) -> None:
        own = Wandb.__dataclass_fields__.keys()
        for name, part in parts.items():
            if name not in own and not hasattr(part, "logger"):
                raise ValueError(f"logger.{name}={part} is no logger: logger=csv, or logger=[csv,wandb]")
        self.loggers = [part for name, part in parts.items() if name not in own]
        if "mode" in parts:
            self.loggers.append(Wandb.of(parts))

    def logger(self, folder: Path, batch_tokens: int | None = None, **run: Any) -> "Logger | Literal[False]":
        """Lightning's logger, under the names of `labels`; False where all are disabled."""
        opened = [found for part in self.loggers if (found := part.logger(folder, batch_tokens, **run))]
        return _All(opened) if len(opened) > 1 else opened[0] if opened else False


@final
class _All(Logger):
    """Hands on what it is given to each."""

    def __init__(self, loggers: list[Any]) -> None:
        super().__init__()
        self.loggers = loggers

    @property
    def name(self) -> str:
        """Lightning asks for one."""
        return ", ".join(str(logger.name) for logger in self.loggers)

    @property
    def version(self) -> None:
        """A run's id is the name of its folder."""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The config is given to each as a whole."""

    def log_metrics(self, *values: Any, **step: Any) -> None:
        """Numbers after so many steps."""
        for logger in self.loggers:
            logger.log_metrics(*values, **step)

    def log_image(self, *picture: Any, **labels: Any) -> None:
        """Pictures of one step."""
        for logger in self.loggers:
            logger.log_image(*picture, **labels)

    def end(self, *summary: Any) -> None:
        """The run's figures and its exit code."""
        for logger in self.loggers:
            logger.end(*summary)
