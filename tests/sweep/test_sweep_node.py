import os
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
