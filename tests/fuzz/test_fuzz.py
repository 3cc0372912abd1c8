"""What passes planning does not crash on its own config: command lines drawn by lot are each refused in one
line, or trained for two steps.
"""

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
from drawn import lines, loader
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException
from sampling import FULL

from attnlab.cli.hydra_errors import one_line
from attnlab.errors import Refused
from attnlab.store import runs
from attnlab.store.schema import Estimate, RunSpec
from attnlab.sweep import engine
from attnlab.sweep.execute import submit
from attnlab.sweep.plan import checks
from attnlab.sweep.plan.composer import Composer
from attnlab.sweep.plan.plan import plan
from attnlab.training import run

torch.set_num_threads(1)
COUNT = int(os.environ.get("FUZZ", "100" if FULL else "60"))
FIRST = int(os.environ.get("FUZZ_FROM", "0"))
SECONDS = 60
MEMORY = 12 * 2**30
WORDS = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 40


class Asked:
    """What the checking process answers, in this one."""

    @staticmethod
    def check(config: dict[str, Any]) -> Estimate:
        kind, answer = checks._answer("attnlab.training.run", "check", config)
        if kind == "refused":
            raise Refused(answer)
        if kind == "bug":
            raise AssertionError(answer)
        return Estimate.model_validate(answer)

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


def planned(line: list[str]) -> list[RunSpec]:
    """The runs of a command line, as a sweep plans them."""
    master = loader().load_configuration("config", line, RunMode.MULTIRUN)
    HydraConfig.instance().set_config(master)
    engine.refuse_values(master)
    return [run for each in plan(line, Composer(loader(), master), Asked()) for run in each.runs]


def tried(line: list[str], folder: Path) -> str:
    """How a command line ends: `refused: ...`, `trained` or `diverged`. Any other exception is a fault."""
    try:
        (spec,) = planned(line)
        submit.refuse_unknown_parents([spec], folder / "runs")
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        hydras = isinstance(error, HydraException | OmegaConfBaseException)
        refusal = one_line(error, []) if hydras else str(error)
    else:
        return trained(spec, folder)
    assert refusal.strip(), "refused without a word"
    assert "\n" not in refusal.strip(), f"refused in several lines: {refusal!r}"
    assert len(refusal) < 1500, f"a line of {len(refusal)} characters: {refusal[:300]}"
    return f"refused: {refusal}"


def trained(spec: RunSpec, folder: Path) -> str:
    """Two steps of a planned run: `trained` or `diverged`."""
    config = spec.config
    trainer = {**config["trainer"], "max_steps": min(2, config["trainer"]["max_steps"]), "strategy": "auto"}
    trainer["accumulate_grad_batches"] = min(3, trainer["accumulate_grad_batches"])
    trainer["devices"] = 1  # other ranks are started by a worker
    trainer.pop("benchmark", None)
    changed = {
        "trainer": trainer,
        "logger": {**config["logger"], "mode": "disabled", "workspace": False},
        "optim": {**config["optim"], "compile": False},
        "data": {**config["data"], **({"num_workers": 0} if config["data"].get("num_workers") else {})},
    }
    spec = spec.but(config={**config, **changed})
    runs.write_spec(folder / "runs", spec)
    try:
        run.run(folder / "runs" / spec.id)
    except FloatingPointError:
        return "diverged"
    assert runs.is_done(folder / "runs" / spec.id), runs.fault(folder / "runs" / spec.id)
    return "trained"


def sweep(numbers: range, folder: Path) -> tuple[collections.Counter[str], list[str]]:
    """How often the drawn lines ended how, and the faults with what led to them."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"not done within {SECONDS} s")

    ends, faults = collections.Counter[str](), list[str]()
    before = signal.signal(signal.SIGALRM, too_long)
    memory = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, memory[1]))  # what is too large fails, and kills nothing
    try:
        for number in numbers:
            line = lines(number, folder)
            signal.alarm(SECONDS)
            try:
                end = tried(line, folder)
            except (Exception, SystemExit) as error:
                end = "fault"
                told = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
                faults.append(f"{number}: {' '.join(line)}\n{told[-3000:]}")
                if out := os.environ.get("FUZZ_OUT"):
                    with open(out, "a") as file:
                        print("#####", faults[-1], file=file, flush=True)
            finally:
                signal.alarm(0)
                torch.use_deterministic_algorithms(False)
            ends[end.partition(":")[0]] += 1
            if end.startswith("refused") and (out := os.environ.get("FUZZ_REFUSED")):
                with open(out, "a") as file:
                    print(number, line[-3:], end, file=file, flush=True)
    finally:
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, memory)
    return ends, faults


@pytest.mark.rare
@pytest.mark.timeout(7200)
def test_what_passes_planning_does_not_crash_on_its_own_config(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ends, faults = sweep(range(FIRST, FIRST + COUNT), folder)
    print(dict(ends))
    assert not faults, f"{len(faults)} of {COUNT}\n\n" + "\n\n".join(faults[:5])
    assert ends["trained"] >= COUNT // 40
    assert ends["refused"] >= COUNT // 4
