"""E-values and the procedures that bound false discoveries among many claims."""

import numpy as np
import pytest
from scipy import integrate
from scipy import stats as scipy_stats

from attnlab.stats import (
    AnytimeValid,
    compute_online_level,
    compute_sign_evalue,
    compute_t_evalue,
    find_largest_evalue,
    select_discoveries,
)
from attnlab.stats.stopping_rules import PRIOR_VARIANCE


@pytest.mark.parametrize(("n", "shift"), [(2, 1.0), (5, 0.3), (8, 1.5), (8, -0.8), (30, 0.2)])
def test_t_evalue_is_the_average_likelihood_ratio_of_positive_effects(n, shift):
    x = np.random.default_rng(n).normal(shift, 1, n)
    t = x.mean() / x.std(ddof=1) * n**0.5

    def weigh(effect):
        ratio = scipy_stats.nct.pdf(t, n - 1, effect * n**0.5) / scipy_stats.t.pdf(t, n - 1)
        return ratio * 2 * scipy_stats.norm.pdf(effect, 0, PRIOR_VARIANCE**0.5)

    assert compute_t_evalue(x) == pytest.approx(integrate.quad(weigh, 0, 14)[0], rel=1e-6)
    assert compute_t_evalue(x * 1000) == pytest.approx(compute_t_evalue(x), rel=1e-9)


def test_large_t_evalues_agree_with_the_anytime_valid_test():
    x = np.random.default_rng(0).normal(2, 1, 10)
    p = AnytimeValid().p_value(10, x.mean() / x.std(ddof=1) * 10**0.5)
    assert compute_t_evalue(x) == pytest.approx(1 / p, rel=1e-3)


@pytest.mark.parametrize("effect", [0.0, -0.5])
def test_expectation_is_at_most_1_when_false_and_runs_are_added_until_it_is_large(effect):
    random = np.random.default_rng(1)
    stopped = []
    for _ in range(4000):
        x = random.normal(effect, 1, 16)
        path = [compute_t_evalue(x[:n]) for n in range(2, 17)]
        stopped.append(next((e for e in path if e >= 5), path[-1]))
    assert np.mean(stopped) <= 1 + 3 * np.std(stopped) / 4000**0.5
    assert np.mean(np.array(stopped) >= 5) <= 0.2


def test_sign_evalues_have_exact_expectation_1():
    """Over all 2^5 equally likely outcomes."""
    outcomes = [[bool(code >> bit & 1) for bit in range(5)] for code in range(32)]
    assert np.mean([compute_sign_evalue(signs) for signs in outcomes]) == pytest.approx(1.0)
    assert compute_sign_evalue([True] * 8) > 100
    assert compute_sign_evalue([]) == compute_t_evalue([0.0, 0.0]) == 1.0


def test_largest_evalue_is_approached_by_equal_differences_and_stays_finite():
    for count in (3, 4, 7):
        nearly_equal = [1.0, *[1.0 + 1e-9] * (count - 1)]
        assert compute_t_evalue(nearly_equal) == pytest.approx(find_largest_evalue(count), rel=0.01)
    assert (find_largest_evalue(3), find_largest_evalue(4)) == pytest.approx((26, 140.3), rel=0.01)
    assert np.isfinite(compute_t_evalue(np.random.default_rng(0).normal(3, 1, 2000)))
    assert np.isfinite([find_largest_evalue(5000), compute_sign_evalue([True] * 5000)]).all()


def test_online_levels_by_hand():
    assert compute_online_level(1, 0, 0.05) == pytest.approx(0.025)
    assert compute_online_level(3, 1, 0.06) == pytest.approx(0.06 * 2 / 12)
    assert sum(compute_online_level(t, 0, 0.05) for t in range(1, 2000)) == pytest.approx(0.05, rel=1e-3)
    for test, discoveries in [(0, 0), (2, 2), (1, -1)]:
        with pytest.raises(ValueError, match="count tests from 1"):
            compute_online_level(test, discoveries, 0.05)


def test_batch_by_hand():
    """Six claims at 5%: one discovery takes 120, two take 60 each, three take 40 each."""
    assert select_discoveries([119, 1, 1, 1, 1, 1], 0.05) == [False] * 6
    assert select_discoveries([120, 59, 1, 1, 1, 1], 0.05) == [True] + [False] * 5
    assert select_discoveries([1, 60, 60, 1, 1, 1], 0.05) == [False, True, True, False, False, False]
    assert select_discoveries([40, 41, 1, 500, 1, 29], 0.05) == [True, True, False, True, False, False]
    assert select_discoveries([], 0.05) == []


@pytest.mark.parametrize("procedure", ["online", "batch"])
def test_false_discovery_rate_with_a_shared_champion(procedure):
    """Twenty candidates, six of them better, all against the same eight runs of the champion."""
    random = np.random.default_rng(2)
    shares, found = [], 0
    for _ in range(400):
        champion = random.normal(0, 1, 8)
        better = random.permutation(20) < 6
        e = [compute_t_evalue(random.normal(3.0 * each, 1, 8) - champion) for each in better]
        if procedure == "batch":
            accepted = np.array(select_discoveries(e, 0.1))
        else:
            accepted = np.zeros(20, bool)
            for test in range(20):
                level = compute_online_level(test + 1, int(accepted[:test].sum()), 0.1)
                accepted[test] = e[test] >= 1 / level
        shares.append((accepted & ~better).sum() / max(1, accepted.sum()))
        found += (accepted & better).sum()
    assert np.mean(shares) <= 0.1
    assert found / 400 > 1  # a procedure that accepts nothing would pass the first assertion
