"""Weights & Biases through its public client, in the process of the run.

The environment variables that W&B documents hold. Where its server is mute, slow or refuses, the run is
logged offline, and so are the later runs of the same command.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from attnlab.config import wandb_mode
from attnlab.training.loggers import notes
from attnlab.training.loggers.background import Background, Log
from attnlab.training.loggers.labels import PROJECT, TOKENS

MODES = ("online", "offline", "shared", "disabled")
_SETTINGS: dict[str, Any] = {  # each unless the environment has its variable
    "silent": True, "console": "off", "disable_git": True, "disable_code": True, "x_disable_stats": True,
    "x_save_requirements": False,  # takes longer than all else; the config has the versions
}  # fmt: skip


@final
@dataclass(frozen=True)
class Wandb:
    """W&B's keys of the group `logger`. ValueError, one line, for values that cannot hold.

    `project` and `entity` are W&B's own where they are null: WANDB_PROJECT (else attnlab) and WANDB_ENTITY.
    `patience`: the seconds that `init` and `finish` may each take.
    """

    mode: str
    project: str | None
    entity: str | None
    report: bool
    workspace: bool
    patience: float

    def __post_init__(self) -> None:
        given = wandb_mode(self.mode, {})
        mode = wandb_mode(self.mode)
        if given not in MODES:
            raise ValueError(f"logger.mode must be online, offline, shared or disabled, got {self.mode}")
        if mode not in MODES:
            raise ValueError(
                "logger.mode must be online, offline, shared or disabled, and "
                f"WANDB_MODE={mode} replaces it: set WANDB_MODE to one of these, or unset it"
            )
        object.__setattr__(self, "mode", mode)
        if self.workspace and mode not in ("online", "shared"):
            raise ValueError(
                f"logger.workspace=true needs a W&B server, and the mode is {mode}: add "
                "logger.mode=online, or leave it out (logger.report=true works offline)"
            )
        if self.workspace and find_spec("wandb_workspaces") is None:
            raise ValueError(
                "logger.workspace=true needs the package wandb-workspaces: pip install 'attnlab[workspace]'"
            )

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "Wandb":
        """W&B's part of the group `logger`."""
        if missing := [name for name in notes.WANDB_KEYS if name not in group]:
            raise ValueError(
                f"logger has no {missing[0]}: use 'logger=[wandb,csv]' for W&B beside another logger"
            )
        return cls(**{name: group[name] for name in notes.WANDB_KEYS})

    def logger(self, folder: Path, batch_tokens: int | None, **run: Any) -> Background:
        """A Lightning logger over a W&B run; `run`: what `wandb.init` takes.

        The W&B id is the run's own, so a run that goes on from a checkpoint goes on in the same W&B run.
        """
        opened = list[Any]()

        def open_log() -> Log:
            opened.append(self.open(folder, folder.parent, **run))
            notes.update(folder, notes.WANDB, tags=list(opened[0].tags or ()))
            return _Log(opened[0], batch_tokens, folder)

        def on_error(why: str) -> None:
            if opened:
                _note_upload(folder, opened[0], why)

        return Background("W&B", open_log, folder, notes.WANDB, batch_tokens, self.patience, on_error)

    def open(self, folder: Path, root: Path, **run: Any) -> Any:
        """An open W&B run whose files lie below `folder`; offline where this command has gone offline."""
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its farewell waits 10 s for a mute server
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            **{name: value for name, value in _SETTINGS.items() if _variable(name) not in os.environ},
            "reinit": "create_new",  # somebody else's run in this process stays as it is
            "use_dot_wandb": False,
            "init_timeout": self.patience,
            "finish_timeout": self.patience,
            "finish_timeout_raises": True,
        }
        given: dict[str, Any] = {
            **_add_environment_labels(run),
            "project": self.project or os.environ.get("WANDB_PROJECT") or PROJECT,
            "entity": self.entity,
            "dir": None if os.environ.get("WANDB_DIR") else str(folder),
            "resume": "allow",
            "settings": wandb.Settings(**settings),
        }
        if self.mode != "offline" and not notes.offline_reason(root):
            try:
                return wandb.init(**given, mode=self.mode)  # type: ignore[arg-type]
            except Exception as error:  # the server's, the network's, or no login
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                why = "the server refused" if first == "<no message>" else first
                notes.go_offline(root, why)
                said = f"W&B went offline: {why}; `wandb sync` uploads the run later"
                print(said, file=sys.stderr, flush=True)
                wandb.teardown()  # its process holds the id of the run that it could not begin
        return wandb.init(**given, mode="offline")


def _variable(name: str) -> str:
    """The environment variable of a W&B setting."""
    return "WANDB_" + name.removeprefix("x").upper()


def _add_environment_labels(run: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `wandb.init`, with the labels that the environment sets: a group and a job type in
    place of ours, tags beside ours, and a name before ours, since runs of one name could not be told apart.
    """
    given = dict(run)
    variable = os.environ.get
    given["group"] = variable("WANDB_RUN_GROUP") or run.get("group")
    given["job_type"] = variable("WANDB_JOB_TYPE") or run.get("job_type")
    more = [tag.strip() for tag in (variable("WANDB_TAGS") or "").split(",")]
    given["tags"] = sorted({*(run.get("tags") or ()), *filter(None, more)})
    if prefix := variable("WANDB_NAME"):
        given["name"] = f"{prefix} {run.get('name') or ''}".strip()
    return given


def _note_upload(folder: Path, run: Any, why: str) -> None:
    """A W&B run that the server does not have whole is uploaded by `wandb sync` later."""
    here = str(Path(run.dir).parent)
    before = [path for path in notes.read(folder, notes.WANDB).get("upload", ()) if path != here]
    notes.update(folder, notes.WANDB, upload=[*before, here])
    if not run.offline:
        notes.go_offline(folder.parent, why)


class _Log(Log):
    """An open W&B run."""

    def __init__(self, run: Any, batch_tokens: int | None, folder: Path) -> None:
        from pytorch_lightning.loggers import WandbLogger

        super().__init__(WandbLogger(experiment=run), {})
        self._run = run
        self._folder = folder
        if batch_tokens:
            run.define_metric(TOKENS)
            run.define_metric("*", step_metric=TOKENS, step_sync=True)

    def end(self, summary: Mapping[str, float], fresh: Mapping[str, float], step: int, code: int) -> None:
        self._run.summary.update(dict(summary))
        finish(self._run, code, self._folder)


def finish(run: Any, code: int, folder: Path) -> None:
    """Ends a W&B run. One whose upload takes longer than `logger.patience` stays on disk, to be uploaded."""
    try:
        run.finish(exit_code=code)
    except TimeoutError:
        why = f"the upload took longer than {run.settings.finish_timeout:g} s"
        _note_upload(folder, run, why)
        print(f"W&B: {why}; `wandb sync` uploads the rest later", file=sys.stderr, flush=True)
