import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from attnlab.errors import Refused
from attnlab.store import runs
from attnlab.store.schema import Estimate, RunSpec
from attnlab.sweep.execute import node

CARD = SimpleNamespace(device_kind=lambda config: f"the {config['on']} card")


def test_a_run_is_no_task_of_the_job_that_it_runs_in(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURMISH", "stays")
    node.alone()
    assert "SLURM_NTASKS" not in os.environ
    assert "SLURMISH" in os.environ


FREED = """
import sys
from resource import RUSAGE_SELF, getrusage
from attnlab.sweep.execute import node
if sys.argv[1] == "kept":
    node.keep_memory()
for _ in range(3):
    pieces = [b"x" * (5 << 20) for _ in range(10)]
    del pieces
    before = getrusage(RUSAGE_SELF).ru_minflt
print(before)
pieces = [b"x" * (5 << 20) for _ in range(10)]
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps memory in its own way")
@pytest.mark.parametrize(("how", "few"), [("kept", True), ("as it is", False)])
def test_what_a_step_frees_is_there_for_the_next_one(how, few):
    told = subprocess.run([sys.executable, "-c", FREED, how], capture_output=True, text=True, check=True)
    faults = int(told.stdout.split()[-1])
    assert (faults < 2000) is few, "fifty megabytes are 12,800 pages"


def test_a_run_is_trained_on_the_kind_of_device_that_its_id_stands_for():
    spec = RunSpec(id="a", config={"on": "green"}, estimate=Estimate(device_kind="the green card"))
    node.refuse_other_device(CARD, spec)
    with pytest.raises(Refused, match="planned for the green card, and this machine would train on the red"):
        node.refuse_other_device(CARD, spec.but(config={"on": "red"}))


@pytest.mark.rare
def test_runs_may_be_planned_where_their_device_is_not(attnlab):
    attnlab("heads=two", "+sweep.device=toy card", "sweep.slots=1")
    attnlab("heads=two")
    stored = [path.parent for path in (attnlab.folder / "runs").glob("*/spec.json")]
    kinds = [runs.spec(folder).estimate.device_kind for folder in stored]
    assert sorted(kinds) == ["cpu", "toy card"]  # two runs, for two ids
