"""Set-up of a worker process on the machine that trains a run: memory, environment and device."""

import ctypes
import os
from contextlib import suppress

from attnlab.errors import InvalidConfig
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.plan.trainer import Trainer

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
RETAINED_BYTES = 1 << 28  # bytes


class WrongDevice(InvalidConfig):
    """This machine lacks the kind of device that a run was planned for; another one may have it."""


def retain_freed_memory() -> None:
    """Make glibc keep the memory that a training step frees.

    By default its pages return to the system and are faulted in again at every step, which costs CPU training
    3 to 16% of its time.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        libc = ctypes.CDLL(None)
        for threshold in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            libc.mallopt(threshold, RETAINED_BYTES)


def hide_slurm_environment() -> None:
    """Delete SLURM_* variables, from which Lightning would infer its ranks and requeue the job by itself."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        del os.environ[name]


def validate_device_kind(trainer: Trainer, spec: RunConfig) -> None:
    """Check that this machine trains on the planned kind of device, which is part of the run's id.

    Raises:
        WrongDevice: the run was planned for another kind of device.
    """
    local_kind = trainer.device_kind(spec.config)
    planned_kind = spec.estimate.device_kind
    if local_kind != planned_kind:
        raise WrongDevice(
            f"planned for {planned_kind}, but this machine trains on {local_kind}: repeat the "
            f"command on a machine with the planned device, or set sweep.device='{local_kind}'"
        )
