"""Two independent groups: Welch's t, and intervals that hold after any numbers of runs."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.stats import AnytimeValid, GroupDifferences, GroupSequential

A, B = [3.1, 2.9, 3.4, 3.0], [2.7, 2.95, 2.6, 2.8, 2.65, 2.9]


def test_fixed_sample_equals_welch():
    evidence = GroupDifferences(B, A)
    expected = scipy_stats.ttest_ind(B, A, equal_var=False)
    low, high = expected.confidence_interval(0.9)
    assert evidence.interval(0.9) == pytest.approx((low, high), rel=1e-12)
    assert 2 * evidence.p_below(0.0) == pytest.approx(expected.pvalue, rel=1e-12)
    assert evidence.p_above(0.0) == pytest.approx(1 - expected.pvalue / 2, rel=1e-12)
    shifted = scipy_stats.ttest_ind(np.array(B) + 0.1, A, equal_var=False, alternative="less")
    assert evidence.p_below(-0.1) == pytest.approx(shifted.pvalue, rel=1e-10)
    assert (evidence.n, evidence.counts) == (10, (6, 4))
    assert evidence.estimate == pytest.approx(np.mean(B) - np.mean(A))


def test_anytime_interval_agrees_with_its_p_value_and_is_wider():
    values, against = np.random.default_rng(0).normal([[1.0], [0.0]], 0.3, (2, 12))
    evidence = GroupDifferences(values, against, AnytimeValid())
    low, high = evidence.interval(0.95)
    fixed_low, fixed_high = GroupDifferences(values, against).interval(0.95)
    assert low < fixed_low < fixed_high < high
    assert evidence.p_above(low) == pytest.approx(0.025, rel=1e-6)
    assert evidence.p_below(high) == pytest.approx(0.025, rel=1e-6)
    assert evidence.p_above(evidence.estimate + 0.1) == 1.0
    assert 1e-15 <= evidence.p_above(-1e6) < 1e-8  # 12 runs cannot show more


def test_anytime_errors_stay_below_alpha_over_all_numbers_of_runs():
    """Look at many numbers of runs on either side, up to thirty; the difference is 0."""
    samples = np.random.default_rng(1).normal(0, 1, (150, 2, 30))
    wrong = fixed_wrong = 0
    for values, against in samples:
        looks = [(n, n) for n in range(4, 31, 2)] + [(n, n - 1) for n in range(5, 31, 3)]
        wrong += any(
            GroupDifferences(values[:n], against[:m], AnytimeValid()).p_below(0.0) <= 0.025 for n, m in looks
        )
        fixed_wrong += any(GroupDifferences(values[:n], against[:m]).p_below(0.0) <= 0.025 for n, m in looks)
    assert wrong / 150 <= 0.025
    assert fixed_wrong / 150 > 0.05  # a fixed design does not allow this


def test_equal_values_are_no_evidence():
    evidence = GroupDifferences([2.0, 2.0], [1.0, 1.0])
    assert evidence.estimate == 1.0
    assert evidence.interval(0.95) is evidence.p_above(0.0) is evidence.p_below(0.0) is None
    assert GroupDifferences([2.0, 2.0, 2.0], [1.0, 1.1, 0.9], AnytimeValid()).interval(0.5) is None


@pytest.mark.parametrize("values", [[1.0], [], [1.0, np.nan], [1.0, np.inf]])
def test_too_few_or_infinite_values_are_rejected(values):
    with pytest.raises(ValueError, match="groups"):
        GroupDifferences(values, [1.0, 2.0])


def test_interim_analyses_of_groups_keep_their_alpha():
    """Looks at 4, 6, 9, 12 and 16 runs a side; the difference is 0."""
    samples = np.random.default_rng(2).normal(0, [[[1.0], [1.5]]], (1500, 2, 16))
    looks = (4, 6, 9, 12, 16)
    wrong = fixed_wrong = 0
    for values, against in samples:
        rules = [GroupSequential(looks, index) for index in range(len(looks))]
        pairs = [(values[:n], against[:n], rule) for n, rule in zip(looks, rules, strict=True)]
        wrong += any(GroupDifferences(a, b, rule).p_below(0.0) <= 0.025 for a, b, rule in pairs)
        fixed_wrong += any(GroupDifferences(a, b).p_below(0.0) <= 0.025 for a, b, _ in pairs)
    assert 0.01 <= wrong / 1500 <= 0.033  # within two standard errors of at most 0.025
    assert fixed_wrong / 1500 > 0.05


def test_an_interim_analysis_agrees_with_its_p_value():
    values, against = np.random.default_rng(3).normal([[1.0], [0.0]], 0.3, (2, 6))
    evidence = GroupDifferences(values, against, GroupSequential((4, 6, 9), 1))
    low, high = evidence.interval(0.95)
    assert evidence.p_above(low) == pytest.approx(0.025, rel=1e-3)
    assert evidence.p_below(high) == pytest.approx(0.025, rel=1e-3)
