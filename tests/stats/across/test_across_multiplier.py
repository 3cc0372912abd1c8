"""Compute multipliers where the law is known."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.stats.across import Spent, law, multiplier, multipliers
from attnlab.stats.across.multiplier import fitted_floor

COMPUTE = 1e15 * 6.25 ** np.arange(4)
SEEDS = (16, 16, 8, 4)


def loss(compute, floor=1.9, alpha=0.12):
    return floor + 1.2 * (compute / 1e15) ** -alpha


def baseline(sd=0.0, seed=0, floor=1.9):
    draw = np.random.default_rng(seed)
    return [Spent(c, loss(c, floor) + sd * draw.normal(size=n)) for c, n in zip(COMPUTE, SEEDS, strict=True)]


def test_the_law_at_its_own_floor_is_the_law():
    found = law(baseline(), 1.9)
    assert found.alpha == pytest.approx(0.12)
    assert found.at(COMPUTE[0]) == pytest.approx(loss(COMPUTE[0]))
    assert found.at(1e20) == pytest.approx(loss(1e20))


def test_the_law_is_least_squares_of_logarithms_over_all_seeds():
    given = baseline(0.02)
    x = np.concatenate([[np.log(r.compute)] * len(r.losses) for r in given])
    y = np.concatenate([np.log(r.losses - 1.0) for r in given])
    known, found = scipy_stats.linregress(x, y), law(given, 1.0)
    assert (found.alpha, np.log(found.scale)) == pytest.approx((-known.slope, known.intercept))


def test_a_floor_that_the_rungs_tell_is_found_and_one_that_they_do_not_is_none():
    assert fitted_floor(baseline()) == pytest.approx(1.9, abs=1e-3)
    assert fitted_floor(baseline()[:3]) is None, "three rungs"
    assert fitted_floor([Spent(r.compute, [5 - i]) for i, r in enumerate(baseline())]) is None, "a line"


@pytest.mark.parametrize("times", [0.5, 1.0, 1.7])
def test_an_arm_that_is_worth_so_much_compute_is_said_to_be(times):
    arm = Spent(0.98 * COMPUTE[-1], [loss(times * 0.98 * COMPUTE[-1])] * 4)
    assert multiplier(baseline(), arm, 1.9).estimate == pytest.approx(times)
    others = multipliers(baseline(), arm)
    assert others.by_floor["fitted"].estimate == pytest.approx(times, rel=1e-3)
    assert set(others.by_floor) == {"0 %", "25 %", "50 %", "75 %", "fitted"}
    estimates = [each.estimate for each in others.by_floor.values()]
    assert (others.least, others.most) == (min(estimates), max(estimates))


def test_an_arm_that_equals_the_baseline_has_one_at_every_floor_and_no_noise():
    given = baseline(0.02)
    bent = [*given[:-1], Spent(given[-1].compute, np.asarray(given[-1].losses) + 0.05)]  # off the curve
    for each in multipliers(bent, bent[-1]).by_floor.values():
        assert each.estimate == pytest.approx(1.0)
        assert each.interval is None or each.interval == pytest.approx((1.0, 1.0))


def test_ends_are_where_fieller_has_them():
    given, arm = (
        baseline(0.02),
        Spent(COMPUTE[-1], loss(2 * COMPUTE[-1]) + 0.02 * np.array([1.0, -1, 0.3, 0.2])),
    )
    found = multiplier(given, arm, 1.5)
    n = np.array(SEEDS)
    x = np.log(COMPUTE) - n @ np.log(COMPUTE) / n.sum()
    slope = n * x / (n @ x**2)
    for end in found.interval:
        r = np.log(end)
        parts = [r * c * np.log(np.asarray(s.losses) - 1.5) for c, s in zip(slope, given, strict=True)]
        parts[-1] = parts[-1] + np.log(np.asarray(given[-1].losses) - 1.5) - np.log(arm.losses - 1.5)
        shares = np.array([p.var(ddof=1) / p.size for p in parts])
        df = shares.sum() ** 2 / sum(s**2 / (p.size - 1) for s, p in zip(shares, parts, strict=True))
        t = abs(sum(p.mean() for p in parts)) / np.sqrt(shares.sum())
        assert t == pytest.approx(scipy_stats.t.ppf(0.975, df), rel=1e-6)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    held = 0
    for seed in range(150):
        draw = np.random.default_rng(1000 + seed)
        shared = draw.normal(0, 0.01, 4)
        given = baseline(0.01, seed)
        given[-1] = Spent(COMPUTE[-1], loss(COMPUTE[-1]) + shared + draw.normal(0, 0.005, 4))
        arm = Spent(COMPUTE[-1], loss(1.5 * COMPUTE[-1]) + shared + draw.normal(0, 0.005, 4))
        low, high = multiplier(given, arm, 1.9).interval
        held += low <= 1.5 <= high
    assert 0.9 < held / 150 < 0.99


def test_what_has_no_bound_has_no_end():
    arm = Spent(COMPUTE[-1], loss(2 * COMPUTE[-1]) + np.array([0.01, -0.01, 0.0, 0.0]))
    noisy = multiplier(baseline(1.0, seed=3, floor=9.0), arm, 0.0)
    assert noisy is None or None in (noisy.low, noisy.high)
    alone = [Spent(r.compute, r.losses[:1]) for r in baseline(0.01)]
    assert multiplier(alone, Spent(COMPUTE[-1], [2.5]), 0.0).interval is None
    rising = [Spent(c, [2.0 + i, 2.1 + i]) for i, c in enumerate(COMPUTE)]
    assert multiplier(rising, arm, 0.0) is None
    assert multipliers(rising, arm).least is None


@pytest.mark.parametrize(
    ("given", "floor", "said"),
    [
        (baseline(), 2.9, "below every loss"),
        (baseline()[:1], 0.0, "at least 2"),
        ([Spent(-1.0, [2]), Spent(2.0, [1])], 0.0, "positive numbers"),
        ([Spent(2.0, [2]), Spent(2.0, [1])], 0.0, "one per rung"),
        ([Spent(1.0, [2]), Spent(2.0, [])], 0.0, "losses at 2"),
    ],
)
def test_what_is_no_law_is_refused(given, floor, said):
    with pytest.raises(ValueError, match=said):
        law(given, floor)
