"""Random command lines are each rejected in one line, or train for two steps without a crash."""

import collections
import os
import resource
import signal
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException
from random_lines import draw_line, load_config_loader
from sampling import FULL
from stored_runs import make_spec, write_spec

from attnlab.cli.hydra_errors import format_hydra_error
from attnlab.errors import InvalidConfig
from attnlab.store import run_directories
from attnlab.store.guards import trust
from attnlab.store.run_schema import RunConfig, RunEstimate
from attnlab.sweep import engine
from attnlab.sweep.execute import submission
from attnlab.sweep.plan import checker
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import plan_command
from attnlab.training import run

torch.set_num_threads(1)
COUNT = int(os.environ.get("FUZZ", "100" if FULL else "60"))
FIRST = int(os.environ.get("FUZZ_FROM", "0"))
SECONDS = 60
MEMORY = 12 * 2**30
WORDS = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40


class InProcessChecker:
    """The checking process, emulated in this process."""

    @staticmethod
    def check(config: dict[str, Any]) -> RunEstimate:
        kind, answer = checker._handle_request("attnlab.training.run", "check", config)
        if kind == "refused":
            raise InvalidConfig(answer)
        if kind == "bug":
            raise AssertionError(answer)
        return RunEstimate.model_validate(answer)

    def count_resource(self, config: dict[str, Any], name: str) -> float:
        return float(self.check(config).get(name))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "book.txt").write_text(WORDS)
    (tmp_path / "names.txt").write_text(
        "\n".join(f"{a}{b}{c}" for a in "abcde" for b in "fghi" for c in "jkl")
    )
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "part.txt").write_text(WORDS)
    return tmp_path


def plan_runs(line: list[str]) -> list[RunConfig]:
    """Plan the runs of a command line as a sweep does."""
    master = load_config_loader().load_configuration("config", line, RunMode.MULTIRUN)
    HydraConfig.instance().set_config(master)
    engine.validate_sweep_config(master)
    return [
        run
        for plan in plan_command(line, Composer(load_config_loader(), master), InProcessChecker())
        for run in plan.runs
    ]


def try_line(line: list[str], folder: Path) -> str:
    """Plan and train a command line; return `refused: ...`, `trained` or `diverged`.

    Any other exception is a fault.
    """
    try:
        (spec,) = plan_runs(line)
        submission.validate_parents([spec], folder / "runs")
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        is_hydra_error = isinstance(error, HydraException | OmegaConfBaseException)
        message = format_hydra_error(error, []) if is_hydra_error else str(error)
    else:
        return train_two_steps(spec, folder)
    assert message.strip(), "refused without a word"
    assert "\n" not in message.strip(), f"refused in several lines: {message!r}"
    assert len(message) < 1500, f"a line of {len(message)} characters: {message[:300]}"
    return f"refused: {message}"


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


def try_random_lines(numbers: range, folder: Path) -> tuple[collections.Counter[str], list[str]]:
    """Try random lines; return counts of their ends, and the faults with their lines."""

    def raise_timeout(*_: object) -> None:
        raise AssertionError(f"not done within {SECONDS} s")

    end_counts, faults = collections.Counter[str](), list[str]()
    previous_handler = signal.signal(signal.SIGALRM, raise_timeout)
    memory = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (MEMORY, memory[1])
    )  # excessive allocations fail instead of killing the process
    try:
        for number in numbers:
            line = draw_line(number, folder)
            signal.alarm(SECONDS)
            try:
                end = try_line(line, folder)
            except (Exception, SystemExit) as error:
                end = "fault"
                description = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
                faults.append(f"{number}: {' '.join(line)}\n{description[-3000:]}")
                if log_path := os.environ.get("FUZZ_OUT"):
                    with open(log_path, "a") as file:
                        print("#####", faults[-1], file=file, flush=True)
            finally:
                signal.alarm(0)
                torch.use_deterministic_algorithms(False)
            end_counts[end.partition(":")[0]] += 1
            if end.startswith("refused") and (log_path := os.environ.get("FUZZ_REFUSED")):
                with open(log_path, "a") as file:
                    print(number, line[-3:], end, file=file, flush=True)
    finally:
        signal.signal(signal.SIGALRM, previous_handler)
        resource.setrlimit(resource.RLIMIT_AS, memory)
    return end_counts, faults


@pytest.mark.rare
@pytest.mark.timeout(7200)
def test_random_lines_are_rejected_or_train(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        end_counts, faults = try_random_lines(range(FIRST, FIRST + COUNT), folder)
    print(dict(end_counts))
    assert not faults, f"{len(faults)} of {COUNT}\n\n" + "\n\n".join(faults[:5])
    assert end_counts["trained"] >= COUNT // 40
    assert end_counts["refused"] >= COUNT // 4
