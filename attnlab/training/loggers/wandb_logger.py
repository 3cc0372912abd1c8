"""Weights & Biases through its public client, in the process of the run.

Environment variables documented by W&B apply. If the server is unresponsive, slow or refuses, the run is
logged offline, and so are later runs of the same command.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from attnlab.config import resolve_wandb_mode
from attnlab.training.loggers import logger_notes
from attnlab.training.loggers.async_logger import AsyncLogger, LoggerAdapter
from attnlab.training.loggers.run_labels import DEFAULT_PROJECT, TOKENS_METRIC

WANDB_MODES = ("online", "offline", "shared", "disabled")
_DEFAULT_SETTINGS: dict[str, Any] = {  # unless the environment sets the variable
    "silent": True, "console": "off", "disable_git": True, "disable_code": True, "x_disable_stats": True,
    "x_save_requirements": False,  # slow; the config has the versions
}  # fmt: skip


@final
@dataclass(frozen=True)
class WandbSettings:
    """W&B's keys of the group `logger`.

    Attributes:
        project: If null, WANDB_PROJECT, else attnlab.
        entity: If null, WANDB_ENTITY.
        patience: Seconds that `init` and `finish` may each take.
    """

    mode: str
    project: str | None
    entity: str | None
    report: bool
    workspace: bool
    patience: float

    def __post_init__(self) -> None:
        configured_mode = resolve_wandb_mode(self.mode, {})
        mode = resolve_wandb_mode(self.mode)
        if configured_mode not in WANDB_MODES:
            raise ValueError(f"logger.mode must be online, offline, shared or disabled, got {self.mode}")
        if mode not in WANDB_MODES:
            raise ValueError(
                "logger.mode must be online, offline, shared or disabled, and "
                f"WANDB_MODE={mode} replaces it: set WANDB_MODE to one of these, or unset it"
            )
        object.__setattr__(self, "mode", mode)
        if self.workspace and mode not in ("online", "shared"):
            raise ValueError(
                f"logger.workspace=true needs a W&B server, but the mode is {mode}: set "
                "logger.mode=online, or remove logger.workspace (logger.report=true works offline)"
            )
        if self.workspace and find_spec("wandb_workspaces") is None:
            raise ValueError(
                "logger.workspace=true needs the package wandb-workspaces: pip install 'attnlab[workspace]'"
            )

    @classmethod
    def from_group(cls, group: Mapping[str, Any]) -> "WandbSettings":
        """Return W&B's part of the group `logger`."""
        if missing := [name for name in logger_notes.WANDB_KEYS if name not in group]:
            raise ValueError(
                f"logger has no {missing[0]}: use 'logger=[wandb,csv]' for W&B beside another logger"
            )
        return cls(**{name: group[name] for name in logger_notes.WANDB_KEYS})

    def make_logger(self, folder: Path, batch_tokens: int | None, **run: Any) -> AsyncLogger:
        """Return a Lightning logger over a W&B run.

        The W&B id is the run id, so a run resumed from a checkpoint continues the same W&B run.

        Args:
            **run: Arguments of `wandb.init`.
        """
        wandb_runs = list[Any]()

        def open_adapter() -> LoggerAdapter:
            wandb_runs.append(self.open_run(folder, folder.parent, **run))
            logger_notes.update_note(folder, logger_notes.WANDB, tags=list(wandb_runs[0].tags or ()))
            return _WandbAdapter(wandb_runs[0], batch_tokens, folder)

        def on_error(reason: str) -> None:
            if wandb_runs:
                _record_pending_upload(folder, wandb_runs[0], reason)

        return AsyncLogger(
            "W&B", open_adapter, folder, logger_notes.WANDB, batch_tokens, self.patience, on_error
        )

    def open_run(self, folder: Path, root: Path, **run: Any) -> Any:
        """Open a W&B run with files below `folder`; offline if this command has gone offline."""
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault(
            "WANDB_ERROR_REPORTING", "false"
        )  # else exit waits 10 s for an unresponsive server
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            **{
                name: value
                for name, value in _DEFAULT_SETTINGS.items()
                if _get_variable_name(name) not in os.environ
            },
            "reinit": "create_new",  # leaves other W&B runs of this process alone
            "use_dot_wandb": False,
            "init_timeout": self.patience,
            "finish_timeout": self.patience,
            "finish_timeout_raises": True,
        }
        arguments: dict[str, Any] = {
            **_add_environment_labels(run),
            "project": self.project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
            "entity": self.entity or os.environ.get("WANDB_ENTITY"),
            "dir": None if os.environ.get("WANDB_DIR") else str(folder),
            "resume": "allow",
            "settings": wandb.Settings(**settings),
        }
        if self.mode != "offline" and not logger_notes.read_offline_reason(root):
            try:
                return wandb.init(**arguments, mode=self.mode)  # type: ignore[arg-type]
            except Exception as error:  # server, network or login error
                first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
                reason = "the server rejected the connection" if first_line == "<no message>" else first_line
                logger_notes.go_offline(root, reason)
                message = f"W&B went offline: {reason}; `wandb sync` uploads the run later"
                print(message, file=sys.stderr, flush=True)
                wandb.teardown()  # its process still holds the id of the failed run
        return wandb.init(**arguments, mode="offline")


