import math

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.weightstats import DescrStatsW

from attnlab.stats import Differences, Draws, Exact, noninferior, paired, support, tost

SAMPLES = [np.random.default_rng(n).normal(0.01, 0.02, n) for n in (2, 3, 6, 11, 31)]


@pytest.mark.parametrize("sample", SAMPLES, ids=len)
@pytest.mark.parametrize("level", [0.9, 0.95, 0.983])
def test_paired_is_scipys_paired_t_test(sample, level):
    base = np.linspace(2, 3, len(sample))
    found, known = paired(sample, level), scipy_stats.ttest_rel(base + sample, base)
    interval = known.confidence_interval(level)
    assert found.n == len(sample)
    assert (found.mean, found.sd) == pytest.approx((sample.mean(), sample.std(ddof=1)), rel=1e-12)
    assert found.interval == pytest.approx((interval.low, interval.high), abs=1e-10)
    assert found.p == pytest.approx(known.pvalue, abs=1e-10)


def test_the_paired_interval_covers_the_true_mean_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(0.3, 1, (20_000, 6))
    low, high = np.array([Differences(row).interval(0.95) for row in draws]).T
    assert 0.93 < np.mean((low < 0.3) & (high > 0.3)) < 0.97


@pytest.mark.parametrize("sample", SAMPLES, ids=len)
@pytest.mark.parametrize("margin", [0.005, 0.02, 0.1])
def test_tost_agrees_with_statsmodels(sample, margin):
    known = DescrStatsW(sample).ttost_mean(-margin, margin)[0]
    assert tost(sample, margin).p == pytest.approx(known, abs=1e-8)


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 3, 0.001])
@pytest.mark.parametrize("margin", [0.012, 0.02, 0.03, 0.05])
def test_the_interval_and_the_p_of_equivalence_decide_alike(alpha, margin):
    decided = [
        (t.passed, t.p <= alpha, -margin < t.low and t.high < margin, t.level)
        for t in (tost(sample, margin, alpha) for sample in SAMPLES)
    ]
    assert all(by_end == by_p == by_interval for by_end, by_p, by_interval, _ in decided)
    assert {level for *_, level in decided} == {1 - 2 * alpha}


def test_noninferiority_is_scipys_one_sided_test_and_its_bound():
    sample = SAMPLES[2]
    known = scipy_stats.ttest_1samp(sample, 0.03, alternative="less")
    bound, found = known.confidence_interval(0.95).high, noninferior(sample, 0.03)
    assert found.low is None
    assert (found.high, found.p) == pytest.approx((bound, known.pvalue), abs=1e-10)
    assert found.passed == (known.pvalue < 0.05)


def test_noninferiority_mirrors_where_higher_is_better():
    costs, gains = noninferior(SAMPLES[2], 0.03), noninferior(-SAMPLES[2], 0.03, direction="higher")
    assert (gains.low, gains.high, gains.p, gains.passed) == (-costs.high, None, costs.p, costs.passed)


def test_one_pair_has_a_mean_and_nothing_else():
    found = paired([0.25])
    assert (found.n, found.mean, found.sd, found.interval, found.p) == (1, 0.25, None, None, None)
    assert not tost([0.0], 1.0).passed
    assert not noninferior([0.0], 1.0).passed


@pytest.mark.parametrize("values", [[0.1] * 3, [0.0] * 2, [0.1, 0.1 + 1e-17, 0.30000000000000004 - 0.2]])
def test_ties_prove_nothing(values):
    found, tested = paired(values), tost(values, 0.2)
    assert (found.interval, found.p, found.tied) == (None, None, True)
    assert (tested.passed, tested.p) == (False, None)


@pytest.mark.parametrize("bad", [[], [0.1, math.nan], [math.inf], [[1.0, 2.0]]], ids=str)
@pytest.mark.parametrize(
    "test",
    [paired, lambda d: tost(d, 1.0), lambda d: noninferior(d, 1.0)],
    ids=["paired", "tost", "noninferior"],
)
def test_what_is_not_a_flat_list_of_finite_numbers_is_refused(test, bad):
    with pytest.raises(ValueError, match="differences: "):
        test(bad)


@pytest.mark.parametrize(
    "call",
    [
        lambda: paired([1, 2], level=95),
        lambda: tost([1, 2], 0),
        lambda: tost([1, 2], math.nan),
        lambda: noninferior([1, 2], -0.03),
        lambda: noninferior([1, 2], math.nan),
        lambda: noninferior([1, 2], 0.03, direction="min"),
    ],
)
def test_impossible_settings_are_refused(call):
    with pytest.raises(ValueError, match=r"level|threshold|margin|direction"):
        call()


@pytest.mark.parametrize(("value", "p"), [(0.4, 0.0), (0.5, 1.0), (0.6, 1.0)])
def test_an_exact_value_is_certain_and_does_not_touch_its_threshold(value, p):
    assert support(Exact(value), (-math.inf, 0.5)) == p


@pytest.mark.parametrize(
    ("values", "low", "high", "estimate"),
    [([0.0, 0.0, 0.0], 0, 0, 0), ([0.0, 1e-9, 0.0], 0, 1e-9, 1e-9), ([0.1, 0.0, -0.3], -0.3, 0.1, -0.3)],
)
def test_an_identity_holds_in_every_pair_or_not_at_all(values, low, high, estimate):
    found = Exact(*values)
    assert (found.n, found.interval(0.95), found.estimate) == (3, (low, high), estimate)
    assert support(found, (-1e-12, 1e-12)) == (0.0 if high == low == 0 else 1.0)
    assert support(found, (-0.5, 0.5)) == 0.0
    with pytest.raises(ValueError, match="exact value: nan at position 1"):
        Exact(0.0, math.nan)


def test_draws_count_the_share_on_the_wrong_side():
    draws = Draws(20, 0.5, np.arange(99) / 99)
    assert draws.p_above(9.5 / 99) == (1 + 10) / (1 + 99)
    assert draws.p_below(89.5 / 99) == (1 + 9) / (1 + 99)
