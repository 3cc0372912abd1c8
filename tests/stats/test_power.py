"""Power analysis against statsmodels and by simulation."""

import numpy as np
import pytest
from calibration import decide_by_t
from scipy import stats as scipy_stats
from statsmodels.stats.power import TTestPower

from attnlab.stats import (
    PairedDifferences,
    ProportionDifferences,
    RankDifferences,
    compute_region_p_value,
    estimate_sd_bounds,
    estimate_seeds_to_decide,
    find_detectable_effect,
    find_detectable_group_effect,
    find_group_seeds_needed,
    find_seeds_for_equivalence,
    simulate_seeds_to_decide,
    simulate_seeds_to_decide_median,
)
from attnlab.stats.power import compute_group_power, compute_power, compute_tost_power
from attnlab.stats.stopping_rules import FIXED_SAMPLE, AnytimeValid, GroupSequential
from attnlab.store.experiment_schema import RELATIONS


@pytest.mark.parametrize("n", [2, 3, 6, 10, 50])
@pytest.mark.parametrize("effect", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_power_agrees_with_statsmodels(n, effect, alpha):
    assert compute_power(n, effect, alpha) == pytest.approx(TTestPower().power(effect, n, alpha), abs=1e-8)


@pytest.mark.parametrize(("n", "expected"), [(3, 3.26), (5, 1.68), (6, 1.43), (8, 1.16), (10, 1.00)])
def test_detectable_effects(n, expected):
    assert round(find_detectable_effect(n), 2) in (
        expected,
        round(expected + 0.01, 2),
    )  # 1.435 rounds either way
    assert find_detectable_effect(n) == pytest.approx(
        TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8), abs=1e-5
    )


@pytest.mark.parametrize(("n", "target"), [(2, 0.999999), (2, 0.051), (30, 0.999999)])
def test_detectable_effect_has_the_requested_power(n, target):
    assert compute_power(n, find_detectable_effect(n, target)) == pytest.approx(target, abs=1e-9)


@pytest.mark.parametrize(("effect", "expected"), [(1e6, 2), (1e-3, None), (0, None)])
def test_seeds_needed_at_extreme_effects(effect, expected):
    assert find_group_seeds_needed(effect) == expected


@pytest.mark.parametrize("effect", [0.07, 0.5, 0.9, 1.3, 4.0])
def test_seeds_needed_are_just_enough(effect):
    n = find_group_seeds_needed(effect, power=0.9, alpha=0.01)
    assert compute_group_power(n, effect, 0.01) >= 0.9 > compute_group_power(n - 1, effect, 0.01)


@pytest.mark.parametrize(("n", "margin"), [(3, 1.0), (6, 1.5), (10, 1.0), (5, 0.4)])
def test_tost_power_equals_the_simulated_rate(n, margin):
    draws = np.random.default_rng(n).normal(0, 1, (4000, n))
    rate = np.mean(
        [compute_region_p_value(PairedDifferences(row), (-margin, margin)) <= 0.05 for row in draws]
    )
    assert compute_tost_power(n, margin) == pytest.approx(rate, abs=3.5 * np.sqrt(0.25 / 4000))


def test_tost_power_ranges_from_zero_to_one():
    assert compute_tost_power(3, 0.01) == pytest.approx(0, abs=1e-4)
    assert compute_tost_power(40, 5.0) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("margin", [0.3, 1.0, 1.5, 2.0])
def test_seeds_for_equivalence_are_just_enough(margin):
    n = find_seeds_for_equivalence(margin, power=0.9)
    assert compute_tost_power(n, margin) >= 0.9 > compute_tost_power(n - 1, margin)


def test_margin_far_below_the_noise_needs_too_many_seeds():
    assert find_seeds_for_equivalence(1e-3) is None


OBSERVED = np.random.default_rng(8).normal(0, 1, 6)
OBSERVED = (OBSERVED - OBSERVED.mean()) / OBSERVED.std(ddof=1)  # mean 0, sd 1


