"""Sensitivity analyses: sign flips, leave-one-out, pairing, outliers."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.stats import (
    compute_leave_one_out_range,
    decide_by_sign_flips,
    flag_outliers,
    measure_pairing_gain,
    run_sign_flip_test,
)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_sign_flip_agrees_with_scipys_exact_permutation_test(n):
    values = np.random.default_rng(n).normal(0.5, 1, n)
    expected = (
        1.0
        if n == 1
        else scipy_stats.permutation_test(
            (values, np.zeros(n)), lambda a, b: np.mean(a - b), permutation_type="samples"
        ).pvalue
    )
    assert run_sign_flip_test(values).p == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "floor"), [(3, 0.25), (5, 0.0625), (6, 0.03125), (40, 2.0**-39)])
def test_equal_signs_reach_the_floor(n, floor):
    result = run_sign_flip_test(np.full(n, 0.1))
    assert (result.p, result.floor) == (floor, floor)


def test_ties_count_as_extreme():
    assert run_sign_flip_test([0.1, 0.2, -0.3]).p == 1.0
    assert run_sign_flip_test([0.1, 0.2, 0.3, -0.6]).p == 1.0
    assert run_sign_flip_test([0.1, 0.2, 0.3, 0.0]).p == 0.25  # the zero has no sign


def test_too_many_pairs_are_not_enumerated():
    assert run_sign_flip_test(np.ones(41)).p is None


def test_leave_one_out_gives_the_range_of_the_mean():
    assert compute_leave_one_out_range([1.0, 2.0, 6.0]) == (1.5, 4.0)
    assert compute_leave_one_out_range([1.0]) is None


def test_pairing_removes_common_noise():
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 3, 4000)
    result = measure_pairing_gain(shared + rng.normal(0, 1, 4000), shared + rng.normal(0, 1, 4000))
    assert result.correlation == pytest.approx(0.9, abs=0.01)
    assert result.gain == pytest.approx(10, rel=0.1)


def test_independent_arms_gain_nothing_by_pairing():
    result = measure_pairing_gain(*np.random.default_rng(2).normal(0, 1, (2, 4000)))
    assert (result.correlation, result.gain) == (pytest.approx(0, abs=0.05), pytest.approx(1, abs=0.05))


@pytest.mark.parametrize(
    ("a", "b", "correlation", "gain"),
    [([1.0], [2.0], None, None), ([1.0, 1.0], [2.0, 3.0], None, 1.0), ([1.0, 2.0], [2.0, 3.0], 1.0, None)],
)
def test_pairing_gain_is_none_where_undefined(a, b, correlation, gain):
    assert (measure_pairing_gain(a, b).correlation, measure_pairing_gain(a, b).gain) == (
        pytest.approx(correlation),
        gain,
    )


def test_pairing_gain_rejects_incomplete_pairs():
    with pytest.raises(ValueError, match="complete pairs"):
        measure_pairing_gain([1.0, 2.0], [1.0])


def test_outlying_seed_is_flagged():
    values = [0.1, 0.12, 0.09, 0.11, 0.1, 0.9]
    assert flag_outliers(values) == [False] * 5 + [True]
    assert not any(flag_outliers(np.random.default_rng(0).normal(size=30)))
    assert not any(flag_outliers([0.1, 0.1, 0.1, 5.0]))  # more than half are equal: no distance to go by
    assert not any(flag_outliers([0.0, 0.1, 9.0]))


@pytest.mark.parametrize(("n", "rate"), [(4, 0.1), (5, 0.13), (8, 0.06), (16, 0.025)])
def test_normal_noise_has_outliers_at_the_documented_rate(n, rate):
    samples = np.random.default_rng(n).normal(size=(2000, n))
    observed = np.mean([any(flag_outliers(sample)) for sample in samples])
    assert observed == pytest.approx(rate, abs=0.005 + 3 * np.sqrt(rate / 2000))


@pytest.mark.parametrize(
    ("values", "region", "holds"),
    [
        ([0.1, 0.2, 0.15, 0.12, 0.11, 0.13], (0.0, np.inf), True),
        ([-0.1, -0.2, -0.15, -0.12, -0.11, -0.13], (0.0, np.inf), False),
        ([0.1, -0.2, 0.15, 0.12, -0.11, 0.13], (0.0, np.inf), None),
        ([0.01, -0.02, 0.015, 0.012, -0.011, 0.013], (-0.03, 0.03), True),
        ([0.04, 0.05, 0.06, 0.045, 0.044, 0.051], (-0.03, 0.03), False),
    ],
)
def test_sign_flips_decide_the_claim(values, region, holds):
    result = decide_by_sign_flips(values, region, 0.025)
    assert (result.holds, result.able) == (holds, True)


def test_sign_flips_of_few_pairs_cannot_reach_a_small_tail():
    result = decide_by_sign_flips([0.1, 0.2, 0.15], (0.0, np.inf), 0.025)
    assert (result.able, result.holds, result.p) == (False, None, 1 / 8)
