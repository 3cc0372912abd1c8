import numpy as np
import pytest
from calibration import by_t
from statsmodels.stats.power import TTestPower

from attnlab.stats import (
    Shares,
    deciding,
    deciding_shares,
    detectable,
    planning,
    power,
    seeds_for_equivalence,
    seeds_needed,
    tost,
    tost_power,
)
from attnlab.stats.designs import FIXED
from attnlab.store.declarations import RELATIONS


@pytest.mark.parametrize("n", [2, 3, 6, 10, 50])
@pytest.mark.parametrize("effect", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_power_agrees_with_statsmodels(n, effect, alpha):
    assert power(n, effect, alpha) == pytest.approx(TTestPower().power(effect, n, alpha), abs=1e-8)


@pytest.mark.parametrize(("n", "known"), [(3, 3.26), (5, 1.68), (6, 1.43), (8, 1.16), (10, 1.00)])
def test_detectable_effects(n, known):
    assert round(detectable(n), 2) in (known, round(known + 0.01, 2))  # 1.435 rounds either way
    assert detectable(n) == pytest.approx(TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8), abs=1e-5)


@pytest.mark.parametrize(("n", "wanted"), [(2, 0.999999), (2, 0.051), (30, 0.999999)])
def test_the_detectable_effect_has_the_wanted_power(n, wanted):
    assert power(n, detectable(n, wanted)) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    ("effect", "known"), [(2, 5), (1.5, 6), (1, 10), (0.5, 34), (1e6, 2), (1e-3, None), (0, None)]
)
def test_seeds_needed(effect, known):
    assert seeds_needed(effect) == known


@pytest.mark.parametrize("effect", [0.07, 0.5, 0.9, 1.3, 4.0])
def test_seeds_needed_are_just_enough(effect):
    n = seeds_needed(effect, power=0.9, alpha=0.01)
    assert power(n, effect, 0.01) >= 0.9
    assert n == 2 or power(n - 1, effect, 0.01) < 0.9


@pytest.mark.parametrize(("n", "margin"), [(3, 1.0), (6, 1.5), (10, 1.0), (5, 0.4)])
def test_the_power_of_equivalence_is_how_often_it_passes(n, margin):
    draws = np.random.default_rng(n).normal(0, 1, (4000, n))
    passed = np.mean([tost(row, margin).passed for row in draws])
    assert tost_power(n, margin) == pytest.approx(passed, abs=3.5 * np.sqrt(0.25 / 4000))


def test_an_equivalence_test_can_be_hopeless_and_can_be_sure():
    assert tost_power(3, 0.01) == pytest.approx(0, abs=1e-4)
    assert tost_power(40, 5.0) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("margin", [0.3, 1.0, 1.5, 2.0])
def test_seeds_for_equivalence_are_just_enough(margin):
    n = seeds_for_equivalence(margin, power=0.9)
    assert tost_power(n, margin) >= 0.9 > tost_power(n - 1, margin)


def test_a_margin_far_below_the_noise_is_out_of_reach():
    assert seeds_for_equivalence(1e-3) is None


def test_planning_speaks_in_the_metrics_unit():
    values = np.random.default_rng(5).normal(0, 1, 6)
    small, large = planning(values / 100, margin=0.02), planning(values, margin=2)
    assert small.detectable == pytest.approx(detectable(6) * values.std(ddof=1) / 100)
    assert (small.seeds_for_half, small.seeds_for_margin) == (large.seeds_for_half, large.seeds_for_margin)
    assert small.seeds_for_half == seeds_needed(detectable(6) / 2)


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.1, 0.1]])
def test_without_spread_there_is_no_planning_value(values):
    assert planning(values, margin=1.0) is None


SEEN = np.random.default_rng(8).normal(0, 1, 6)
SEEN = (SEEN - SEEN.mean()) / SEEN.std(ddof=1)  # mean 0, sd 1


