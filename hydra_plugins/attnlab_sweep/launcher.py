"""The launchers: `pool` (this machine's GPUs or cores), `ray` and `slurm`. All train the same stored runs.

The sweeper calls `train` with the folders of runs, and nothing is composed. Hydra imports this at every
start, so the engines are imported late.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from attnlab.errors import Refused, nearest

if TYPE_CHECKING:
    from attnlab.store.schema import RunSpec

_HERE = "hydra_plugins.attnlab_sweep.launcher"


@dataclass
class PoolLauncherConf:
    _target_: str = f"{_HERE}.PoolLauncher"


@dataclass
class RayLauncherConf:
    _target_: str = f"{_HERE}.RayLauncher"
    address: str = "local"  # a cluster of this machine's own; auto, or HOST:PORT, joins one that runs
    num_cpus: float = 1.0  # of each run, which has as many threads
    num_gpus: float | None = None  # of each run; null: trainer.devices where it was planned for a GPU
    resources: dict[str, float] = field(default_factory=dict)  # custom resources of each run
    init: dict[str, Any] = field(default_factory=dict)  # further arguments of ray.init


@dataclass
class SlurmLauncherConf:
    _target_: str = f"{_HERE}.SlurmLauncher"
    folder: str | None = None  # scripts, logs and pickles, on a disk that all nodes share; null: runs/slurm
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: int = 60  # minutes; a run that needs more is requeued and goes on from its checkpoint
    requeues: int = 100  # how often for want of time; being pre-empted does not count
    signal_delay: int = 90  # seconds before the limit at which a checkpoint is saved
    mem: str | None = None
    cpus_per_task: int = 1  # of each run, which has as many threads
    gpus_per_node: int | None = None  # of each run; null: trainer.devices where it was planned for a GPU
    array_parallelism: int = 256  # runs at a time
    setup: list[str] = field(default_factory=list)  # shell lines before each run, such as `module load`
    sbatch: dict[str, Any] = field(default_factory=dict)  # further options of sbatch
    poll: float = 10.0  # seconds between two looks at the queue


_SCHEMAS = {"pool": PoolLauncherConf, "ray": RayLauncherConf, "slurm": SlurmLauncherConf}
for name, node in _SCHEMAS.items():
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node, provider="attnlab")


class StoredRuns(Launcher):
    """What the launchers share: they train stored runs, with options from the config group."""

    schema: Any  # the dataclass of its options
    library: str | None = None  # that it needs, from an extra of ours
    extra: str | None = None

    def __init__(self, **options: Any) -> None:
        self.options = {
            key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            for key, value in options.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if self.library and find_spec(self.library) is None:
            raise Refused(f"hydra/launcher={self.extra} needs: pip install 'attnlab[{self.extra}]'")
        known = self.schema.__dataclass_fields__
        for key in self.options:
            if key not in known:
                raise Refused(f"hydra.launcher.{key} is no option of this launcher{nearest(key, known)}")

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Hydra's own way to call a launcher, which hands over overrides that are to be composed."""
        raise Refused(
            f"hydra/launcher={self.extra or 'pool'} trains stored runs of hydra/sweeper=attnlab: leave the "
            "sweeper as it is, or choose a launcher of Hydra's own"
        )

    @abstractmethod
    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        """Returns when all have ended, however they did."""


class PoolLauncher(StoredRuns):
    schema = PoolLauncherConf

    def admit(self, runs: "Sequence[RunSpec]", settings: dict[str, Any]) -> None:
        """Asked before anything is written; a cluster's nodes are not known until a run is submitted."""
        from attnlab.sweep.execute.pool import admit

        admit(runs, settings)

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        from attnlab.sweep.execute.pool import launch

        launch(folders, settings)


class RayLauncher(StoredRuns):
    schema = RayLauncherConf
    library = "ray"
    extra = "ray"

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        from attnlab.sweep.launchers.ray import launch

        launch(folders, settings, self.options)


class SlurmLauncher(StoredRuns):
    schema = SlurmLauncherConf
    library = "submitit"
    extra = "slurm"

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        from attnlab.sweep.launchers.slurm import launch

        launch(folders, settings, self.options)
