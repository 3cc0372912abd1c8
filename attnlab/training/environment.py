"""Where a run ran: versions, machine, device, commit."""

import platform
from importlib.metadata import version
from typing import Any

import torch

import attnlab
from attnlab.model.build import device_kind
from attnlab.store.schema import Use


def environment(device: str, use: Use) -> dict[str, Any]:
    """Where the run ran, and at which commit of attnlab, as its spec says."""
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
        "git_commit": use.commit,
        "git_dirty": use.dirty,
        "packages": packages,
    }