@pytest.mark.parametrize(
    ("mean", "relation", "threshold", "tail", "word"),
    [
        (0.0, "below", 1.0, 0.05, 1),
        (0.4, "within", 1.0, 0.05, 1),
        (0.0, "within", 1.0, 0.01, 1),
        (1.8, "within", 1.0, 0.05, -1),
        (0.7, "above", 0.0, 0.025, 1),
        (-1.5, "above", 0.0, 0.0125, -1),
    ],
)
def test_seeds_that_decide_are_just_enough_where_the_truth_is_as_seen(mean, relation, threshold, tail, word):
    where = RELATIONS[relation].region(threshold)
    found = deciding(SEEN + mean, where, tail)
    assert found.ends == {1: "support", -1: "refute"}[word]
    draws = np.random.default_rng(9).normal(mean, 1, (20_000, found.seeds))
    often = [(by_t(draws[:, :n], FIXED, where, tail) == word).mean() for n in (found.seeds - 1, found.seeds)]
    error = 3 * np.sqrt(0.16 / 20_000)
    assert often[0] < 0.8 + error
    assert often[1] > 0.8 - error
    assert found.low <= found.seeds <= found.high


def test_an_estimate_at_the_threshold_is_never_decided():
    for where in ((0.25, np.inf), (-0.25, 0.25)):
        found = deciding(SEEN / 1024 + 0.25, where, 0.05)
        assert (found.seeds, found.high) == (None, None)


def test_it_takes_more_seeds_the_nearer_the_estimate_lies_to_the_threshold():
    where = (-np.inf, 1.0)
    seeds = [deciding(SEEN + mean, where, 0.05).seeds for mean in (0.0, 0.5, 0.8, 0.95)]
    assert seeds == sorted(set(seeds))
    assert deciding(SEEN + 0.5, where, 0.05).seeds == deciding(SEEN + 1.5, where, 0.05).seeds  # refuted then
    strict = [deciding(SEEN, where, tail).seeds for tail in (0.05, 0.01, 0.001)]
    assert strict == sorted(set(strict))


def test_the_unit_of_a_metric_changes_no_number_of_seeds():
    assert deciding(SEEN + 0.2, (-1.0, 1.0), 0.05) == deciding(
        (SEEN + 0.2) / 1024, (-1 / 1024, 1 / 1024), 0.05
    )


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.1, 0.1]])
def test_without_spread_nobody_knows_what_would_decide(values):
    assert deciding(values, (0.0, np.inf), 0.05) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: power(1, 1.0),
        lambda: detectable(5, power=1.0),
        lambda: detectable(5, 0.04),
        lambda: tost_power(5, 0.0),
        lambda: seeds_needed(1, alpha=0),
    ],
)
def test_impossible_plans_are_refused(call):
    with pytest.raises(ValueError, match=r"n=1|power|margin|alpha"):
        call()


OF_FOUR = np.array([-2, -1, 0, 0, 1, 1, 2]) / 4  # differences of shares of four heads


@pytest.mark.parametrize(
    ("relation", "threshold", "tail", "ends"),
    [
        ("above", -0.25, 0.05, "support"), ("below", 0.0, 0.05, "refute"), ("below", 0.5, 0.01, "support"),
        ("within", 0.5, 0.05, "support"), ("within", 0.01, 0.05, "refute"),
    ],
)  # fmt: skip
def test_seeds_that_decide_shares_are_just_enough_where_the_truth_is_as_seen(relation, threshold, tail, ends):
    where = RELATIONS[relation].region(threshold)
    found = deciding_shares(OF_FOUR, where, tail)
    assert found.ends == ends
    assert found.low is found.high is None

    def often(n):
        drawn = [Shares(np.random.default_rng([7, k]).choice(OF_FOUR, n)) for k in range(1000)]
        above = np.array([one.p_above(where[0]) <= tail if np.isfinite(where[0]) else True for one in drawn])
        below = np.array([one.p_below(where[1]) <= tail if np.isfinite(where[1]) else True for one in drawn])
        if ends == "support":
            return (above & below).mean()
        return np.mean([one.p_above(where[1]) <= tail for one in drawn])

    error = 3 * np.sqrt(0.16 / 200) + 3 * np.sqrt(0.16 / 1000)  # of 200 sweeps there, and of a thousand here
    assert often(found.seeds - 1) < 0.8 + error
    assert often(found.seeds) > 0.8 - error


@pytest.mark.parametrize(("values", "seeds"), [([0.25, -0.25], None), ([0.1], 0), ([0.5, 0.5, 0.5], 0)])
def test_shares_at_the_threshold_are_never_decided_and_without_spread_nobody_knows(values, seeds):
    found = deciding_shares(values, (0.0, np.inf), 0.025)
    assert found is None if seeds == 0 else found.seeds is None
