"""The rule that puts a host in quarantine, and the runs that it takes back, with made-up results."""

import pytest
from stored_runs import make_spec

from attnlab.store import run_directories
from attnlab.store.run_schema import RunResult, Use
from attnlab.sweep.execute.quarantine import MAX_FAULTS, HostFaults


@pytest.fixture
def runs(tmp_path):
    """Stored runs of two arms, in turn, by their directory."""
    specs = [make_spec({"seed": n}, use=Use(arm="ab"[n % 2])) for n in range(6)]
    for spec in specs:
        run_directories.write_run_config(tmp_path, spec)
    return {tmp_path / spec.id: spec for spec in specs}


def fail(faults, folder, spec):
    run_directories.write_failure(folder, "crashed", "no device", 1.0)
    faults.add_result(spec, folder, run_directories.load_run_result(folder), 1.0)


def test_failures_of_two_arms_in_a_row_are_those_of_the_host(runs):
    faults = HostFaults()
    for folder, spec in [*runs.items()][:MAX_FAULTS]:
        assert faults.explain_quarantine(runs) is None
        fail(faults, folder, spec)
    assert faults.explain_quarantine(runs).endswith("failed on this host, the last with: no device")
    faults.record_lost_runs("node7")
    results = [run_directories.load_run_result(folder) for folder in [*runs][:MAX_FAULTS]]
    assert [(result.status, result.failure.message) for result in results] == [
        ("killed", "node7 is in quarantine; the run failed there: no device")
    ] * MAX_FAULTS


@pytest.mark.parametrize("is_tuned", [False, True])
def test_failures_of_one_arm_among_several_count_for_nothing(runs, is_tuned):
    if is_tuned:
        runs = {
            folder: spec.with_provenance(arm=f"{spec.arm} lr={spec.seed}", base_arm=spec.arm)
            for folder, spec in runs.items()
        }
    faults = HostFaults()
    for folder, spec in [*runs.items()][::2]:
        fail(faults, folder, spec)
    assert faults.explain_quarantine(runs) is None
    assert faults.explain_quarantine(dict([*runs.items()][::2])) is not None, "where it is the only arm"


def test_failures_after_the_first_step_count_for_nothing(runs):
    faults = HostFaults()
    for folder, spec in runs.items():
        (folder / "progress.json").write_text('{"step": 1, "time": 2.0}')
        fail(faults, folder, spec)
    assert faults.explain_quarantine(runs) is None


def test_failures_of_runs_that_succeed_elsewhere_are_those_of_the_host(runs):
    faults = HostFaults()
    for folder, spec in [*runs.items()][:MAX_FAULTS]:
        (folder / "progress.json").write_text('{"step": 1, "time": 2.0}')
        fail(faults, folder, spec)
        assert faults.explain_quarantine(runs) is None
    for folder, spec in [*runs.items()][:MAX_FAULTS]:
        done = RunResult(
            id=spec.id, status="done", seed=spec.seed, config=spec.config, metrics={"val/loss": 1.0}
        )
        run_directories.write_run_result(folder, done)
    assert faults.explain_quarantine(runs) is not None
    faults.record_lost_runs("node7")
    assert all(run_directories.is_done(folder) for folder in [*runs][:MAX_FAULTS])
