"""Time estimates: a fixed part, and step times bounded by the runs with the nearest FLOPs per step."""

import math

import pytest

from attnlab.sweep.execute.time_estimate import TimeEstimate

STEPS = {"step": 11, "max_steps": 100, "timed_steps": 10, "timed_seconds": 5.0}
# FLOPs, seconds, steps and seconds of a step, as measured on two CPU cores
DEBUG = (1.36e7, 2.3, 4, 0.032)
MINI = (1.8e10, 3.3, 80, 0.024)
SMALL = (3.0e11, 10.3, 400, 0.0225)


def test_estimate_is_none_before_any_finished_run_or_timed_step():
    estimate = TimeEstimate()
    assert estimate.estimate_seconds("a", 1e9) is None
    estimate.add_timed_steps(
        "run", "a", 1e9, {"step": 1, "max_steps": 100, "timed_steps": 0, "timed_seconds": 0.0}
    )
    estimate.add_timed_steps("run", "a", 1e9, {"step": 7, "max_steps": 100})  # a trainer that times no steps
    assert estimate.estimate_seconds("a", 1e9) is None


def test_timed_steps_of_running_runs_give_the_speed():
    estimate = TimeEstimate()
    estimate.add_timed_steps("run", "a", 1e9, STEPS)
    assert estimate.estimate_seconds("a", 1e9, 100) == pytest.approx(50.0)
    assert estimate.estimate_seconds("b", 3e9, 300) == pytest.approx(150.0)
    estimate.add_timed_steps("run", "a", 1e9, STEPS | {"timed_steps": 20, "timed_seconds": 20.0})
    assert estimate.estimate_seconds("a", 1e9, 100) == pytest.approx(100.0), "the latest steps of a run count"


def test_start_up_is_not_scaled_with_the_steps():
    estimate = TimeEstimate()
    estimate.add_finished_run("a", 4e9, 3.0, 4, 0.25)
    assert estimate.estimate_seconds("a", 4e11, 400) == pytest.approx(2.0 + 400 * 0.25)


def test_a_start_up_run_is_no_evidence_for_a_larger_size():
    estimate = TimeEstimate()
    estimate.add_finished_run("debug", *DEBUG)
    assert estimate.estimate_seconds("mini", MINI[0], MINI[2]) is None
    assert estimate.estimate_seconds("S", SMALL[0], SMALL[2]) is None


@pytest.mark.parametrize("known", [(MINI,), (SMALL,), (DEBUG, MINI), (DEBUG, SMALL), (DEBUG, MINI, SMALL)])
@pytest.mark.parametrize("target", [MINI, SMALL])
def test_estimates_from_mixed_sizes_are_within_a_factor_of_three(known, target):
    estimate = TimeEstimate()
    for run in known:
        estimate.add_finished_run("known", *run)
    seconds = estimate.estimate_seconds("new", target[0], target[2])
    assert seconds is not None
    assert 1 / 3 < seconds / target[1] < 3


def test_arms_own_runs_precede_others():
    estimate = TimeEstimate()
    estimate.add_finished_run(None, 1e9, 8.0, 10, 0.8)
    estimate.add_finished_run("b", 4e9, 16.0, 10, 1.6)
    assert estimate.estimate_seconds("a", 2e9, 10) == pytest.approx(math.sqrt(8.0 * 16.0)), "between the two"
    assert not estimate.has_finished_runs("a")
    estimate.add_finished_run("a", 2e9, 3.0, 10, 0.3)
    estimate.add_finished_run("a", 2e9, 5.0, 10, 0.5)
    assert estimate.estimate_seconds("a", 2e9, 10) == pytest.approx(3.0), "the lower median"
    assert estimate.has_finished_runs("a")
    estimate.add_timed_steps("run", "a", 2e9, {"max_steps": 10, "timed_steps": 1, "timed_seconds": 0.1})
    assert estimate.estimate_seconds("a", 2e9, 10) == pytest.approx(3.0), "a running run is a fallback"


def test_runs_without_timed_steps_are_scaled_as_a_whole():
    estimate = TimeEstimate()
    estimate.add_finished_run("b", 1e9, 8.0)
    assert estimate.estimate_seconds("a", 4e9, 10) == pytest.approx(16.0), "between 8 and 32"
    assert estimate.estimate_seconds("a", 1e11, 10) is None


def test_runs_without_a_flop_count_are_estimated_from_such_runs_alone():
    estimate = TimeEstimate()
    estimate.add_finished_run("a", 1e9, 8.0)
    assert estimate.estimate_seconds("measurement", 0.0) is None
    estimate.add_finished_run("other", 0.0, 3.0)
    assert estimate.estimate_seconds("measurement", 0.0) == pytest.approx(3.0)
    assert estimate.estimate_seconds("b", 1e9) == pytest.approx(8.0)
