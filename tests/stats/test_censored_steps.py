"""Steps to a threshold against scipy's log-rank test and exact intervals."""

import itertools

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.stats import compare_steps, estimate_paired_difference, summarize_steps
from attnlab.stats.censored_steps import estimate_proportion

# so mixed that log-rank scores, ranks and steps all give another p
A, B = [100, 200, 150, 50, None, 420], [300, None, 400, 260, 480, 350]


def to_censored_data(side: list) -> scipy_stats.CensoredData:
    return scipy_stats.CensoredData(uncensored=[t for t in side if t], right=[500] * side.count(None))


@pytest.mark.parametrize(("count", "n"), [(0, 6), (3, 6), (6, 6), (1, 1)])
def test_proportion_has_its_exact_interval(count, n):
    result = estimate_proportion(count, n)
    low = 0.0 if count == 0 else scipy_stats.beta.ppf(0.025, count, n - count + 1)
    high = 1.0 if count == n else scipy_stats.beta.ppf(0.975, count + 1, n - count)
    assert (result.low, result.high) == pytest.approx((low, high), abs=1e-10)


@pytest.mark.parametrize(("count", "n"), [(7, 6), (-1, 6), (0, 0)])
def test_impossible_proportion_is_rejected(count, n):
    with pytest.raises(ValueError, match="not a proportion"):
        estimate_proportion(count, n)


def test_comparison_counts_failures_and_censors_at_the_budget():
    a, b = summarize_steps(A, 500), summarize_steps(B, 500)
    assert (a.reached, b.reached) == (estimate_proportion(5, 6), estimate_proportion(5, 6))
    assert (a.median, b.median) == (150, 350)
    result = compare_steps(A, B, 500)
    assert result.n == 6
    assert result.steps_saved == estimate_paired_difference([-200, -300, -250, -210, 20, 70])


def test_beyond_the_budget_is_not_reached():
    assert summarize_steps([100, 600], 500) == summarize_steps([100, None], 500)
    assert compare_steps([100, 600], [700, 200], 500) == compare_steps([100, None], [None, 200], 500)


def test_no_median_if_fewer_than_half_reach_the_threshold():
    assert summarize_steps([100, None, None], 500).median is None
    assert summarize_steps([200, 300, None], 500).median == 300


def test_scores_equal_those_of_scipys_log_rank_test():
    # the exact test permutes the very statistic that the log-rank test standardizes: over all relabelings
    # within seeds, its p is the fraction of log-rank statistics at least as far from their mean
    sums = []
    for swap in itertools.product([False, True], repeat=6):
        sides = [[y if s else x for x, y, s in zip(*pair, swap, strict=True)] for pair in ((A, B), (B, A))]
        observed = sum(t is not None for t in sides[0])
        times = sorted(t for t in (*A, *B) if t)
        at_risk = [[sum((s or 500) >= t for s in runs) for runs in (sides[0], A + B)] for t in times]
        expected = sum(at_risk_a / n_at_risk_total for at_risk_a, n_at_risk_total in at_risk)
        variance = sum(m / n * (1 - m / n) for m, n in at_risk)
        known = scipy_stats.logrank(*map(to_censored_data, sides)).statistic
        assert known == pytest.approx((observed - expected) / np.sqrt(variance))
        sums.append(observed - expected)
    assert compare_steps(A, B, 500).sign_flip.p == np.mean(np.abs(sums) >= abs(sums[0]) - 1e-9)


def test_log_rank_p_value_equals_scipys():
    assert (
        compare_steps(A, B, 500).logrank_p
        == scipy_stats.logrank(to_censored_data(A), to_censored_data(B)).pvalue
    )


def test_clear_comparison_reaches_the_floor_and_equal_arms_do_not():
    early, late = [100, 110, 120, 130, 140, 150], [None] * 6
    assert compare_steps(early, late, 500).sign_flip.p == 2 / 2**6
    assert compare_steps(early, early, 500).sign_flip.p == 1


def test_nothing_is_decided_if_no_run_reaches_the_threshold():
    result = compare_steps([None] * 3, [None] * 3, 500)
    assert (result.logrank_p, result.sign_flip.p) == (None, 1.0)
    assert summarize_steps([None] * 3, 500).median is None
    assert (result.steps_saved.mean, result.steps_saved.interval) == (0.0, None)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1], [1, 2], "same seeds"),
        ([], [], "at least one"),
        ([float("nan")], [1], ": nan must be positive"),
        ([0], [1], ": 0 must be positive"),
    ],
)
def test_invalid_steps_are_rejected(a, b, message):
    with pytest.raises(ValueError, match=message):
        compare_steps(a, b, 500)


def test_runs_that_all_reach_it_at_one_step_have_no_log_rank_test(recwarn):
    assert compare_steps([50, 50, 50], [50, 50, 50], budget=100).logrank_p is None
    assert not recwarn.list
