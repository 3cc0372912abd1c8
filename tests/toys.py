"""Toy conf tree with an instant trainer and renderer, and attnlab run over them with the real Hydra."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from attnlab.config import CONF, register_resolvers
from attnlab.store.guards import trust
from attnlab.store.run_schema import RunEstimate, RunLookup
from attnlab.sweep.plan import config_files
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.overrides import parse_overrides
from attnlab.sweep.plan.plan import Plan, plan_command

TOY = Path(__file__).parent / "toy"
REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory from which the toy's modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TOY))
    return tmp_path


@cache
def make_loader(conf: Path, *search_folders: Path) -> ConfigLoader:
    """Return the config loader of `conf`, shared by all tests of a process.

    `search_folders` are the folders that a command line adds to the search path.
    """
    config_files.register_config_source(search_folders)
    try:
        with initialize_config_dir(str(conf), version_base="1.3"):
            return GlobalHydra.instance().config_loader()
    finally:
        config_files.register_config_source()


@cache
def shipped_loader() -> ConfigLoader:
    """Return the loader of `conf/`, which reads the tree once for all tests of a process."""
    register_resolvers()
    return make_loader(CONF)


def plan_shipped(line: list[str], checker: Any) -> Plan:
    """Return the only plan of a command line over `conf/`; `checker` stands in for the trainer's check."""
    [plan] = plan_all_shipped(line, checker)
    return plan


def plan_all_shipped(line: list[str], checker: Any) -> list[Plan]:
    """As `plan_shipped`, with one plan per corpus or ladder size."""
    master = shipped_loader().load_configuration("config", line, RunMode.MULTIRUN)
    # overrides of hydra itself are in the master config already
    overrides = [word for word in line if not word.lstrip("+~").startswith(("hydra.", "hydra/"))]
    return plan_command(overrides, Composer(shipped_loader(), master), checker)


class InProcessChecker:
    """The toy trainer's checks, made in this process instead of a child."""

    @staticmethod
    def check(config: dict[str, Any]) -> RunEstimate:
        import toy_trainer

        return RunEstimate.model_validate(toy_trainer.check(config))

    def count_resource(self, config: dict[str, Any], name: str) -> float:
        return float(self.check(config).get(name))


@pytest.fixture
def plan_toy(toy: Path) -> Callable[..., list[Plan]]:
    """`plan_toy("+experiment=heads", ...)`: the plans of a toy command line, made in this process.

    `conf` is a copy of the toy's conf tree, for tests that add files to it.
    """

    def call(*arguments: str, lookup: RunLookup = lambda _id: None, conf: Path = TOY / "conf") -> list[Plan]:
        loader = make_loader(conf, *config_files.list_searchpath_folders(parse_overrides(arguments)))
        master = loader.load_configuration("config", list(arguments), RunMode.MULTIRUN)
        # overrides of hydra itself are in the master config already
        overrides = [line for line in arguments if not line.startswith("hydra.")]
        plans = plan_command(overrides, Composer(loader, master), InProcessChecker(), lookup)
        trust.declare_names(run.config for plan in plans for run in plan.all_runs)  # as a command does
        return plans

    return call


class Command:
    """`python -m attnlab` over the toy conf tree, in its own working directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = [TOY, TOY / "pictures", REPOSITORY]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}

    def start(self, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
        """Start a command; `settings` are arguments of Popen."""
        verb = [word for word in arguments[:1] if word.isidentifier()]
        conf = ["--config-path", str(TOY / "conf")]
        line = [sys.executable, "-m", "attnlab", *verb, *conf, *arguments[len(verb) :]]
        defaults = {"env": self.environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            line,
            cwd=self.folder,
            text=True,
            start_new_session=True,
            # a shell that starts pytest in the background makes it and all its children ignore Ctrl-C
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **(defaults | settings),
        )

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command to its end; return the exit status, stdout and stderr."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=200)
        return process.returncode, out, err

    def load_attempts(self) -> list[list[str]]:
        """Return a row per training attempt: act, seed, pid, visible devices."""
        file = self.folder / "trained"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def attnlab(tmp_path: Path) -> Command:
    return Command(tmp_path)
