"""Parts that compute in the dtype that they chose, under autocast too."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def is_autocast_enabled(x: Tensor) -> bool:
    """Whether autocast is on for the device of x; never on meta, where FLOPs are counted."""
    device = "cpu" if x.is_cpu else x.device.type  # reading the device's name takes longer
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def disable_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Disable autocast for the device of x within a block."""
    return torch.autocast(x.device.type, enabled=False) if is_autocast_enabled(x) else nullcontext()