@pytest.mark.parametrize(
    ("mean", "relation", "threshold", "tail", "decision", "rule"),
    [
        (0.0, "below", 1.0, 0.05, 1, FIXED_SAMPLE),
        (0.4, "within", 1.0, 0.05, 1, FIXED_SAMPLE),
        (0.0, "within", 1.0, 0.01, 1, FIXED_SAMPLE),
        (1.8, "within", 1.0, 0.05, -1, FIXED_SAMPLE),
        (0.7, "above", 0.0, 0.025, 1, FIXED_SAMPLE),
        (-1.5, "above", 0.0, 0.0125, -1, FIXED_SAMPLE),
        (1.0, "above", 0.0, 0.025, 1, AnytimeValid()),
        (0.4, "within", 1.0, 0.05, 1, AnytimeValid()),
    ],
)
def test_seeds_to_decide_are_just_enough_at_the_observed_effect(
    mean, relation, threshold, tail, decision, rule
):
    region = RELATIONS[relation].compute_region(threshold)
    result = estimate_seeds_to_decide(OBSERVED + mean, region, tail, stopping_rule=rule)
    assert result.ends == {1: "support", -1: "refute"}[decision]
    draws = np.random.default_rng(9).normal(mean, 1, (20_000, result.seeds))
    measure_decision_rate = [
        (decide_by_t(draws[:, :n], rule, region, tail) == decision).mean()
        for n in (result.seeds - 1, result.seeds)
    ]
    error = 3 * np.sqrt(0.16 / 20_000)
    assert measure_decision_rate[0] < 0.8 + error
    assert measure_decision_rate[1] > 0.8 - error
    assert result.low <= result.seeds <= result.high


def test_estimate_at_the_threshold_is_never_decided():
    for region in ((0.25, np.inf), (-0.25, 0.25)):
        result = estimate_seeds_to_decide(OBSERVED / 1024 + 0.25, region, 0.05)
        assert (result.seeds, result.high) == (None, None)


def test_seeds_to_decide_increase_near_the_threshold():
    region = (-np.inf, 1.0)
    seeds = [estimate_seeds_to_decide(OBSERVED + mean, region, 0.05).seeds for mean in (0.0, 0.5, 0.8, 0.95)]
    assert seeds == sorted(set(seeds))
    assert (
        estimate_seeds_to_decide(OBSERVED + 0.5, region, 0.05).seeds
        == estimate_seeds_to_decide(OBSERVED + 1.5, region, 0.05).seeds
    )  # refuted then
    strict = [estimate_seeds_to_decide(OBSERVED, region, tail).seeds for tail in (0.05, 0.01, 0.001)]
    assert strict == sorted(set(strict))


def test_seeds_to_decide_do_not_depend_on_the_unit():
    assert estimate_seeds_to_decide(OBSERVED + 0.2, (-1.0, 1.0), 0.05) == estimate_seeds_to_decide(
        (OBSERVED + 0.2) / 1024, (-1 / 1024, 1 / 1024), 0.05
    )


def test_interim_analyses_count_as_a_single_analysis_of_fresh_seeds():
    rules = FIXED_SAMPLE, GroupSequential((4, 6), 1)
    results = [estimate_seeds_to_decide(OBSERVED, (-1.0, 1.0), 0.05, stopping_rule=rule) for rule in rules]
    assert results[0] == results[1]


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.1, 0.1]])
def test_seeds_to_decide_are_unknown_without_spread(values):
    assert estimate_seeds_to_decide(values, (0.0, np.inf), 0.05) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: compute_power(1, 1.0),
        lambda: find_detectable_effect(5, power=1.0),
        lambda: find_detectable_effect(5, 0.04),
        lambda: compute_tost_power(5, 0.0),
        lambda: find_group_seeds_needed(1, alpha=0),
    ],
)
def test_impossible_plans_are_rejected(call):
    with pytest.raises(ValueError, match=r"n=1|power|margin|alpha"):
        call()


OF_FOUR = np.array([-2, -1, 0, 0, 1, 1, 2]) / 4  # differences of proportions of four heads


@pytest.mark.parametrize(
    ("relation", "threshold", "tail", "ends"),
    [
        ("above", -0.25, 0.05, "support"), ("below", 0.0, 0.05, "refute"), ("below", 0.5, 0.01, "support"),
        ("within", 0.5, 0.05, "support"), ("within", 0.01, 0.05, "refute"),
    ],
)  # fmt: skip
def test_seeds_to_decide_proportions_are_just_enough_at_the_observed_effect(relation, threshold, tail, ends):
    region = RELATIONS[relation].compute_region(threshold)
    result = simulate_seeds_to_decide(OF_FOUR, region, tail)
    assert result.ends == ends
    assert result.low is result.high is None

    def measure_decision_rate(n):
        samples = [
            ProportionDifferences(np.random.default_rng([7, k]).choice(OF_FOUR, n)) for k in range(1000)
        ]
        above = np.array(
            [evidence.p_above(region[0]) <= tail if np.isfinite(region[0]) else True for evidence in samples]
        )
        below = np.array(
            [evidence.p_below(region[1]) <= tail if np.isfinite(region[1]) else True for evidence in samples]
        )
        if ends == "support":
            return (above & below).mean()
        return np.mean([evidence.p_above(region[1]) <= tail for evidence in samples])

    error = 3 * np.sqrt(0.16 / 200) + 3 * np.sqrt(0.16 / 1000)  # of 200 sweeps there, and of a thousand here
    assert measure_decision_rate(result.seeds - 1) < 0.8 + error
    assert measure_decision_rate(result.seeds) > 0.8 - error


