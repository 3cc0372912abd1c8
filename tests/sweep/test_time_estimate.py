"""Time estimates by seconds per FLOP of the arm, the run with the nearest FLOPs, or the first steps."""

import pytest

from attnlab.sweep.execute.time_estimate import TimeEstimate

STEPS = {"step": 11, "max_steps": 100, "timed_steps": 10, "timed_seconds": 5.0}


def test_estimate_is_none_before_any_finished_run_or_timed_step():
    estimate = TimeEstimate()
    assert estimate.estimate_seconds("a", 1e9) is None
    estimate.add_timed_steps(
        "run", 1e9, {"step": 1, "max_steps": 100, "timed_steps": 0, "timed_seconds": 0.0}
    )
    estimate.add_timed_steps("run", 1e9, {"step": 7, "max_steps": 100})  # a trainer that times no steps
    assert estimate.estimate_seconds("a", 1e9) is None


def test_timed_steps_of_running_runs_give_the_speed():
    estimate = TimeEstimate()
    estimate.add_timed_steps("run", 1e9, STEPS)
    assert estimate.estimate_seconds("a", 1e9) == pytest.approx(50.0)
    assert estimate.estimate_seconds("b", 3e9) == pytest.approx(150.0)
    estimate.add_timed_steps("run", 1e9, STEPS | {"timed_steps": 20, "timed_seconds": 20.0})
    assert estimate.estimate_seconds("a", 1e9) == pytest.approx(100.0), "the latest steps of a run count"


def test_finished_runs_precede_timed_steps_and_the_arms_own_precede_others():
    estimate = TimeEstimate()
    estimate.add_timed_steps("run", 1e9, STEPS)
    estimate.add_finished_run(None, 1e9, 8.0)
    estimate.add_finished_run("b", 1e12, 400.0)
    assert estimate.estimate_seconds("a", 2e9) == pytest.approx(16.0), "of the run with the nearest FLOPs"
    assert not estimate.has_finished_runs("a")
    estimate.add_finished_run("a", 1e8, 3.0)
    estimate.add_finished_run("a", 3e8, 5.0)
    assert estimate.estimate_seconds("a", 2e9) == pytest.approx(40.0)
    assert estimate.has_finished_runs("a")


def test_runs_without_a_flop_count_are_estimated_from_such_runs_alone():
    estimate = TimeEstimate()
    estimate.add_finished_run("a", 1e9, 8.0)
    assert estimate.estimate_seconds("measurement", 0.0) is None
    estimate.add_finished_run("other", 0.0, 3.0)
    assert estimate.estimate_seconds("measurement", 0.0) == pytest.approx(3.0)
    assert estimate.estimate_seconds("b", 2e9) == pytest.approx(16.0)