def _get_variable_name(name: str) -> str:
    """Return the environment variable of a W&B setting."""
    return "WANDB_" + name.removeprefix("x").upper()


def _add_environment_labels(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `wandb.init`, with labels from the environment.

    A group and a job type replace those of the run, tags are added, and a name becomes a prefix, since runs
    of the same name would be indistinguishable.
    """
    arguments = dict(run)
    get_variable = os.environ.get
    arguments["group"] = get_variable("WANDB_RUN_GROUP") or run.get("group")
    arguments["job_type"] = get_variable("WANDB_JOB_TYPE") or run.get("job_type")
    environment_tags = [tag.strip() for tag in (get_variable("WANDB_TAGS") or "").split(",")]
    arguments["tags"] = sorted({*(run.get("tags") or ()), *filter(None, environment_tags)})
    if prefix := get_variable("WANDB_NAME"):
        arguments["name"] = f"{prefix} {run.get('name') or ''}".strip()
    return arguments


def _record_pending_upload(folder: Path, run: Any, reason: str) -> None:
    """Record a W&B run that is incomplete on the server, for a later `wandb sync`."""
    run_folder = str(Path(run.dir).parent)
    earlier_folders = [
        path
        for path in logger_notes.read_note(folder, logger_notes.WANDB).get("upload", ())
        if path != run_folder
    ]
    logger_notes.update_note(folder, logger_notes.WANDB, upload=[*earlier_folders, run_folder])
    if not run.offline:
        logger_notes.go_offline(folder.parent, reason)


class _WandbAdapter(LoggerAdapter):
    """Adapter of an open W&B run."""

    def __init__(self, run: Any, batch_tokens: int | None, folder: Path) -> None:
        from pytorch_lightning.loggers import WandbLogger

        super().__init__(WandbLogger(experiment=run), {})
        self._run = run
        self._folder = folder
        self._batch_tokens = batch_tokens
        axis = TOKENS_METRIC if batch_tokens else "trainer/global_step"  # logged by WandbLogger
        run.define_metric(axis)
        run.define_metric("*", step_metric=axis, step_sync=True)

    def write_image(self, key: str, image: Any, step: int | None, caption: str) -> None:
        """Log a gray-scale picture with the tokens of its step; W&B would repeat those of the row before."""
        import wandb

        tokens = {} if step is None or not self._batch_tokens else {TOKENS_METRIC: step * self._batch_tokens}
        self.logger.log_metrics({key: [wandb.Image(image, caption=caption)], **tokens}, step)

    def close(
        self, summary: Mapping[str, float], new_values: Mapping[str, float], step: int, exit_code: int
    ) -> None:
        self._run.summary.update(dict(summary))
        finish_run(self._run, exit_code, self._folder)


def finish_run(run: Any, exit_code: int, folder: Path) -> None:
    """Finish a W&B run; an upload that takes longer than `logger.patience` stays pending on disk."""
    try:
        run.finish(exit_code=exit_code)
    except TimeoutError:
        reason = f"the upload took longer than {run.settings.finish_timeout:g} s"
        _record_pending_upload(folder, run, reason)
        print(f"W&B: {reason}; `wandb sync` uploads the rest later", file=sys.stderr, flush=True)
