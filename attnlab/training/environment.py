"""Where a run ran: versions, machine, device, commit."""

import os
import platform
from importlib.metadata import version
from typing import Any

import torch

import attnlab
from attnlab.model.build import device_kind


def environment(device: str) -> dict[str, Any]:
    """Where the run ran."""
    packages = {
        name: version(name)
        for name in ("torch", "pytorch-lightning", "hydra-core", "numpy", "datasets", "wandb")
    }
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": packages["pytorch-lightning"],
        "attnlab": attnlab.__version__,
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "device": device,
        "device_kind": device_kind(device),
        "threads": torch.get_num_threads(),
        "git_commit": os.environ.get("ATTNLAB_COMMIT"),
        "git_dirty": {"1": True, "0": False}.get(os.environ.get("ATTNLAB_DIRTY", "")),
        "packages": packages,
    }