@pytest.mark.parametrize(("values", "seeds"), [([0.25, -0.25], None), ([0.1], 0), ([0.5, 0.5, 0.5], 0)])
def test_proportions_at_the_threshold_or_without_spread_are_never_decided(values, seeds):
    result = simulate_seeds_to_decide(values, (0.0, np.inf), 0.025)
    assert result is None if seeds == 0 else result.seeds is None


STEPS = np.array([-300, -200, -150, -100, -50, 0, 100, 250, np.inf, np.nan])  # NaN: both runs failed


@pytest.mark.parametrize(
    ("relation", "threshold", "ends"),
    [("below", 260.0, "support"), ("above", 260.0, "refute"), ("within", 280.0, "support")],
)
def test_seeds_to_decide_a_median_are_just_enough_at_the_observed_order(relation, threshold, ends):
    tail, region = 0.05, RELATIONS[relation].compute_region(threshold)
    result = simulate_seeds_to_decide_median(RankDifferences(STEPS), region, tail)
    assert result.ends == ends
    assert result.low is result.high is None

    def measure_decision_rate(n):
        decided = []
        for k in range(1000):
            evidence = RankDifferences(np.random.default_rng([7, k]).choice(STEPS, n))
            p_values = [evidence.p_below(260.0 if relation != "within" else 280.0)]
            p_values += [evidence.p_above(-280.0)] if relation == "within" else []
            decided.append(max(p_values) <= tail)
        return np.mean(decided)

    error = 3 * np.sqrt(0.16 / 200) + 3 * np.sqrt(0.16 / 1000)  # of 200 sweeps there, and of a thousand here
    assert measure_decision_rate(result.seeds - 1) < 0.8 + error
    assert measure_decision_rate(result.seeds) > 0.8 - error


def test_a_median_at_the_threshold_or_without_spread_is_never_decided():
    def simulate(*values, **bounds):
        return simulate_seeds_to_decide_median(RankDifferences(values, **bounds), (0.0, np.inf), 0.025)

    assert simulate(-1, 1).seeds is None
    assert simulate(np.inf, np.inf) is None
    assert simulate(1.0, np.nan) is None
    assert simulate(-np.inf, np.inf).seeds is None
    assert simulate(1.0, 2.0).seeds < 10
    assert simulate(1.0, 2.0, bounds=([-np.inf] * 2, [1.0, 2.0])).seeds is None  # known only from above


@pytest.mark.parametrize(("n", "effect"), [(2, 3.0), (5, 1.0), (20, 0.9)])
def test_power_between_groups_equals_the_noncentral_t(n, effect):
    df, noncentrality = 2 * n - 2, effect * (n / 2) ** 0.5
    critical = scipy_stats.t.ppf(0.975, df)
    tails = scipy_stats.nct.sf(critical, df, noncentrality) + scipy_stats.nct.cdf(
        -critical, df, noncentrality
    )
    assert compute_group_power(n, effect) == pytest.approx(tails, abs=1e-10)


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
@pytest.mark.parametrize("alpha", [0.05, 1e-5])
def test_without_an_effect_the_power_is_alpha(n, alpha):
    """Also where the chance of detection changes within a thousandth of the integral."""
    assert compute_power(n, 0.0, alpha) == pytest.approx(alpha, rel=1e-8)


def test_detectable_effect_and_runs_needed_invert_the_power():
    effect = find_detectable_group_effect(10)
    assert effect == pytest.approx(1.3249, abs=1e-4)  # Cohen's tables: 10 per group, 80%, 5% two-sided
    assert compute_group_power(10, effect) == pytest.approx(0.8, abs=1e-8)
    assert find_group_seeds_needed(0.5) == 64  # Cohen 1988, table 2.4.1
    assert find_group_seeds_needed(1e-6) is None


def test_interval_of_a_standard_deviation_covers():
    samples = np.random.default_rng(0).normal(0, 2, (4000, 6)).std(axis=1, ddof=1)
    bounds = np.array([estimate_sd_bounds(sd, 6) for sd in samples])
    assert ((bounds[:, 0] <= 2) & (bounds[:, 1] >= 2)).mean() == pytest.approx(0.9, abs=0.015)
    with pytest.raises(ValueError, match="n=1"):
        estimate_sd_bounds(1.0, 1)
