"""The command of a worker that a launcher starts on a cluster: this process's own, with a worker's limits."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.errors import InvalidConfig
from attnlab.store import fingerprint
from attnlab.store.config_groups import WorkLimits
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute.ranks import count_devices
from attnlab.sweep.plan.provenance import SECRET_NAME, find_named_variables, list_sweep_words

IDLE_SECONDS = 600.0  # after which a worker without a run ends
_FORWARDED_VARIABLES = ("PYTHONPATH", "HF_HUB_OFFLINE")


def build_worker_command(limits: WorkLimits) -> list[str]:
    """Return the arguments of Python that start a worker, which ends after IDLE_SECONDS without a run."""
    values = {**limits.model_dump(exclude_none=True), "idle": IDLE_SECONDS}
    given = ",".join(f"{key}:{value}" for key, value in values.items())
    return ["-u", "-m", "attnlab", *list_sweep_words(sys.argv[1:]), f"++sweep.work={{{given}}}"]


def compute_command_digest() -> str:
    """Return a digest of this process's command without its launcher's options, equal in its workers."""
    words = list_sweep_words(sys.argv[1:])
    own_words = [word for word in words if not word.lstrip("+").startswith("hydra.launcher.")]
    return fingerprint.compute_digest([os.getcwd(), *own_words])


def count_slots_per_worker(runs: Sequence[RunConfig], gpus: float, settings: Mapping[str, Any]) -> int:
    """Return the number of slots of a worker: those of one run, or one per GPU that it has."""
    n_devices = max(int(gpus), *(count_devices(run.config) for run in runs))
    return n_devices * int(settings.get("slots_per_gpu", 1))


def count_gpus_per_worker(runs: Sequence[RunConfig], requested: float | None, key: str) -> float:
    """Return the number of GPUs per worker: `requested`, else `trainer.devices` of runs planned for a GPU.

    Raises:
        InvalidConfig: GPUs are requested for runs that were planned for a CPU.
    """
    kinds = {run.estimate.device_kind for run in runs}
    if requested and "cpu" in kinds:
        raise InvalidConfig(
            f"{key}={requested:g}, but the runs were planned for this machine's CPU: set sweep.device to the "
            f"GPU's name (as nvidia-smi has it), or {key}=0"
        )
    if requested is not None or kinds == {"cpu"}:
        return requested or 0
    return max(count_devices(run.config) for run in runs)


def collect_forwarded_variables() -> dict[str, str]:
    """Return the environment variables that travel to the nodes; secrets do not."""
    named = find_named_variables(" ".join(sys.argv[1:]))
    return {
        name: value
        for name, value in os.environ.items()
        if (name in (*_FORWARDED_VARIABLES, *named) or name.startswith("WANDB_"))
        and not SECRET_NAME.search(name)
    }


def format_status_command() -> str:
    """Return the command that shows the state of this command's runs."""
    return shlex.join(["python", "-m", "attnlab", "status", *list_sweep_words(sys.argv[1:])])
