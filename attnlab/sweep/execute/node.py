"""What a run finds on the machine it has landed on, and must not be misled by."""

import ctypes
import os
from contextlib import suppress

from attnlab.errors import Refused
from attnlab.store.schema import RunSpec
from attnlab.sweep.plan.trainer import Trainer

TRIM = -1
MMAP = -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
KEPT = 1 << 28  # bytes


def keep_memory() -> None:
    """Memory that a step frees stays with the process, under glibc. By default its pages go back to the
    system and are taken again in every step, which costs training on a CPU 3 to 16 % of its time.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        libc = ctypes.CDLL(None)
        for threshold in (TRIM, MMAP):
            libc.mallopt(threshold, KEPT)


def alone() -> None:
    """Inside a SLURM job Lightning would take the job's tasks for its ranks, and requeue it by itself."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        del os.environ[name]


def refuse_other_device(trainer: Trainer, spec: RunSpec) -> None:
    """The kind of device is part of a run's id, so a run planned for one is not trained on another."""
    here = trainer.device_kind(spec.config)
    planned = spec.estimate.device_kind
    if here != planned:
        raise Refused(
            f"planned for {planned}, and this machine would train on {here}: give the command on such a "
            f"machine, or with sweep.device='{here}'"
        )
