"""Learning-rate schedules: values by hand, and what runs of several budgets share."""

import math

import pytest

from attnlab.training.optim.schedules import Cosine, Linear, WarmupStableDecay


def compute_factors(schedule, max_steps, warmup=2, floor=0.1):
    return [
        schedule.compute_factor(step, warmup=warmup, max_steps=max_steps, floor=floor)
        for step in range(max_steps)
    ]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Linear(), [1 / 3, 2 / 3, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1]),
        (
            Cosine(),
            [1 / 3, 2 / 3, *(0.1 + 0.45 * (1 + math.cos(math.pi * step / 6)) for step in range(7))],
        ),
        # a third of nine steps decay: steps 6 to 8; step 5 is the last at the peak
        (WarmupStableDecay(1 / 3), [1 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0, 0.7, 0.4, 0.1]),
        (WarmupStableDecay(1.0), [1 / 3, 2 / 3, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1]),
    ],
)
def test_factors_by_hand(schedule, expected):
    assert compute_factors(schedule, 9) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", [Cosine(), Linear(), WarmupStableDecay(0.2), WarmupStableDecay(0.9)])
@pytest.mark.parametrize(("small", "large"), [(10, 20), (7, 50), (3, 4)])
def test_steps_up_to_the_decay_do_not_depend_on_the_budget(schedule, small, large):
    shared = schedule.find_decay_start(2, small)
    assert shared <= schedule.find_decay_start(2, large)
    factors, longer = (compute_factors(schedule, steps) for steps in (small, large))
    assert factors[:shared] == longer[:shared]
    assert factors[shared : shared + 1] == longer[shared : shared + 1], "the rate that a checkpoint holds"


def test_stable_steps_are_most_of_a_budget():
    assert WarmupStableDecay(0.2).find_decay_start(20, 1000) == 799
    assert Cosine().find_decay_start(20, 1000) == 20


@pytest.mark.parametrize("decay", [0.0, -0.1, 1.5])
def test_a_fraction_out_of_range_is_rejected(decay):
    with pytest.raises(ValueError, match=rf"optim.schedule.decay={decay}: give a fraction above 0"):
        WarmupStableDecay(decay)
