"""Evidence that assumes no distribution: what it takes, what it shows, and that it is right."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from attnlab.stats import Question, Ranks, Shares, decide, doubt, seeds_without_exception

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.975, 0.99)


@pytest.mark.parametrize(("level", "pairs"), [(0.05, 5), (0.01, 7), (0.025, 6)])
def test_pairs_that_one_arm_alone_solves_count_as_in_mcnemars_test(level, pairs):
    # 2.5 % is what a report asks of a claim that asserts a difference, on either side
    for ties in (0, 3, 40):
        assert Shares([1] * pairs + [0] * ties).p_above(0) <= level
        assert Shares([1] * (pairs - 1) + [0] * ties).p_above(0) > level
    exact = next(k for k in range(20) if 0.5**k <= level)
    assert exact == pairs == seeds_without_exception(1, 0.5, level)


@pytest.mark.parametrize(("loss", "exact", "bets"), [(0.10, 29, 31), (0.05, 59, 63)])
def test_runs_without_a_failure_show_nearly_what_the_exact_interval_shows(loss, exact, bets):
    assert (1 - loss) ** exact <= 0.05 < (1 - loss) ** (exact - 1)  # Clopper and Pearson
    assert seeds_without_exception(1, 1 - loss, 0.05) == bets
    for claim in (
        Question(Shares([0.0] * bets), (-loss, math.inf)),
        Question(Shares([0] * bets), (-loss, loss)),
    ):
        assert decide([claim])[0].holds is True
    assert decide([Question(Shares([0.0] * (bets - 1)), (-loss, math.inf))])[0].holds is None


@pytest.mark.parametrize("best", [0.5, 0.51, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("mean", [0.0, 0.3, 0.475, 0.5, 0.9, 0.95])
def test_seeds_without_exception_are_just_enough(best, mean):
    for level in (0.2, 0.05, 0.025, 0.001):
        n = seeds_without_exception(best, mean, level)
        if best <= mean:
            assert n is None
        else:
            assert doubt([best] * n, mean) <= level
            assert n == 1 or doubt([best] * (n - 1), mean) > level


def test_six_seeds_on_one_side_are_enough_for_a_median():
    assert (
        Ranks([1.0] * 6).p_above(0) <= 0.025 < Ranks([1.0] * 5).p_above(0)
    )  # the sign test: 2^-6 < 2.5 % < 2^-5
    assert Ranks([3.0, 1.0, 2.0, 5.0, 4.0, 6.0]).interval(0.95) == (1.0, 6.0)
    assert Ranks([3.0, 1.0, 2.0, 5.0, 4.0]).interval(0.95) == (-math.inf, math.inf)


@pytest.mark.parametrize(("n", "needed", "sign_test"), [(8, 8, 8), (12, 12, 10), (16, 16, 13), (24, 21, 18)])
def test_a_seed_on_the_other_side_is_dear(n, needed, sign_test):
    assert next(k for k in range(n + 1) if doubt(np.arange(n) < k, 0.5) <= 0.025) == needed
    assert next(k for k in range(n + 1) if binom.sf(k - 1, n, 0.5) <= 0.025) == sign_test


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("level", [0.05, 0.2])
def test_whoever_looks_after_every_value_is_misled_as_seldom_as_was_said(mean, level):
    draw = np.random.default_rng(0)
    for values in (draw.random((1000, 30)) < mean, draw.beta(mean, 1 - mean, (1000, 30))):
        misled = [any(doubt(row[:n], mean) <= level for n in (1, 2, 3, 5, 8, 13, 20, 30)) for row in values]
        assert np.mean(misled) <= level + 3 * math.sqrt(level / 1000)


def test_a_doubter_of_a_lower_mean_is_sooner_refuted():
    values = np.random.default_rng(1).random(12)
    p = [doubt(values, mean) for mean in np.linspace(-0.1, 1.1, 50)]
    assert p == sorted(p)
    assert (p[0], p[-1]) == (0.0, 1.0)


def test_nothing_and_nought_show_nothing():
    assert doubt([], 0.5) == doubt([0.0, 0.0], 0.0) == 1.0
    for nothing in (Shares([]), Ranks([])):
        assert (nothing.n, nothing.estimate, nothing.interval(0.95)) == (0, None, None)
        assert nothing.p_above(0) is nothing.p_below(0) is None


def samples(count=30):
    draw = np.random.default_rng(2)
    for n in draw.integers(1, 30, count):
        yield draw.choice([-1.0, 0.0, 1.0], n, p=[0.1, 0.6, 0.3])
        yield np.clip(draw.normal(0.3, 0.2, n), -1, 1)


def test_the_interval_of_shares_and_their_p_decide_alike():
    decided = set()
    for values in samples():
        found = Shares(values)
        for level in LEVELS:
            low, high = found.interval(level)
            assert -1 <= low <= found.estimate <= high <= 1
            for threshold in (-0.73, -0.21, 0.0, 0.13, 0.42, 0.88):
                above, below = found.p_above(threshold), found.p_below(threshold)
                assert (low > threshold) == (above <= (1 - level) / 2)
                assert (high < threshold) == (below <= (1 - level) / 2)
                decided.add((low > threshold, high < threshold))
    assert len(decided) == 3


def test_the_interval_of_ranks_and_their_p_decide_alike():
    decided = set()
    for values in samples():
        values = np.where(np.abs(values) > 0.9, np.copysign(math.inf, values), values)
        values[np.abs(values - 0.3) < 0.02] = math.nan
        found = Ranks(values)
        for level in LEVELS:
            low, high = found.interval(level)
            for threshold in (-0.5, 0.0, 0.28, *values[np.isfinite(values)][:3]):  # ties too
                assert (low > threshold) == (found.p_above(threshold) <= (1 - level) / 2)
                assert (high < threshold) == (found.p_below(threshold) <= (1 - level) / 2)
                decided.add((low > threshold, high < threshold))
    assert len(decided) == 3


def test_a_wider_interval_holds_a_narrower_one():
    for values in samples(10):
        for evidence in (Shares(values), Ranks(values)):
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
def test_the_median_counts_failures_at_their_side(values, estimate):
    assert Ranks(values).estimate == estimate


def test_a_failed_arm_is_the_worst_outcome_and_a_failed_pair_is_on_nobodys_side():
    fine, failed = [-1.0] * 6, [-1.0] * 5
    assert decide([Question(Ranks(fine), (-math.inf, 0.0))])[0].holds is True
    assert decide([Question(Ranks([*failed, math.inf]), (-math.inf, 0.0))])[0].holds is None
    assert decide([Question(Ranks([*failed, math.nan]), (-math.inf, 0.0))])[0].holds is None
    assert Ranks([*failed, math.inf, math.nan]).n == 7
    assert Ranks([math.inf] * 6).interval(0.95) == (math.inf, math.inf)
    assert decide([Question(Ranks([math.inf] * 6), (-math.inf, 0.0))])[0].holds is False


def test_ties_at_the_threshold_are_on_nobodys_side():
    at = Ranks([0.0] * 9)
    assert at.p_above(0) == at.p_below(0) == 1.0
    assert decide([Question(at, (0.0, math.inf))])[0].holds is False  # none of the interval lies above
    assert decide([Question(at, (-0.1, 0.1))])[0].holds is True


@pytest.mark.parametrize("bad", [[1.1], [-1.5, 0], [math.nan], [math.inf], [[0.1]]], ids=str)
def test_what_is_no_difference_of_shares_is_refused(bad):
    with pytest.raises(ValueError, match="shares"):
        Shares(bad)
