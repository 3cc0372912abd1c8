"""Compute equivalents, and their product with a ratio of times: coverage of intervals, unbounded ends."""

import math

import numpy as np
import pytest
from scipy import special

from attnlab import stats
from attnlab.stats.paired_tests import compute_ratio_interval


def test_higher_loss_is_equivalent_to_less_compute():
    less = stats.estimate_compute_equivalent(0.0186, (0.0, 0.04), 0.25, (0.24, 0.26))
    assert less.compute_change == pytest.approx(2 ** (-0.0186 / 0.25) - 1)
    assert -0.051 < less.compute_change < -0.049
    assert less.low == 0
    assert less.high < less.compute_change
    more = stats.estimate_compute_equivalent(-0.025, (-0.05, -0.01), 0.25, (0.24, 0.26))
    assert more.compute_change == pytest.approx(2**0.1 - 1)
    assert more.low > more.compute_change > more.high > 0


def test_exact_slope_scales_the_effect_interval():
    low, high = compute_ratio_interval(0.02, (-0.01, 0.05), 0.25, (0.25, 0.25))
    assert (low, high) == pytest.approx((-0.04, 0.2))


@pytest.mark.parametrize(("a", "ends"), [(0.3, (0.1, 0.5)), (-0.3, (-0.5, -0.1)), (0.1, (-0.2, 0.4))])
def test_ratio_interval_ends_satisfy_their_equation(a, ends):
    b, b_ends = 2.0, (1.2, 3.1)
    low, high = compute_ratio_interval(a, ends, b, b_ends)
    for r, own in ((low, a - ends[0]), (high, ends[1] - a)):
        above = (r > 0) == (r == low)  # which way b would have to be off
        off = r * ((b_ends[1] - b) if above else (b - b_ends[0]))
        assert abs(a - r * b) == pytest.approx(math.hypot(own, off))
    assert compute_ratio_interval(-a, (-ends[1], -ends[0]), b, b_ends) == pytest.approx((-high, -low))


def test_unbounded_ends_are_none():
    assert stats.estimate_compute_equivalent(0.1, (0.05, 0.15), 0.2, (-0.1, 0.5)).high is None, (
        "a slope of nothing is possible"
    )
    assert stats.estimate_compute_equivalent(0.1, (0.05, 0.15), 0.2, (-0.1, 0.5)).low is not None
    assert stats.estimate_compute_equivalent(0.1, (-0.05, 0.15), 0.2, (-0.1, 0.5)).low is None
    alone = stats.estimate_compute_equivalent(0.1, None, 0.2, (0.1, 0.3))
    assert (alone.low, alone.high) == (None, None)
    assert alone.compute_change == pytest.approx(2**-0.5 - 1)
    assert stats.estimate_compute_equivalent(0.1, (0.05, math.inf), 0.2, (0.1, 0.3)).high is None
    assert stats.estimate_compute_equivalent(0.1, (0.05, 5.0), 0.2, (0.1, 0.3)).high is None, (
        "more than ten doublings"
    )
    assert stats.estimate_compute_equivalent(0.1, (0.05, 0.15), -0.2, (-0.3, -0.1)) is None
    assert stats.estimate_compute_equivalent(math.inf, None, 0.2, (0.1, 0.3)) is None


@pytest.mark.parametrize("true", [0.0, 0.5, -0.5])
@pytest.mark.parametrize("n", [3, 8])
def test_ratio_interval_has_nominal_coverage(n, true):
    """Normal noise; the slope from three seeds, as `compute_calibration` has them, the effect from n."""
    rng, rounds, slope = np.random.default_rng(n), 4000, 0.25

    def draw_estimates(mean, size, sd):
        draws = rng.normal(mean, sd, (rounds, size))
        half = special.stdtrit(size - 1, 0.975) * draws.std(axis=1, ddof=1) / math.sqrt(size)
        return [(m, (m - h, m + h)) for m, h in zip(draws.mean(axis=1), half, strict=True)]

    inside = 0
    for (a, a_ends), (b, b_ends) in zip(
        draw_estimates(true * slope, n, 0.03), draw_estimates(slope, 3, 0.01), strict=True
    ):
        low, high = compute_ratio_interval(a, a_ends, b, b_ends)
        inside += (low is None or low <= true) and (high is None or true <= high)
    assert 0.94 < inside / rounds < 0.985
