import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.stats import flipped, leave_one_out, outliers, pairing, sign_flip


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_sign_flip_agrees_with_scipys_exact_permutation_test(n):
    values = np.random.default_rng(n).normal(0.5, 1, n)
    known = (
        1.0
        if n == 1
        else scipy_stats.permutation_test(
            (values, np.zeros(n)), lambda a, b: np.mean(a - b), permutation_type="samples"
        ).pvalue
    )
    assert sign_flip(values).p == pytest.approx(known, abs=1e-12)


@pytest.mark.parametrize(("n", "floor"), [(3, 0.25), (5, 0.0625), (6, 0.03125), (40, 2.0**-39)])
def test_all_of_one_sign_reaches_the_floor(n, floor):
    found = sign_flip(np.full(n, 0.1))
    assert (found.p, found.floor) == (floor, floor)


def test_ties_count_as_at_least_as_far():
    assert sign_flip([0.1, 0.2, -0.3]).p == 1.0
    assert sign_flip([0.1, 0.2, 0.3, -0.6]).p == 1.0
    assert sign_flip([0.1, 0.2, 0.3, 0.0]).p == 0.25  # the zero has no sign


def test_too_many_pairs_are_not_enumerated():
    assert sign_flip(np.ones(41)).p is None


def test_leaving_one_out_gives_the_range_of_the_mean():
    assert leave_one_out([1.0, 2.0, 6.0]) == (1.5, 4.0)
    assert leave_one_out([1.0]) is None


def test_pairing_removes_what_the_arms_share():
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 3, 4000)
    found = pairing(shared + rng.normal(0, 1, 4000), shared + rng.normal(0, 1, 4000))
    assert found.correlation == pytest.approx(0.9, abs=0.01)
    assert found.gain == pytest.approx(10, rel=0.1)


def test_independent_arms_gain_nothing_by_pairing():
    found = pairing(*np.random.default_rng(2).normal(0, 1, (2, 4000)))
    assert (found.correlation, found.gain) == (pytest.approx(0, abs=0.05), pytest.approx(1, abs=0.05))


@pytest.mark.parametrize(
    ("a", "b", "correlation", "gain"),
    [([1.0], [2.0], None, None), ([1.0, 1.0], [2.0, 3.0], None, 1.0), ([1.0, 2.0], [2.0, 3.0], 1.0, None)],
)
def test_pairing_says_none_where_it_is_undefined(a, b, correlation, gain):
    assert (pairing(a, b).correlation, pairing(a, b).gain) == (pytest.approx(correlation), gain)


def test_pairing_refuses_incomplete_pairs():
    with pytest.raises(ValueError, match="complete pairs"):
        pairing([1.0, 2.0], [1.0])


def test_a_seed_far_from_the_others_is_named():
    values = [0.1, 0.12, 0.09, 0.11, 0.1, 0.9]
    assert outliers(values) == [False] * 5 + [True]
    assert not any(outliers(np.random.default_rng(0).normal(size=30)))
    assert not any(outliers([0.1, 0.1, 0.1, 5.0]))  # more than half are equal: no distance to go by
    assert not any(outliers([0.0, 0.1, 9.0]))


@pytest.mark.parametrize(
    ("values", "where", "holds"),
    [
        ([0.1, 0.2, 0.15, 0.12, 0.11, 0.13], (0.0, np.inf), True),
        ([-0.1, -0.2, -0.15, -0.12, -0.11, -0.13], (0.0, np.inf), False),
        ([0.1, -0.2, 0.15, 0.12, -0.11, 0.13], (0.0, np.inf), None),
        ([0.01, -0.02, 0.015, 0.012, -0.011, 0.013], (-0.03, 0.03), True),
        ([0.04, 0.05, 0.06, 0.045, 0.044, 0.051], (-0.03, 0.03), False),
    ],
)
def test_sign_flips_decide_the_claim_itself(values, where, holds):
    found = flipped(values, where, 0.025)
    assert (found.holds, found.able) == (holds, True)


def test_sign_flips_of_few_pairs_cannot_reach_a_small_tail():
    found = flipped([0.1, 0.2, 0.15], (0.0, np.inf), 0.025)
    assert (found.able, found.holds, found.p) == (False, None, 1 / 8)
