"""The launcher `pool`: this machine's GPUs or cores, a fresh process per run. Reads ids; composes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


@dataclass
class PoolLauncherConf:
    _target_: str = "hydra_plugins.attnlab_sweep.launcher.PoolLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="pool", node=PoolLauncherConf, provider="attnlab")


class PoolLauncher(Launcher):
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from attnlab.sweep.pool import launch

        assert self.config is not None
        ids = [overrides[-1].removeprefix("id=").strip("'") for overrides in job_overrides]
        launch(
            [Path(self.config.paths.runs) / one for one in ids],
            OmegaConf.to_container(self.config.sweep, resolve=True),
        )
        return [
            JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED) for overrides in job_overrides
        ]
