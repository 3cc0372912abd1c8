"""E-values: sample sizes, error rates, and agreement of intervals and p-values."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from attnlab.stats import (
    ClaimTest,
    ProportionDifferences,
    RankDifferences,
    count_unanimous_seeds,
    decide_claims,
)
from attnlab.stats.evalues import compute_betting_p_value

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.975, 0.99)


@pytest.mark.parametrize(("level", "pairs"), [(0.05, 5), (0.01, 7), (0.025, 6)])
def test_pairs_solved_by_one_arm_count_as_in_mcnemars_test(level, pairs):
    # a claim that asserts a difference is tested at 2.5% on either side
    for ties in (0, 3, 40):
        assert ProportionDifferences([1] * pairs + [0] * ties).p_above(0) <= level
        assert ProportionDifferences([1] * (pairs - 1) + [0] * ties).p_above(0) > level
    exact = next(k for k in range(20) if 0.5**k <= level)
    assert exact == pairs == count_unanimous_seeds(1, 0.5, level)


@pytest.mark.parametrize(("loss", "exact", "bets"), [(0.10, 29, 31), (0.05, 59, 63)])
def test_runs_without_failure_need_nearly_the_exact_number(loss, exact, bets):
    assert (1 - loss) ** exact <= 0.05 < (1 - loss) ** (exact - 1)  # Clopper and Pearson
    assert count_unanimous_seeds(1, 1 - loss, 0.05) == bets
    for claim in (
        ClaimTest(ProportionDifferences([0.0] * bets), (-loss, math.inf)),
        ClaimTest(ProportionDifferences([0] * bets), (-loss, loss)),
    ):
        assert decide_claims([claim])[0].holds is True
    assert (
        decide_claims([ClaimTest(ProportionDifferences([0.0] * (bets - 1)), (-loss, math.inf))])[0].holds
        is None
    )


@pytest.mark.parametrize("best", [0.5, 0.51, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("mean", [0.0, 0.3, 0.475, 0.5, 0.9, 0.95])
def test_unanimous_seeds_are_just_enough(best, mean):
    for level in (0.2, 0.05, 0.025, 0.001):
        n = count_unanimous_seeds(best, mean, level)
        if best <= mean:
            assert n is None
        else:
            assert compute_betting_p_value([best] * n, mean) <= level
            assert n == 1 or compute_betting_p_value([best] * (n - 1), mean) > level


def test_six_seeds_on_one_side_decide_the_median():
    assert (
        RankDifferences([1.0] * 6).p_above(0) <= 0.025 < RankDifferences([1.0] * 5).p_above(0)
    )  # the sign test: 2^-6 < 2.5 % < 2^-5
    assert RankDifferences([3.0, 1.0, 2.0, 5.0, 4.0, 6.0]).interval(0.95) == (1.0, 6.0)
    assert RankDifferences([3.0, 1.0, 2.0, 5.0, 4.0]).interval(0.95) == (-math.inf, math.inf)


@pytest.mark.parametrize(("n", "needed", "sign_test"), [(8, 8, 8), (12, 12, 10), (16, 16, 13), (24, 21, 18)])
def test_one_exception_costs_many_seeds(n, needed, sign_test):
    assert next(k for k in range(n + 1) if compute_betting_p_value(np.arange(n) < k, 0.5) <= 0.025) == needed
    assert next(k for k in range(n + 1) if binom.sf(k - 1, n, 0.5) <= 0.025) == sign_test


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("level", [0.05, 0.2])
def test_error_rate_of_continuous_monitoring_is_at_most_nominal(mean, level):
    rng = np.random.default_rng(0)
    for values in (rng.random((1000, 30)) < mean, rng.beta(mean, 1 - mean, (1000, 30))):
        misled = [
            any(compute_betting_p_value(row[:n], mean) <= level for n in (1, 2, 3, 5, 8, 13, 20, 30))
            for row in values
        ]
        assert np.mean(misled) <= level + 3 * math.sqrt(level / 1000)


def test_p_value_increases_with_the_hypothesized_mean():
    values = np.random.default_rng(1).random(12)
    p = [compute_betting_p_value(values, mean) for mean in np.linspace(-0.1, 1.1, 50)]
    assert p == sorted(p)
    assert (p[0], p[-1]) == (0.0, 1.0)


def test_no_values_and_zeros_are_no_evidence():
    assert compute_betting_p_value([], 0.5) == compute_betting_p_value([0.0, 0.0], 0.0) == 1.0
    for nothing in (ProportionDifferences([]), RankDifferences([])):
        assert (nothing.n, nothing.estimate, nothing.interval(0.95)) == (0, None, None)
        assert nothing.p_above(0) is nothing.p_below(0) is None


def draw_samples(count=30):
    rng = np.random.default_rng(2)
    for n in rng.integers(1, 30, count):
        yield rng.choice([-1.0, 0.0, 1.0], n, p=[0.1, 0.6, 0.3])
        yield np.clip(rng.normal(0.3, 0.2, n), -1, 1)


def test_interval_and_p_value_of_proportions_agree():
    decided = set()
    for values in draw_samples():
        result = ProportionDifferences(values)
        for level in LEVELS:
            low, high = result.interval(level)
            assert -1 <= low <= result.estimate <= high <= 1
            for threshold in (-0.73, -0.21, 0.0, 0.13, 0.42, 0.88):
                above, below = result.p_above(threshold), result.p_below(threshold)
                assert (low > threshold) == (above <= (1 - level) / 2)
                assert (high < threshold) == (below <= (1 - level) / 2)
                decided.add((low > threshold, high < threshold))
    assert len(decided) == 3


def test_interval_and_p_value_of_ranks_agree():
    decided = set()
    for values in draw_samples():
        values = np.where(np.abs(values) > 0.9, np.copysign(math.inf, values), values)
        values[np.abs(values - 0.3) < 0.02] = math.nan
        result = RankDifferences(values)
        for level in LEVELS:
            low, high = result.interval(level)
            for threshold in (-0.5, 0.0, 0.28, *values[np.isfinite(values)][:3]):  # ties too
                assert (low > threshold) == (result.p_above(threshold) <= (1 - level) / 2)
                assert (high < threshold) == (result.p_below(threshold) <= (1 - level) / 2)
                decided.add((low > threshold, high < threshold))
    assert len(decided) == 3


def test_intervals_are_nested_by_level():
    for values in draw_samples(10):
        for evidence in (ProportionDifferences(values), RankDifferences(values)):
            ends = [evidence.interval(level) for level in LEVELS]
            assert [low for low, _ in ends] == sorted((low for low, _ in ends), reverse=True)
            assert [high for _, high in ends] == sorted(high for _, high in ends)


@pytest.mark.parametrize(
    ("values", "estimate"),
    [
        ([math.inf, 1.0, 2.0], 2.0),
        ([math.inf, math.inf, 1.0], None),  # most seeds failed
        ([math.inf, -math.inf], None),
        ([math.nan, 1.0, 2.0], 1.5),
        ([math.nan], None),
        ([-math.inf, 0.5, math.inf], 0.5),
    ],
)
def test_median_counts_failures_as_infinite(values, estimate):
    assert RankDifferences(values).estimate == estimate


def test_failed_arm_is_the_worst_outcome_and_failed_pair_is_neutral():
    fine, failed = [-1.0] * 6, [-1.0] * 5
    assert decide_claims([ClaimTest(RankDifferences(fine), (-math.inf, 0.0))])[0].holds is True
    assert decide_claims([ClaimTest(RankDifferences([*failed, math.inf]), (-math.inf, 0.0))])[0].holds is None
    assert decide_claims([ClaimTest(RankDifferences([*failed, math.nan]), (-math.inf, 0.0))])[0].holds is None
    assert RankDifferences([*failed, math.inf, math.nan]).n == 7
    assert RankDifferences([math.inf] * 6).interval(0.95) == (math.inf, math.inf)
    assert decide_claims([ClaimTest(RankDifferences([math.inf] * 6), (-math.inf, 0.0))])[0].holds is False


def test_ties_at_the_threshold_count_for_neither_side():
    at = RankDifferences([0.0] * 9)
    assert at.p_above(0) == at.p_below(0) == 1.0
    assert (
        decide_claims([ClaimTest(at, (0.0, math.inf))])[0].holds is False
    )  # none of the interval lies above
    assert decide_claims([ClaimTest(at, (-0.1, 0.1))])[0].holds is True


@pytest.mark.parametrize("bad", [[1.1], [-1.5, 0], [math.nan], [math.inf], [[0.1]]], ids=str)
def test_invalid_differences_of_proportions_are_rejected(bad):
    with pytest.raises(ValueError, match="differences of proportions"):
        ProportionDifferences(bad)
