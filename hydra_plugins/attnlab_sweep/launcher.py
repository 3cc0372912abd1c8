"""The launchers `pool` (this machine's GPUs or cores), `ray` and `slurm`, which train stored runs.

The sweeper calls `train` with run directories, so a launcher composes nothing. Hydra imports this module at
every start, so the implementations are imported late.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
    from attnlab.sweep.launchers.node_quarantine import NodeQuarantine

_MODULE = "hydra_plugins.attnlab_sweep.launcher"


@dataclass
class PoolLauncherConf:
    _target_: str = f"{_MODULE}.PoolLauncher"


@dataclass
class RayLauncherConf:
    _target_: str = f"{_MODULE}.RayLauncher"
    address: str = "local"  # starts a cluster on this machine; auto or HOST:PORT joins one
    num_cpus: float = 1.0  # per run, which has as many threads
    num_gpus: float | None = None  # per run; null: trainer.devices if it was planned for a GPU
    resources: dict[str, float] = field(default_factory=dict)  # custom resources per run
    init: dict[str, Any] = field(default_factory=dict)  # further arguments of ray.init
    wait: bool = True  # false: an actor of the cluster runs the command, which ends at once


@dataclass
class SlurmLauncherConf:
    _target_: str = f"{_MODULE}.SlurmLauncher"
    folder: str | None = None  # scripts, logs, pickles, on a disk that all nodes share; null: in your home
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: int = 60  # minutes; a longer run is requeued and resumes from its checkpoint
    requeues: int = 100  # at most, for lack of time; preemptions do not count
    signal_delay: int = 90  # seconds before the limit at which a checkpoint is saved
    mem: str | None = None
    cpus_per_task: int = 1  # per run, which has as many threads
    gpus_per_node: int | None = None  # per run; null: trainer.devices if it was planned for a GPU
    array_parallelism: int = 256  # runs at a time
    setup: list[str] = field(default_factory=list)  # shell lines before each run, such as `module load`
    sbatch: dict[str, Any] = field(default_factory=dict)  # further options of sbatch
    poll: float = 10.0  # seconds between two queries of the queue
    wait: bool = True  # false: the command ends once its runs are submitted, and further jobs continue it


_OPTION_SCHEMAS = {"pool": PoolLauncherConf, "ray": RayLauncherConf, "slurm": SlurmLauncherConf}
for name, node in _OPTION_SCHEMAS.items():
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node, provider="attnlab")


class BaseStoredRunLauncher(Launcher):
    """Base of the launchers, which train stored runs with options from the config group `hydra/launcher`."""

    options_schema: Any  # dataclass of the options
    required_library: str | None = None  # module that `pip_extra` installs
    pip_extra: str | None = None
    trains_here = False  # True if all runs train on this machine and share its mirror of a bucket

    def __init__(self, **options: Any) -> None:
        self.options = {
            key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            for key, value in options.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if self.required_library and find_spec(self.required_library) is None:
            raise InvalidConfig(
                f"hydra/launcher={self.pip_extra} needs: pip install 'attnlab[{self.pip_extra}]'"
            )
        valid_keys = self.options_schema.__dataclass_fields__
        for key in self.options:
            if key not in valid_keys:
                raise InvalidConfig(
                    f"hydra.launcher.{key} is not an option of this launcher"
                    f"{format_suggestions(key, valid_keys)}"
                )

    @cached_property
    def quarantine(self) -> "NodeQuarantine":
        """Nodes that get no further runs of this command."""
        from attnlab.sweep.launchers.node_quarantine import NodeQuarantine

        return NodeQuarantine()

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Reject Hydra's own sweepers, which pass overrides to compose instead of stored runs.

        Raises:
            InvalidConfig: always.
        """
        raise InvalidConfig(
            f"hydra/launcher={self.pip_extra or 'pool'} works only with hydra/sweeper=attnlab: "
            "remove the sweeper override, or choose one of Hydra's launchers"
        )

    @abstractmethod
    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        """Train the runs in `folders`; return when all have ended, whatever their outcome."""


def _validate_repeatable(settings: dict[str, Any]) -> None:
    """Check that a node can repeat the command.

    Raises:
        InvalidConfig: its experiment is in a temporary file.
    """
    if settings.get("command"):
        raise InvalidConfig(
            "hydra.launcher.wait=false: the experiment of this verb ends with the command: write it to a "
            "file in conf/experiment, or remove hydra.launcher.wait"
        )


class PoolLauncher(BaseStoredRunLauncher):
    options_schema = PoolLauncherConf
    trains_here = True

    def validate_runs(self, runs: "Sequence[RunConfig]", settings: dict[str, Any]) -> None:
        """Check the runs against this machine before anything is written.

        The cluster launchers cannot: their nodes are unknown until a run is submitted.
        """
        from attnlab.sweep.execute.pool import validate_resources

        validate_resources(runs, settings)

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        from attnlab.sweep.execute.pool import launch_locally

        launch_locally(folders, settings)


class RayLauncher(BaseStoredRunLauncher):
    options_schema = RayLauncherConf
    required_library = "ray"
    pip_extra = "ray"

    def validate_runs(self, runs: "Sequence[RunConfig]", settings: dict[str, Any]) -> None:
        """Check that the command can be left to the cluster, if it is to be.

        Raises:
            InvalidConfig: the cluster would end with the command, or the command cannot be repeated.
        """
        if not self.options["wait"]:
            _validate_repeatable(settings)
            if self.options["address"] == "local":
                raise InvalidConfig(
                    "hydra.launcher.wait=false: a local cluster ends with the command: set "
                    "hydra.launcher.address to a running cluster, as in auto or HOST:PORT"
                )

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        from attnlab.sweep.launchers.ray import launch_on_ray
        from attnlab.sweep.launchers.ray_actor import submit_to_ray

        if self.options["wait"]:
            launch_on_ray(folders, settings, self.options, self.quarantine)
        else:
            submit_to_ray(folders, settings, self.options)


class SlurmLauncher(BaseStoredRunLauncher):
    options_schema = SlurmLauncherConf
    required_library = "submitit"
    pip_extra = "slurm"

    def validate_runs(self, runs: "Sequence[RunConfig]", settings: dict[str, Any]) -> None:
        """Check that the command can be left to the cluster, if it is to be.

        Raises:
            InvalidConfig: the command cannot be repeated, or has to see the first failure.
        """
        if not self.options["wait"]:
            _validate_repeatable(settings)
            if settings.get("fail_fast"):
                raise InvalidConfig(
                    "hydra.launcher.wait=false: no command waits for the first failure: remove "
                    "sweep.fail_fast, or hydra.launcher.wait"
                )

    def train(self, folders: Sequence[Path], settings: dict[str, Any]) -> None:
        from attnlab.sweep.launchers.slurm import launch_on_slurm
        from attnlab.sweep.launchers.slurm_chain import submit_to_slurm

        launch = launch_on_slurm if self.options["wait"] else submit_to_slurm
        launch(folders, settings, self.options, self.quarantine)
