"""A toy conf tree, a trainer and a renderer that take no time, attnlab over them. Hydra is the real one."""

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
from attnlab.store.schema import Estimate
from attnlab.sweep.plan import config_files
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.overrides import parse
from attnlab.sweep.plan.plan import Plan, plan
from attnlab.sweep.plan.tuning.lr_grid import Lookup

TOY = Path(__file__).parent / "toy"
REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory from which the toy's modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TOY))
    return tmp_path


@cache
def loader_of(conf: Path, *named: Path) -> ConfigLoader:
    """One for all tests of a process; `named` are the folders that a command line names."""
    config_files.register(named)
    with initialize_config_dir(str(conf), version_base="1.3"):
        return GlobalHydra.instance().config_loader()


@cache
def shipped() -> ConfigLoader:
    """One of `conf/`, which reads it once for all tests of a process."""
    register_resolvers()
    return loader_of(CONF)


def plan_of_shipped(line: list[str], checker: Any) -> Plan:
    """The one plan of a command line over `conf/`, made here; `checker` answers for the trainer."""
    [made] = plans_of_shipped(line, checker)
    return made


def plans_of_shipped(line: list[str], checker: Any) -> list[Plan]:
    """As `plan_of_shipped`, one for each text."""
    master = shipped().load_configuration("config", line, RunMode.MULTIRUN)
    asked = [word for word in line if not word.lstrip("+~").startswith(("hydra.", "hydra/"))]  # in the master
    return plan(asked, Composer(shipped(), master), checker)


class Asked:
    """What the checking process answers for the toy, without the process."""

    @staticmethod
    def check(config: dict[str, Any]) -> Estimate:
        import toy_trainer

        return Estimate.model_validate(toy_trainer.check(config))

    def count_resource(self, config: dict[str, Any], name: str) -> float:
        return float(self.check(config).get(name))


@pytest.fixture
def planned(toy: Path) -> Callable[..., list[Plan]]:
    """`planned("+experiment=heads", ...)`: the plans of a toy command line, made in this process; `conf` has
    the toy's files where a test adds to them.
    """

    def call(*arguments: str, lookup: Lookup = lambda _id: None, conf: Path = TOY / "conf") -> list[Plan]:
        loader = loader_of(conf, *config_files.folders_named(parse(arguments)))
        master = loader.load_configuration("config", list(arguments), RunMode.MULTIRUN)
        asked = [line for line in arguments if not line.startswith("hydra.")]  # those are in the master
        return plan(asked, Composer(loader, master), Asked(), lookup)

    return call


class Command:
    """`python -m attnlab` in a folder of its own, over the toy conf tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = [TOY, TOY / "pictures", REPOSITORY]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "attnlab", "--config-path", str(TOY / "conf"), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            line,
            cwd=self.folder,
            env=self.environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
            # a shell that starts the tests in its background has them ignore Ctrl-C, and all that they start
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, output, errors."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=200)
        return process.returncode, out, err

    def trained(self) -> list[list[str]]:
        """What was trained, by every attempt: act, seed, pid."""
        file = self.folder / "trained"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def attnlab(tmp_path: Path) -> Command:
    return Command(tmp_path)
