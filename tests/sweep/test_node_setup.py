"""Set-up of a worker process on its node."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from attnlab.errors import InvalidConfig
from attnlab.store import run_directories
from attnlab.store.run_schema import RunConfig, RunEstimate
from attnlab.sweep.execute import node_setup

TRAINER = SimpleNamespace(device_kind=lambda config: f"the {config['on']} card")


def test_slurm_variables_are_hidden_from_a_run(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURMISH", "stays")
    node_setup.hide_slurm_environment()
    assert "SLURM_NTASKS" not in os.environ
    assert "SLURMISH" in os.environ


FAULT_COUNTER = """
import sys
from resource import RUSAGE_SELF, getrusage
from attnlab.sweep.execute import node_setup
if sys.argv[1] == "kept":
    node_setup.retain_freed_memory()
for _ in range(3):
    pieces = [b"x" * (5 << 20) for _ in range(10)]
    del pieces
    before = getrusage(RUSAGE_SELF).ru_minflt
print(before)
pieces = [b"x" * (5 << 20) for _ in range(10)]
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's mallopt")
@pytest.mark.parametrize(("mode", "few"), [("kept", True), ("as it is", False)])
def test_freed_memory_is_retained_for_the_next_step(mode, few):
    result = subprocess.run(
        [sys.executable, "-c", FAULT_COUNTER, mode], capture_output=True, text=True, check=True
    )
    faults = int(result.stdout.split()[-1])
    assert (faults < 2000) is few, "fifty megabytes are 12,800 pages"


def test_run_planned_for_another_device_kind_is_rejected():
    spec = RunConfig(id="a", config={"on": "green"}, estimate=RunEstimate(device_kind="the green card"))
    node_setup.validate_device_kind(TRAINER, spec)
    with pytest.raises(InvalidConfig, match="planned for the green card, but this machine trains on the red"):
        node_setup.validate_device_kind(TRAINER, spec.with_changes(config={"on": "red"}))


@pytest.mark.rare
def test_runs_can_be_planned_for_an_absent_device(attnlab):
    attnlab("heads=two", "+sweep.device=toy card", "sweep.slots=1")
    attnlab("heads=two")
    folders = [path.parent for path in (attnlab.folder / "runs").glob("*/spec.json")]
    kinds = [run_directories.load_run_config(folder).estimate.device_kind for folder in folders]
    assert sorted(kinds) == ["cpu", "toy card"]  # two runs with different ids
