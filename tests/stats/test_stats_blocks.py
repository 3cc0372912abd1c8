import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnlab.stats import Question, decide, median_interval, ratio_draws, ratio_of_medians


def times(seed: int, blocks: int = 30, slower: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Two arms in ABBA blocks, under a drift that both see."""
    rng = np.random.default_rng(seed)
    drift = np.exp(rng.normal(0, 0.3, (blocks, 1)))
    a, b = rng.normal(1, 0.02, (2, blocks, 2))
    return slower * drift * a, drift * b


def test_the_ratio_of_medians_is_one_and_repeats_itself():
    a, b = times(0, slower=1.5)
    found = ratio_of_medians(a, b, seed=7)
    assert found == ratio_of_medians(a, b, seed=7)
    assert found != ratio_of_medians(a, b, seed=8)
    assert found.estimate == np.median(a) / np.median(b)
    assert found.low < 1.5 < found.high
    assert found.n == 30


def test_one_number_per_block_is_a_table_of_one_column():
    a, b = times(1)
    assert ratio_of_medians(a[:, 0], b[:, 0]) == ratio_of_medians(a[:, :1], b[:, :1])


def test_blocks_keep_drift_out_of_the_ratio():
    a, b = times(2)
    shuffled = np.random.default_rng(2).permutation(b)
    together, apart = ratio_of_medians(a, b), ratio_of_medians(a, shuffled)
    assert together.high - together.low < 0.6 * (apart.high - apart.low)


def test_the_ratios_interval_covers_the_true_ratio():
    covered = []
    for seed in range(150):
        low, high = ratio_draws(*times(seed, 20, 1.2), seed=seed, resamples=399).interval(0.95)
        covered.append(low <= 1.2 <= high)
    assert 0.88 < np.mean(covered) <= 1


def test_a_measured_ratio_is_evidence_for_a_claim():
    ratio = ratio_draws(*times(3, slower=0.8))
    (decision,) = decide([Question(ratio, (-math.inf, 0.9), center=1.0)])
    assert decision.high < 0.9
    assert decision.p_holm < 0.001


def test_one_block_has_a_ratio_and_no_interval():
    found = ratio_of_medians([[1.0, 2.0, 3.0]], [[1.0, 1.0, 1.0]])
    assert (found.n, found.estimate, found.interval) == (1, 2.0, None)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ([1.0, 2.0], [1.0], "equally many"),
        ([0.0, 1.0], [1.0, 1.0], "not positive"),
        ([1.0, np.nan], [1.0, 1.0], "nan"),
        ([], [], "at least 1"),
        (1.0, 2.0, "shape"),
    ],
)
def test_times_that_cannot_be_compared_are_refused(a, b, said):
    with pytest.raises(ValueError, match=said):
        ratio_of_medians(a, b)


@pytest.mark.parametrize("n", [6, 7, 20, 51])
def test_the_medians_interval_is_the_narrowest_pair_of_order_statistics_that_covers(n):
    values = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    found = median_interval(values)
    out = scipy_stats.binom.cdf(int(found.low) - 1, n, 0.5)  # chance of a median below the low end
    assert found.estimate == np.median(values)
    assert out <= 0.025 < scipy_stats.binom.cdf(int(found.low), n, 0.5)
    assert found.high == n + 1 - found.low


def test_five_samples_have_no_interval_of_95_percent():
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]).interval is None
    assert median_interval([2.0] * 8).interval == (2.0, 2.0)
