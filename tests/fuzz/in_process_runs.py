"""Plan and train runs in this process, as the checking process and a worker do."""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from random_lines import load_config_loader
from stored_runs import make_spec, write_spec

from attnlab.store import run_directories
from attnlab.store.guards import trust
from attnlab.store.run_schema import RunConfig
from attnlab.sweep import engine
from attnlab.sweep.plan import checker
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import plan_command
from attnlab.training import run


class InProcessChecker(checker.Checker):
    """The checking process, emulated in this process."""

    def _send_request(self, request: Any) -> tuple[str, Any]:
        return checker._handle_request(*request)


def plan_runs(line: list[str]) -> list[RunConfig]:
    """Plan the runs of a command line as a sweep does."""
    master = load_config_loader().load_configuration("config", line, RunMode.MULTIRUN)
    HydraConfig.instance().set_config(master)
    engine.validate_sweep_config(master)
    return [
        run
        for plan in plan_command(
            line, Composer(load_config_loader(), master), InProcessChecker(Any, "attnlab.training.run")
        )
        for run in plan.runs
    ]


def train_two_steps(spec: RunConfig, folder: Path) -> str:
    """Train a planned run for two steps; return `trained` or `diverged`."""
    config = spec.config
    trainer = {**config["trainer"], "max_steps": min(2, config["trainer"]["max_steps"]), "strategy": "auto"}
    trainer["accumulate_grad_batches"] = min(3, trainer["accumulate_grad_batches"])
    trainer["devices"] = 1  # only a worker starts other ranks
    trainer.pop("benchmark", None)
    changes = {
        "trainer": trainer,
        "logger": {**config["logger"], "mode": "disabled", "workspace": False},
        "optim": {**config["optim"], "compile": False},
        "data": {**config["data"], **({"num_workers": 0} if config["data"].get("num_workers") else {})},
    }
    changed = make_spec({**config, **changes}, estimate=spec.estimate, use=spec.use)
    trust.declare_names([changed.config])
    run_folder = write_spec(folder / "runs", changed)
    try:
        run.run(run_folder)
    except FloatingPointError:
        return "diverged"
    assert run_directories.is_done(run_folder), run_directories.describe_result_fault(run_folder)
    return "trained"
