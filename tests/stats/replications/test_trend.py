"""The line through a ladder, its band and the held-out size."""

import numpy as np
import pytest
from calibration_ladders import draw_ladders, measure_coverage
from scipy import stats as scipy_stats

from attnlab.stats import estimate_paired_difference
from attnlab.stats.replications.holdout import predict_largest_size
from attnlab.stats.replications.ladder_sample import SizeSample, build_ladder_sample
from attnlab.stats.replications.trend import Trend


def build_sizes(seeds=(16, 16, 8, 4), effect=0.02, slope=0.0, sd=0.01, seed=0):
    rng = np.random.default_rng(seed)
    return [
        SizeSample(15 + 0.8 * i, rng.normal(effect + slope * 0.8 * i, sd, n)) for i, n in enumerate(seeds)
    ]


def estimate_size(sizes, index):
    """The effect at one size by its own seeds."""
    sample = build_ladder_sample(sizes)
    return sample.compute_weighted_sum(sample.select_size_weights(index)).to_estimate()


def solve_normal_equations(sizes, at):
    """The normal equations over seeds, each weighted by one over the smoothed variance of its size."""
    variances = build_ladder_sample(sizes).smoothed_variances
    s = [[0.0, 0.0], [0.0, 0.0]]
    r = [0.0, 0.0]
    for rung, variance in zip(sizes, variances, strict=True):
        for value in rung.differences:
            terms = (1.0, rung.x - at)
            for i in range(2):
                r[i] += terms[i] * value / variance
                for j in range(2):
                    s[i][j] += terms[i] * terms[j] / variance
    return np.linalg.solve(s, r)


def test_line_solves_the_normal_equations_over_seeds():
    sizes = build_sizes(slope=0.01, seeds=(5, 7, 3, 4))
    trend = Trend(sizes)
    assert trend.estimate_slope().estimate == pytest.approx(solve_normal_equations(sizes, 0.0)[1], rel=1e-9)
    for x in (14.0, 15.8, 18.4):
        assert trend.estimate_at(x).estimate == pytest.approx(solve_normal_equations(sizes, x)[0], rel=1e-9)
    assert trend.estimate_change().estimate == pytest.approx(2.4 * trend.estimate_slope().estimate)


def test_equal_spreads_give_ordinary_least_squares():
    values = np.array([-1.0, 0.2, 0.8]) * 0.01
    sizes = [SizeSample(x, values + 0.003 * x**2) for x in (1.0, 2.0, 4.0)]
    seeds = [(rung.x, value) for rung in sizes for value in rung.differences]
    expected = scipy_stats.linregress(*zip(*seeds, strict=True))
    assert Trend(sizes).estimate_slope().estimate == pytest.approx(expected.slope)


def test_single_size_interval_is_welchs_or_wider():
    sizes = build_sizes(seeds=(8, 8, 8, 8), sd=0.01)
    welch = [estimate_paired_difference(rung.differences) for rung in sizes]
    estimates = [estimate_size(sizes, i) for i in range(4)]
    assert [e.estimate for e in estimates] == pytest.approx([p.mean for p in welch])
    halves = [(e.high - e.low, p.high - p.low) for e, p in zip(estimates, welch, strict=True)]
    assert all(own_width >= welch_width - 1e-12 for own_width, welch_width in halves)
    assert any(own_width == pytest.approx(welch_width) for own_width, welch_width in halves), (
        "where its own noise is the larger"
    )


def test_difference_of_two_sizes_has_welchs_degrees_of_freedom():
    rng = np.random.default_rng(1)
    low, high = rng.normal(0, 3, 9), rng.normal(0, 1, 4)
    expected = scipy_stats.ttest_ind(high, low, equal_var=False)
    sample = build_ladder_sample([SizeSample(1, low), SizeSample(2, high)])
    result = sample.compute_weighted_sum(sample.select_size_weights(1) - sample.select_size_weights(0))
    assert float(result.df) == pytest.approx(expected.df)
    assert float(result.se) >= abs(expected.statistic) ** -1 * abs(high.mean() - low.mean()) - 1e-12


