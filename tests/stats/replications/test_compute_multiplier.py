"""Compute multipliers where the scaling law is known."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.stats.replications.compute_multiplier import (
    SizeLosses,
    estimate_multiplier,
    estimate_multiplier_range,
    fit_alpha,
    fit_loss_floor,
)

COMPUTE = 1e15 * 6.25 ** np.arange(4)
SEEDS = (16, 16, 8, 4)


def compute_loss(compute, floor=1.9, alpha=0.12):
    return floor + 1.2 * (compute / 1e15) ** -alpha


def build_baseline(sd=0.0, seed=0, floor=1.9):
    rng = np.random.default_rng(seed)
    return [
        SizeLosses(c, compute_loss(c, floor) + sd * rng.normal(size=n))
        for c, n in zip(COMPUTE, SEEDS, strict=True)
    ]


def test_fit_at_the_true_floor_recovers_alpha():
    assert fit_alpha(build_baseline(), 1.9) == pytest.approx(0.12)


def test_alpha_is_the_least_squares_fit_of_logarithms():
    sizes = build_baseline(0.02)
    x = np.concatenate([[np.log(r.compute)] * len(r.losses) for r in sizes])
    y = np.concatenate([np.log(r.losses - 1.0) for r in sizes])
    assert fit_alpha(sizes, 1.0) == pytest.approx(-scipy_stats.linregress(x, y).slope)


def test_floor_is_fitted_only_where_identified():
    assert fit_loss_floor(build_baseline()) == pytest.approx(1.9, abs=1e-3)
    assert fit_loss_floor(build_baseline()[:3]) is None, "three rungs"
    assert fit_loss_floor([SizeLosses(r.compute, [5 - i]) for i, r in enumerate(build_baseline())]) is None, (
        "a line"
    )


@pytest.mark.parametrize("times", [0.5, 1.0, 1.7])
def test_multiplier_recovers_the_true_compute_ratio(times):
    arm = SizeLosses(0.98 * COMPUTE[-1], [compute_loss(times * 0.98 * COMPUTE[-1])] * 4)
    assert estimate_multiplier(build_baseline(), arm, 1.9).estimate == pytest.approx(times)
    by_floor = estimate_multiplier_range(build_baseline(), arm)
    assert by_floor.by_floor["fitted"].estimate == pytest.approx(times, rel=1e-3)
    assert set(by_floor.by_floor) == {"0 %", "25 %", "50 %", "75 %", "fitted"}
    estimates = [each.estimate for each in by_floor.by_floor.values()]
    assert (by_floor.lowest, by_floor.highest) == (min(estimates), max(estimates))


def test_arm_equal_to_the_baseline_has_multiplier_one_at_every_floor():
    sizes = build_baseline(0.02)
    shifted = [
        *sizes[:-1],
        SizeLosses(sizes[-1].compute, np.asarray(sizes[-1].losses) + 0.05),
    ]  # off the curve
    for each in estimate_multiplier_range(shifted, shifted[-1]).by_floor.values():
        assert each.estimate == pytest.approx(1.0)
        assert each.interval is None or each.interval == pytest.approx((1.0, 1.0))


def test_interval_ends_equal_fiellers():
    sizes, arm = (
        build_baseline(0.02),
        SizeLosses(COMPUTE[-1], compute_loss(2 * COMPUTE[-1]) + 0.02 * np.array([1.0, -1, 0.3, 0.2])),
    )
    result = estimate_multiplier(sizes, arm, 1.5)
    n = np.array(SEEDS)
    x = np.log(COMPUTE) - n @ np.log(COMPUTE) / n.sum()
    slope = n * x / (n @ x**2)
    for end in result.interval:
        r = np.log(end)
        parts = [r * c * np.log(np.asarray(s.losses) - 1.5) for c, s in zip(slope, sizes, strict=True)]
        parts[-1] = parts[-1] + np.log(np.asarray(sizes[-1].losses) - 1.5) - np.log(arm.losses - 1.5)
        shares = np.array([p.var(ddof=1) / p.size for p in parts])
        df = shares.sum() ** 2 / sum(s**2 / (p.size - 1) for s, p in zip(shares, parts, strict=True))
        t = abs(sum(p.mean() for p in parts)) / np.sqrt(shares.sum())
        assert t == pytest.approx(scipy_stats.t.ppf(0.975, df), rel=1e-6)


def test_multiplier_interval_has_nominal_coverage():
    covered = 0
    for seed in range(150):
        rng = np.random.default_rng(1000 + seed)
        shared = rng.normal(0, 0.01, 4)
        sizes = build_baseline(0.01, seed)
        sizes[-1] = SizeLosses(COMPUTE[-1], compute_loss(COMPUTE[-1]) + shared + rng.normal(0, 0.005, 4))
        arm = SizeLosses(COMPUTE[-1], compute_loss(1.5 * COMPUTE[-1]) + shared + rng.normal(0, 0.005, 4))
        low, high = estimate_multiplier(sizes, arm, 1.9).interval
        covered += low <= 1.5 <= high
    assert 0.9 < covered / 150 < 0.99


def test_unbounded_multiplier_has_no_interval_end():
    arm = SizeLosses(COMPUTE[-1], compute_loss(2 * COMPUTE[-1]) + np.array([0.01, -0.01, 0.0, 0.0]))
    noisy = estimate_multiplier(build_baseline(1.0, seed=3, floor=9.0), arm, 0.0)
    assert noisy is None or None in (noisy.low, noisy.high)
    alone = [SizeLosses(r.compute, r.losses[:1]) for r in build_baseline(0.01)]
    assert estimate_multiplier(alone, SizeLosses(COMPUTE[-1], [2.5]), 0.0).interval is None
    rising = [SizeLosses(c, [2.0 + i, 2.1 + i]) for i, c in enumerate(COMPUTE)]
    assert estimate_multiplier(rising, arm, 0.0) is None
    assert estimate_multiplier_range(rising, arm).lowest is None


@pytest.mark.parametrize(
    ("sizes", "floor", "message"),
    [
        (build_baseline(), 2.9, "below every loss"),
        (build_baseline()[:1], 0.0, "at least 2"),
        ([SizeLosses(-1.0, [2]), SizeLosses(2.0, [1])], 0.0, "positive numbers"),
        ([SizeLosses(2.0, [2]), SizeLosses(2.0, [1])], 0.0, "one per ladder size"),
        ([SizeLosses(1.0, [2]), SizeLosses(2.0, [])], 0.0, "losses at 2"),
    ],
)
def test_invalid_sizes_are_rejected(sizes, floor, message):
    with pytest.raises(ValueError, match=message):
        fit_alpha(sizes, floor)
