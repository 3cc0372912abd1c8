"""The sweeper `attnlab`, which turns a command line into arms x seeds and a report.

Hydra imports this module at every start, so it imports little.
"""

from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class AttnlabSweeperConf:
    _target_: str = "hydra_plugins.attnlab_sweep.sweeper.AttnlabSweeper"


ConfigStore.instance().store(
    group="hydra/sweeper", name="attnlab", node=AttnlabSweeperConf, provider="attnlab"
)


class AttnlabSweeper(Sweeper):
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from attnlab.sweep.engine import run_sweep

        assert self.config is not None
        assert self.hydra_context is not None
        status = run_sweep(arguments, self.config, self.hydra_context.config_loader, self.launcher)
        if status:
            raise SystemExit(status)
        return []
