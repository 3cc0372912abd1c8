"""Weights & Biases as a mirror: what is on disk is the result, and no trouble of the mirror's may delay or
fail a run.

Offline by default. Online is tried behind a short probe and bounded waits; whatever goes wrong there turns
into an offline run and one line of warning. `WANDB_MODE` is honoured over the config, as W&B's users
expect.
"""

import os
import socket
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

PROBE_SECONDS, INIT_SECONDS, FINISH_SECONDS = 3, 20, 30


def logger(
    mode: str,
    project: str,
    entity: str | None,
    *,
    folder: Path,
    id: str,
    group: str | None,
    job_type: str,
    name: str,
    tags: list[str],
    config: dict[str, Any],
) -> Any:
    """Lightning's WandbLogger over a run that is already open, or False where mode is `disabled`.

    The W&B id is the run's own, so that a resumed run goes on in the same W&B run.
    """
    if mode in ("offline", "online"):
        mode = os.environ.get("WANDB_MODE", mode)
    if mode not in ("offline", "online", "disabled"):
        raise ValueError(f"logger.mode must be offline, online or disabled, got {mode}")
    if mode == "disabled":
        return False
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    wanted = {
        "project": project, "entity": entity, "dir": str(folder), "id": id, "resume": "allow", "group": group,
        "job_type": job_type, "name": name, "tags": tags, "config": config,
    }  # fmt: skip
    quiet = {
        "silent": True, "console": "off", "disable_git": True, "disable_code": True, "x_disable_stats": True,
        "init_timeout": INIT_SECONDS, "x_service_wait": INIT_SECONDS,
    }  # fmt: skip
    if mode == "online":
        try:
            _require_server()
            run = wandb.init(**wanted, mode="online", settings=wandb.Settings(**quiet))
            return WandbLogger(experiment=run)
        except Exception as error:  # whatever the mirror's trouble is, the run goes on
            warnings.warn(
                f"W&B is not reachable ({error}); this run is logged offline: wandb sync {folder}",
                stacklevel=2,
            )
    run = wandb.init(**wanted, mode="offline", settings=wandb.Settings(**quiet))
    return WandbLogger(experiment=run)


def _require_server() -> None:
    import wandb

    address = urlparse(wandb.Settings().base_url)
    port = address.port or (443 if address.scheme == "https" else 80)
    with socket.create_connection((address.hostname or "", port), timeout=PROBE_SECONDS):
        pass