def test_noise_that_falls_with_compute_gives_quiet_sizes_more_weight():
    spreads = (0.04, 0.02, 0.01, 0.005)
    rng = np.random.default_rng(2)
    sizes = [SizeSample(i, rng.normal(0, sd, 12)) for i, sd in enumerate(spreads)]
    smoothed = build_ladder_sample(sizes).smoothed_variances
    assert smoothed[0] > 10 * smoothed[3]
    assert (np.diff(smoothed) < 0).all()
    alike = build_ladder_sample(
        [SizeSample(i, rng.normal(0, 0.02, 12)) for i in range(4)]
    ).compute_slope_weights()
    assert (
        abs(build_ladder_sample(sizes).compute_slope_weights()[3])
        > abs(build_ladder_sample(sizes).compute_slope_weights()[0]) * 2
    )
    assert abs(alike[3]) == pytest.approx(abs(alike[0]), rel=0.5)


def test_single_seed_takes_its_noise_from_the_other_sizes():
    sizes = [*build_sizes()[:3], SizeSample(17.4, [0.05])]
    sample = build_ladder_sample(sizes)
    assert np.isnan(sample.variances[3])
    top = estimate_size(sizes, 3)
    assert top.low is not None
    assert (top.high - top.low) / 2 > 1.9 * sample.smoothed_variances[3] ** 0.5
    assert predict_largest_size(sizes).hit is False, "0.05 where the others say 0.02"


def test_ties_at_a_size_take_the_noise_of_the_others():
    tied = [*build_sizes()[:3], SizeSample(17.4, [0.02] * 8)]
    assert np.isnan(build_ladder_sample(tied).variances[3])
    assert estimate_size(tied, 3).low is not None
    nowhere = [SizeSample(x, [0.1 + 0.2, 0.3, 0.3]) for x in (1, 2, 3)]
    assert Trend(nowhere).estimate_slope().interval is None
    assert (predict_largest_size(nowhere).hit, predict_largest_size(nowhere).interval) == (None, None)


def test_trend_does_not_depend_on_the_order_of_sizes():
    sizes = build_sizes(slope=0.01)
    assert Trend(sizes[::-1]).estimate_slope() == Trend(sizes).estimate_slope()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([], "need a flat list"),
        ([SizeSample(1, [0.1]), SizeSample(1, [0.2])], "two ladder sizes at"),
        ([SizeSample(1, [])], "ladder size at 1"),
        ([SizeSample(1, [0.1, float("nan")])], "nan at position 1"),
        ([SizeSample(float("inf"), [0.1])], "inf at position 0"),
        ([SizeSample(1, [0.1, 0.2])], "at least two ladder sizes"),
    ],
)
def test_invalid_ladders_are_rejected(sizes, message):
    with pytest.raises(ValueError, match=message):
        Trend(sizes)


def test_holdout_prediction_uses_the_other_sizes_alone():
    sizes = build_sizes(slope=0.01)
    result = predict_largest_size(sizes)
    assert result.observed == pytest.approx(np.mean(sizes[-1].differences))
    shifted = [SizeSample(r.x, r.differences) for r in sizes]
    shifted[-1] = SizeSample(
        sizes[-1].x, np.array(sizes[-1].differences) + 0.02
    )  # its mean moves, its noise does not
    assert predict_largest_size(shifted).predicted == pytest.approx(result.predicted)
    assert predict_largest_size(shifted).interval == pytest.approx(result.interval)
    assert (result.hit, predict_largest_size(shifted).hit) == (True, False)
    with pytest.raises(ValueError, match="at least two others"):
        predict_largest_size(sizes[:2])


@pytest.mark.parametrize("seeds", [(16, 16, 8, 3), (8, 8, 8, 8)])
@pytest.mark.parametrize("noise", ["normal", "noise falls with size", "noise rises with size"])
def test_intervals_cover_the_truth_where_noise_follows_compute(noise, seeds):
    for name, rate in measure_coverage(noise, seeds, 4000).items():
        assert 0.94 < rate < 0.995, (name, rate)


def test_weights_by_own_spread_would_undercover():
    """The smoothed noise exists for this reason."""
    sample = draw_ladders("normal", "no effect", (16, 16, 8, 3), 1.0, 4000)
    weights = sample.n / sample.variances
    centered_x = sample.x - (weights * sample.x).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)
    result = sample.compute_weighted_sum(
        weights * centered_x / (weights * centered_x**2).sum(-1, keepdims=True)
    )
    se = np.sqrt(1 / (weights * centered_x**2).sum(-1))
    missed = np.abs(result.estimate) > -scipy_stats.t.ppf(0.025, 39) * se
    assert missed.mean() > 0.09
