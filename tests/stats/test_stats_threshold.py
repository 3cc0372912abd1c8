import itertools

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.stats import paired, race, solved

# so mixed that log-rank scores, ranks and steps all give another p
A, B = [100, 200, 150, 50, None, 420], [300, None, 400, 260, 480, 350]


def censored(side: list) -> scipy_stats.CensoredData:
    return scipy_stats.CensoredData(uncensored=[t for t in side if t], right=[500] * side.count(None))


@pytest.mark.parametrize(("count", "n"), [(0, 6), (3, 6), (6, 6), (1, 1)])
def test_the_solved_fraction_has_its_exact_interval(count, n):
    found = solved(count, n)
    low = 0.0 if count == 0 else scipy_stats.beta.ppf(0.025, count, n - count + 1)
    high = 1.0 if count == n else scipy_stats.beta.ppf(0.975, count + 1, n - count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-10)


@pytest.mark.parametrize(("count", "n"), [(7, 6), (-1, 6), (0, 0)])
def test_an_impossible_fraction_is_refused(count, n):
    with pytest.raises(ValueError, match="not a fraction"):
        solved(count, n)


def test_a_race_counts_failures_and_clips_them_at_the_budget():
    found = race(A, B, 500)
    assert (found.a.count, found.b.count, found.n) == (5, 5, 6)
    assert (found.a_median, found.b_median) == (150, 350)
    assert found.saved == paired([-200, -300, -250, -210, 20, 70])


def test_beyond_the_budget_is_not_reached():
    assert race([100, 600], [700, 200], 500) == race([100, None], [None, 200], 500)


def test_fewer_than_half_solved_has_no_median():
    assert race([100, None, None], [200, 300, None], 500).a_median is None
    assert race([100, None, None], [200, 300, None], 500).b_median == 300


def test_the_scores_are_those_of_scipys_log_rank_test():
    # the exact test permutes the very statistic that the log-rank test standardises: over all relabellings
    # within seeds, its p is the share of log-rank statistics at least as far from their mean
    sums = []
    for swap in itertools.product([False, True], repeat=6):
        sides = [[y if s else x for x, y, s in zip(*pair, swap, strict=True)] for pair in ((A, B), (B, A))]
        observed = sum(t is not None for t in sides[0])
        times = sorted(t for t in (*A, *B) if t)
        at_risk = [[sum((s or 500) >= t for s in runs) for runs in (sides[0], A + B)] for t in times]
        expected = sum(mine / both for mine, both in at_risk)
        variance = sum(m / n * (1 - m / n) for m, n in at_risk)
        known = scipy_stats.logrank(*map(censored, sides)).statistic
        assert known == pytest.approx((observed - expected) / np.sqrt(variance))
        sums.append(observed - expected)
    assert race(A, B, 500).flips.p == np.mean(np.abs(sums) >= abs(sums[0]) - 1e-9)


def test_log_rank_is_scipys():
    assert race(A, B, 500).logrank_p == scipy_stats.logrank(censored(A), censored(B)).pvalue


def test_a_clear_race_reaches_the_floor_and_a_draw_does_not():
    early, late = [100, 110, 120, 130, 140, 150], [None] * 6
    assert race(early, late, 500).flips.p == 2 / 2**6
    assert race(early, early, 500).flips.p == 1


def test_where_nobody_solved_it_nothing_is_decided():
    found = race([None] * 3, [None] * 3, 500)
    assert (found.logrank_p, found.flips.p, found.a_median) == (None, 1.0, None)
    assert (found.saved.mean, found.saved.interval) == (0.0, None)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ([1], [1, 2], "same seeds"),
        ([], [], "at least one"),
        ([float("nan")], [1], "nan steps"),
        ([0], [1], "0 steps"),
    ],
)
def test_a_race_that_cannot_be_run_is_refused(a, b, said):
    with pytest.raises(ValueError, match=said):
        race(a, b, 500)


def test_runs_that_all_solve_it_at_one_step_have_no_log_rank_test(recwarn):
    assert race([50, 50, 50], [50, 50, 50], budget=100).logrank_p is None
    assert not recwarn.list
