"""The launchers `pool` (this machine's GPUs or cores), `ray` and `slurm`, which train stored runs.

The sweeper calls `train` with run directories, so a launcher composes nothing. Hydra imports this module at
every start, so the implementations are imported late.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from attnlab.errors import InvalidConfig, format_suggestions

if TYPE_CHECKING:
    from attnlab.store.run_schema import RunConfig
    from attnlab.sweep.execute.pull import ClusterWorkers
    from attnlab.sweep.execute.work_folder import WorkFolder

_MODULE = "hydra_plugins.attnlab_sweep.launcher"


@dataclass
class PoolLauncherConf:
    _target_: str = f"{_MODULE}.PoolLauncher"


@dataclass
class RayLauncherConf:
    _target_: str = f"{_MODULE}.RayLauncher"
    address: str = "local"  # starts a cluster on this machine; auto or HOST:PORT joins one
    num_cpus: float = 1.0  # per worker; its run on a CPU has as many threads
    num_gpus: float | None = None  # per worker; null: trainer.devices if it was planned for a GPU
    resources: dict[str, float] = field(default_factory=dict)  # custom resources per worker
    init: dict[str, Any] = field(default_factory=dict)  # further arguments of ray.init
    wait: bool = True  # false: the command goes on in the background


@dataclass
class SlurmLauncherConf:
    _target_: str = f"{_MODULE}.SlurmLauncher"
    folder: str | None = None  # logs, on a disk that all nodes share; null: in paths.runs
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: int = 60  # minutes; a worker that needs longer is requeued and goes on
    requeues: int = 100  # after which a worker is requeued no more for lack of time
    signal_delay: int = 90  # seconds before the limit at which checkpoints are saved
    mem: str | None = None
    cpus_per_task: int = 1  # per worker; its run on a CPU has as many threads
    gpus_per_node: int | None = None  # per worker; null: trainer.devices if it was planned for a GPU
    array_parallelism: int = 256  # workers at most
    setup: list[str] = field(default_factory=list)  # shell lines before each worker, such as `module load`
    sbatch: dict[str, Any] = field(default_factory=dict)  # further options of sbatch
    poll: float = 10.0  # seconds between two queries of the queue
    wait: bool = True  # false: the command ends once its workers are submitted


_OPTION_SCHEMAS = {"pool": PoolLauncherConf, "ray": RayLauncherConf, "slurm": SlurmLauncherConf}
for name, node in _OPTION_SCHEMAS.items():
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node, provider="attnlab")


class BaseSweepLauncher(Launcher):
    """Base of the launchers, which have options from the config group `hydra/launcher`."""

    name: str
    options_schema: Any  # dataclass of the options
    trains_here = False  # True if all runs train on this machine and share its mirror of a bucket

    def __init__(self, **options: Any) -> None:
        self.options = {
            key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            for key, value in options.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        valid_keys = self.options_schema.__dataclass_fields__
        for key in self.options:
            if key not in valid_keys:
                raise InvalidConfig(
                    f"hydra.launcher.{key} is not an option of this launcher"
                    f"{format_suggestions(key, valid_keys)}"
                )

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Reject Hydra's own sweepers, which pass overrides to compose instead of stored runs.

        Raises:
            InvalidConfig: always.
        """
        raise InvalidConfig(
            f"hydra/launcher={self.name} works only with hydra/sweeper=attnlab: "
            "remove the sweeper override, or choose one of Hydra's launchers"
        )


class PoolLauncher(BaseSweepLauncher):
    name = "pool"
    options_schema = PoolLauncherConf
    trains_here = True

    def validate_runs(self, runs: "Sequence[RunConfig]", settings: dict[str, Any]) -> None:
        """Check the runs against this machine before anything is written.

        The cluster launchers cannot: their nodes are unknown until a worker starts.
        """
        from attnlab.sweep.execute.pool import validate_resources

        validate_resources(runs, settings)

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        """Train the runs in `folders`; return when all have ended, whatever their outcome."""
        from attnlab.sweep.execute.pool import launch_locally

        launch_locally(folders, settings)


class BaseClusterLauncher(BaseSweepLauncher):
    """Base of the launchers that start workers on a cluster."""

    def validate_runs(self, runs: "Sequence[RunConfig]", settings: dict[str, Any]) -> None:
        """Check that the command can be left to the cluster, if it is to be.

        Raises:
            InvalidConfig: its experiment is in a temporary file.
        """
        if settings.get("command") and not self.options["wait"]:
            raise InvalidConfig(
                "hydra.launcher.wait=false: the experiment of this verb ends with the command: write it to a "
                "file in conf/experiment, or remove hydra.launcher.wait"
            )

    @abstractmethod
    def open_workers(
        self, folder: "WorkFolder", runs: "Sequence[RunConfig]", settings: dict[str, Any]
    ) -> "AbstractContextManager[ClusterWorkers]":
        """Return a context with the workers of a command, none of which is started yet."""

    def find_workers(
        self, folder: "WorkFolder", runs: "Sequence[RunConfig]", settings: dict[str, Any]
    ) -> "ClusterWorkers | None":
        """Return the workers of the command to a worker that can start others, else None."""
        return None


class RayLauncher(BaseClusterLauncher):
    name = "ray"
    options_schema = RayLauncherConf

    def setup(self, **arguments: Any) -> None:
        if find_spec("ray") is None:
            raise InvalidConfig("hydra/launcher=ray needs: pip install 'attnlab[ray]'")
        super().setup(**arguments)

    def open_workers(
        self, folder: "WorkFolder", runs: "Sequence[RunConfig]", settings: dict[str, Any]
    ) -> "AbstractContextManager[ClusterWorkers]":
        from attnlab.sweep.launchers.ray import open_ray_workers

        return open_ray_workers(folder, runs, settings, self.options)


class SlurmLauncher(BaseClusterLauncher):
    name = "slurm"
    options_schema = SlurmLauncherConf

    def open_workers(
        self, folder: "WorkFolder", runs: "Sequence[RunConfig]", settings: dict[str, Any]
    ) -> "AbstractContextManager[ClusterWorkers]":
        return nullcontext(self.find_workers(folder, runs, settings))

    def find_workers(
        self, folder: "WorkFolder", runs: "Sequence[RunConfig]", settings: dict[str, Any]
    ) -> "ClusterWorkers":
        from attnlab.sweep.launchers.slurm import SlurmWorkers

        return SlurmWorkers(folder, runs, settings, self.options)
