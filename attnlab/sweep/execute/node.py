"""What a run finds on the machine it has landed on, and must not be misled by."""

import os

from attnlab.errors import Refused
from attnlab.store.schema import RunSpec
from attnlab.sweep.plan.trainer import Trainer


def alone() -> None:
    """Inside a SLURM job Lightning would take the job's tasks for its ranks, and requeue it by itself."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        del os.environ[name]


def refuse_other_device(trainer: Trainer, spec: RunSpec) -> None:
    """The kind of device is part of a run's id, so a run planned for one is not trained on another."""
    here, planned = trainer.device_kind(spec.config), spec.estimate.device_kind
    if here != planned:
        raise Refused(
            f"planned for {planned}, and this machine would train on {here}: give the command on such a "
            f"machine, or with sweep.device='{here}'"
        )
