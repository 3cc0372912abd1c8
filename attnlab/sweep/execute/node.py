"""What a run finds on the machine it has landed on, and must not be misled by."""

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from attnlab.errors import Refused


def alone() -> None:
    """Inside a SLURM job Lightning would take the job's tasks for its ranks, and requeue it by itself."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        del os.environ[name]


def refuse_other_device(module: ModuleType, spec: Mapping[str, Any]) -> None:
    """The kind of device is part of a run's id, so a run planned for one is not trained on another."""
    planned = (spec.get("figures") or {}).get("device_kind")
    if planned is None or not hasattr(module, "device_kind"):
        return
    here = module.device_kind(module.device_of(spec["config"]))
    if here != planned:
        raise Refused(
            f"planned for {planned}, and this machine would train on {here}: give the command on such a "
            f"machine, or with sweep.device='{here}'"
        )
