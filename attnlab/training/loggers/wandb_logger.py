"""Weights & Biases through its public client, in the process of the run.

Environment variables documented by W&B apply. If the server is unresponsive, slow or refuses, the run is
logged offline, and so are later runs of the same command.
"""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from attnlab.config import resolve_wandb_mode
from attnlab.store.config_groups import LoggerGroup
from attnlab.training.loggers import logger_notes

_DEFAULT_VARIABLES = {
    "WANDB_PROJECT": logger_notes.DEFAULT_PROJECT,
    "WANDB_SILENT": "true", "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true", "WANDB_DISABLE_CODE": "true", "WANDB__DISABLE_STATS": "true",
    "WANDB__SAVE_REQUIREMENTS": "false",  # slow; the config has the versions
    "WANDB_ERROR_REPORTING": "false",  # else exit waits 10 s for an unresponsive server
}  # fmt: skip


@final
class WandbSettings(LoggerGroup):
    """W&B's keys of the group `logger`: null is WANDB_PROJECT (by default attnlab) or WANDB_ENTITY."""

    @classmethod
    def from_group(cls, group: Mapping[str, Any]) -> "WandbSettings":
        """Return W&B's part of the group `logger`, with the mode of the environment."""
        if missing := [name for name in logger_notes.WANDB_KEYS if name not in group]:
            raise ValueError(
                f"logger has no {missing[0]}: use 'logger=[wandb,csv]' for W&B beside another logger"
            )
        mode = resolve_wandb_mode(group["mode"])
        if mode not in ("online", "offline", "shared", "disabled"):
            raise ValueError(
                f"logger.mode must be online, offline, shared or disabled, and WANDB_MODE={mode} replaces "
                "it: set WANDB_MODE to one of these, or unset it"
            )
        if group["workspace"] and mode not in ("online", "shared"):
            raise ValueError(
                f"logger.workspace=true needs a W&B server, but the mode is {mode}: set "
                "logger.mode=online, or remove logger.workspace (logger.report=true works offline)"
            )
        if group["workspace"] and find_spec("wandb_workspaces") is None:
            raise ValueError(
                "logger.workspace=true needs the package wandb-workspaces: pip install 'attnlab[workspace]'"
            )
        return cls(**{**group, "mode": mode})

    def open_run(self, folder: Path, root: Path, **run: Any) -> Any:
        """Open a W&B run with files below `folder`; offline if this command has gone offline.

        A group and a job type from the environment replace those of the run, tags are added, and a name
        becomes a prefix, since runs of the same name would be indistinguishable.

        Args:
            **run: Arguments of `wandb.init`.
        """
        variables = os.environ
        for name, value in _DEFAULT_VARIABLES.items():
            variables.setdefault(name, value)
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        tags = [tag.strip() for tag in variables.get("WANDB_TAGS", "").split(",") if tag.strip()]
        arguments: dict[str, Any] = {
            **run,
            "name": f"{variables.get('WANDB_NAME', '')} {run.get('name') or ''}".strip() or None,
            "group": variables.get("WANDB_RUN_GROUP") or run.get("group"),
            "job_type": variables.get("WANDB_JOB_TYPE") or run.get("job_type"),
            "tags": sorted({*run.get("tags", ()), *tags}),
            "project": self.project,
            "entity": self.entity,
            "dir": None if variables.get("WANDB_DIR") else str(folder),
            "resume": "allow",
            "settings": wandb.Settings(
                reinit="create_new",  # leaves other W&B runs of this process alone
                use_dot_wandb=False,
                init_timeout=self.patience,
                finish_timeout=self.patience,
                finish_timeout_raises=True,
            ),
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


def record_pending_upload(folder: Path, run: Any, reason: str) -> None:
    """Record a W&B run that is incomplete on the server, for a later `wandb sync`."""
    folders = logger_notes.read_note(folder, logger_notes.WANDB).get("upload", ())
    uploads = dict.fromkeys([*folders, str(Path(run.dir).parent)])
    logger_notes.update_note(folder, logger_notes.WANDB, upload=[*uploads])
    if not run.offline:
        logger_notes.go_offline(folder.parent, reason)


def finish_run(run: Any, exit_code: int, folder: Path) -> None:
    """Finish a W&B run; an upload that takes longer than `logger.patience` stays pending on disk."""
    try:
        run.finish(exit_code=exit_code)
    except TimeoutError:
        reason = f"the upload took longer than {run.settings.finish_timeout:g} s"
        record_pending_upload(folder, run, reason)
        print(f"W&B: {reason}; `wandb sync` uploads the rest later", file=sys.stderr, flush=True)
