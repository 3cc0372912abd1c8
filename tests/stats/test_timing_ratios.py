"""Ratios of interleaved times: block bootstrap and exact median intervals."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.stats import (
    ClaimTest,
    bootstrap_ratio,
    decide_claims,
    estimate_median,
    estimate_ratio_of_medians,
)


def draw_times(seed: int, blocks: int = 30, slower: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Times of two arms in ABBA blocks, under a drift common to both."""
    rng = np.random.default_rng(seed)
    drift = np.exp(rng.normal(0, 0.3, (blocks, 1)))
    a, b = rng.normal(1, 0.02, (2, blocks, 2))
    return slower * drift * a, drift * b


def test_ratio_of_medians_is_exact_and_reproducible():
    a, b = draw_times(0, slower=1.5)
    result = estimate_ratio_of_medians(a, b, seed=7)
    assert result == estimate_ratio_of_medians(a, b, seed=7)
    assert result != estimate_ratio_of_medians(a, b, seed=8)
    assert result.estimate == np.median(a) / np.median(b)
    assert result.low < 1.5 < result.high
    assert result.n == 30


def test_one_number_per_block_equals_one_column():
    a, b = draw_times(1)
    assert estimate_ratio_of_medians(a[:, 0], b[:, 0]) == estimate_ratio_of_medians(a[:, :1], b[:, :1])


def test_block_pairing_removes_drift_from_the_ratio():
    a, b = draw_times(2)
    shuffled = np.random.default_rng(2).permutation(b)
    together, shuffled_ratio = estimate_ratio_of_medians(a, b), estimate_ratio_of_medians(a, shuffled)
    assert together.high - together.low < 0.6 * (shuffled_ratio.high - shuffled_ratio.low)


def test_ratio_interval_covers_the_true_ratio():
    covered = []
    for seed in range(150):
        low, high = bootstrap_ratio(*draw_times(seed, 20, 1.2), seed=seed, resamples=399).interval(0.95)
        covered.append(low <= 1.2 <= high)
    assert 0.88 < np.mean(covered) <= 1


def test_measured_ratio_is_evidence_for_a_claim():
    ratio = bootstrap_ratio(*draw_times(3, slower=0.8))
    (decision,) = decide_claims([ClaimTest(ratio, (-math.inf, 0.9), center=1.0)])
    assert decision.high < 0.9
    assert decision.p_holm < 0.001


def test_one_block_has_no_interval():
    result = estimate_ratio_of_medians([[1.0, 2.0, 3.0]], [[1.0, 1.0, 1.0]])
    assert (result.n, result.estimate, result.interval) == (1, 2.0, None)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1.0, 2.0], [1.0], "the same number"),
        ([0.0, 1.0], [1.0, 1.0], "not positive"),
        ([1.0, np.nan], [1.0, 1.0], "nan"),
        ([], [], "at least 1"),
        (1.0, 2.0, "shape"),
    ],
)
def test_incomparable_times_are_rejected(a, b, message):
    with pytest.raises(ValueError, match=message):
        estimate_ratio_of_medians(a, b)


@pytest.mark.parametrize("n", [6, 7, 20, 51])
def test_median_interval_is_the_narrowest_covering_pair_of_order_statistics(n):
    values = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    result = estimate_median(values)
    tail = scipy_stats.binom.cdf(int(result.low) - 1, n, 0.5)  # chance of a median below the low end
    assert result.estimate == np.median(values)
    assert tail <= 0.025 < scipy_stats.binom.cdf(int(result.low), n, 0.5)
    assert result.high == n + 1 - result.low


def test_five_samples_have_no_95_percent_interval():
    assert estimate_median([1.0, 2.0, 3.0, 4.0, 5.0]).interval is None
    assert estimate_median([2.0] * 8).interval == (2.0, 2.0)
