"""The line through a ladder, its band and the held-out rung."""

import numpy as np
import pytest
from calibration_ladders import covered, drawn
from scipy import stats as scipy_stats

from attnlab.stats import paired
from attnlab.stats.across import Rung, Trend, holdout
from attnlab.stats.across.rungs import ladder


def rungs(seeds=(16, 16, 8, 4), effect=0.02, slope=0.0, sd=0.01, seed=0):
    draw = np.random.default_rng(seed)
    return [Rung(15 + 0.8 * i, draw.normal(effect + slope * 0.8 * i, sd, n)) for i, n in enumerate(seeds)]


def by_loops(given, at):
    """The normal equations over seeds, each weighted by one over the smooth variance of its rung."""
    smooth = ladder(given).smooth
    s = [[0.0, 0.0], [0.0, 0.0]]
    r = [0.0, 0.0]
    for rung, variance in zip(given, smooth, strict=True):
        for value in rung.differences:
            terms = (1.0, rung.x - at)
            for i in range(2):
                r[i] += terms[i] * value / variance
                for j in range(2):
                    s[i][j] += terms[i] * terms[j] / variance
    return np.linalg.solve(s, r)


def test_the_line_solves_the_normal_equations_over_seeds():
    given = rungs(slope=0.01, seeds=(5, 7, 3, 4))
    trend = Trend(given)
    assert trend.slope().estimate == pytest.approx(by_loops(given, 0.0)[1], rel=1e-9)
    for x in (14.0, 15.8, 18.4):
        assert trend.at(x).estimate == pytest.approx(by_loops(given, x)[0], rel=1e-9)
    assert trend.change().estimate == pytest.approx(2.4 * trend.slope().estimate)
    assert trend.ahead() == trend.at(given[-1].x + 1)


def test_a_smooth_noise_of_equal_spreads_makes_it_least_squares():
    values = np.array([-1.0, 0.2, 0.8]) * 0.01
    given = [Rung(x, values + 0.003 * x**2) for x in (1.0, 2.0, 4.0)]
    seeds = [(rung.x, value) for rung in given for value in rung.differences]
    known = scipy_stats.linregress(*zip(*seeds, strict=True))
    assert Trend(given).slope().estimate == pytest.approx(known.slope)


def test_a_rung_by_itself_is_welchs_and_not_narrower_than_the_smooth_noise():
    given = rungs(seeds=(8, 8, 8, 8), sd=0.01)
    own = [paired(rung.differences) for rung in given]
    seen = [Trend(given).rung(i) for i in range(4)]
    assert [e.estimate for e in seen] == pytest.approx([p.mean for p in own])
    halves = [(e.high - e.low, p.high - p.low) for e, p in zip(seen, own, strict=True)]
    assert all(ours >= theirs - 1e-12 for ours, theirs in halves)
    assert any(ours == pytest.approx(theirs) for ours, theirs in halves), "where its own noise is the larger"


def test_the_difference_of_two_rungs_has_welchs_degrees_of_freedom():
    draw = np.random.default_rng(1)
    low, high = draw.normal(0, 3, 9), draw.normal(0, 1, 4)
    known = scipy_stats.ttest_ind(high, low, equal_var=False)
    held = ladder([Rung(1, low), Rung(2, high)])
    seen = held.sums(held.only(1) - held.only(0))
    assert float(seen.df) == pytest.approx(known.df)
    assert float(seen.se) >= abs(known.statistic) ** -1 * abs(high.mean() - low.mean()) - 1e-12


def test_noise_that_falls_with_compute_gives_the_quiet_rungs_their_weight():
    spreads = (0.04, 0.02, 0.01, 0.005)
    draw = np.random.default_rng(2)
    given = [Rung(i, draw.normal(0, sd, 12)) for i, sd in enumerate(spreads)]
    smooth = ladder(given).smooth
    assert smooth[0] > 10 * smooth[3]
    assert (np.diff(smooth) < 0).all()
    alike = ladder([Rung(i, draw.normal(0, 0.02, 12)) for i in range(4)]).slope()
    assert abs(ladder(given).slope()[3]) > abs(ladder(given).slope()[0]) * 2
    assert abs(alike[3]) == pytest.approx(abs(alike[0]), rel=0.5)


def test_one_seed_at_a_rung_takes_its_noise_from_the_others():
    given = [*rungs()[:3], Rung(17.4, [0.05])]
    held = ladder(given)
    assert np.isnan(held.variances[3])
    top = Trend(given).rung(3)
    assert top.low is not None
    assert (top.high - top.low) / 2 > 1.9 * held.smooth[3] ** 0.5
    assert holdout(given).hit is False, "0.05 where the others say 0.02"


def test_ties_prove_nothing_at_a_rung_and_everywhere():
    tied = [*rungs()[:3], Rung(17.4, [0.02] * 8)]
    assert np.isnan(ladder(tied).variances[3])
    assert Trend(tied).rung(3).low is not None
    nowhere = [Rung(x, [0.1 + 0.2, 0.3, 0.3]) for x in (1, 2, 3)]
    assert Trend(nowhere).slope().interval is None
    assert (holdout(nowhere).hit, holdout(nowhere).df) == (None, None)


def test_rungs_may_come_in_any_order():
    given = rungs(slope=0.01)
    assert Trend(given[::-1]).slope() == Trend(given).slope()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "need a flat list"),
        ([Rung(1, [0.1]), Rung(1, [0.2])], "two rungs at"),
        ([Rung(1, [])], "rung at 1"),
        ([Rung(1, [0.1, float("nan")])], "nan at position 1"),
        ([Rung(float("inf"), [0.1])], "inf at position 0"),
        ([Rung(1, [0.1, 0.2])], "at least two rungs"),
    ],
)
def test_what_is_no_ladder_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        Trend(given)


def test_the_held_out_rung_is_what_the_others_say_of_it():
    given = rungs(slope=0.01)
    seen = holdout(given)
    assert seen.observed == pytest.approx(np.mean(given[-1].differences))
    others = [Rung(r.x, r.differences) for r in given]
    others[-1] = Rung(
        given[-1].x, np.array(given[-1].differences) + 0.02
    )  # its mean moves, its noise does not
    assert holdout(others).predicted == pytest.approx(seen.predicted)
    assert holdout(others).interval == pytest.approx(seen.interval)
    assert (seen.hit, holdout(others).hit) == (True, False)
    with pytest.raises(ValueError, match="at least two others"):
        holdout(given[:2])


@pytest.mark.parametrize("seeds", [(16, 16, 8, 3), (8, 8, 8, 8)])
@pytest.mark.parametrize("noise", ["normal", "quieter upwards", "louder upwards"])
def test_intervals_hold_the_truth_where_noise_follows_compute(noise, seeds):
    for name, rate in covered(noise, seeds, 4000).items():
        assert 0.94 < rate < 0.995, (name, rate)


def test_weights_by_each_rungs_own_spread_would_miss_more_often():
    """What the smooth noise is for."""
    held = drawn("normal", "no effect", (16, 16, 8, 3), 1.0, 4000)
    weights = held.n / held.variances
    around = held.x - (weights * held.x).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)
    seen = held.sums(weights * around / (weights * around**2).sum(-1, keepdims=True))
    own = np.sqrt(1 / (weights * around**2).sum(-1))
    missed = np.abs(seen.estimate) > -scipy_stats.t.ppf(0.025, 39) * own
    assert missed.mean() > 0.09
