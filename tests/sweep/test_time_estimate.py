"""Seconds per FLOP: of the arm, else of the run with the nearest FLOPs, else of the first training steps."""

import pytest

from attnlab.sweep.execute.time_estimate import TimeEstimate

STEPS = {"step": 11, "max_steps": 100, "timed_steps": 10, "timed_seconds": 5.0}


def test_nothing_is_known_before_a_run_has_finished_or_taken_steps():
    time = TimeEstimate()
    assert time.seconds("a", 1e9) is None
    time.add_steps("run", 1e9, {"step": 1, "max_steps": 100, "timed_steps": 0, "timed_seconds": 0.0})
    time.add_steps("run", 1e9, {"step": 7, "max_steps": 100})  # a trainer that times no steps
    assert time.seconds("a", 1e9) is None


def test_the_first_steps_of_running_runs_tell_the_speed():
    time = TimeEstimate()
    time.add_steps("run", 1e9, STEPS)
    assert time.seconds("a", 1e9) == pytest.approx(50.0)
    assert time.seconds("b", 3e9) == pytest.approx(150.0)
    time.add_steps("run", 1e9, STEPS | {"timed_steps": 20, "timed_seconds": 20.0})
    assert time.seconds("a", 1e9) == pytest.approx(100.0), "the latest steps of a run count"


def test_finished_runs_come_before_steps_and_those_of_the_arm_before_others():
    time = TimeEstimate()
    time.add_steps("run", 1e9, STEPS)
    time.add_finished(None, 1e9, 8.0)
    time.add_finished("b", 1e12, 400.0)
    assert time.seconds("a", 2e9) == pytest.approx(16.0), "of the run with the nearest FLOPs"
    assert not time.knows_arm("a")
    time.add_finished("a", 1e8, 3.0)
    time.add_finished("a", 3e8, 5.0)
    assert time.seconds("a", 2e9) == pytest.approx(40.0)
    assert time.knows_arm("a")


def test_runs_without_counted_flops_are_estimated_from_such_runs_alone():
    time = TimeEstimate()
    time.add_finished("a", 1e9, 8.0)
    assert time.seconds("measurement", 0.0) is None
    time.add_finished("other", 0.0, 3.0)
    assert time.seconds("measurement", 0.0) == pytest.approx(3.0)
    assert time.seconds("b", 2e9) == pytest.approx(16.0)
