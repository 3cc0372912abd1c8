"""Random effects over corpora, and decision accuracy between sizes."""

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.meta_analysis import combine_effects

from attnlab.stats.replications.decision_accuracy import compute_decision_accuracy
from attnlab.stats.replications.random_effects import CorpusEffect, combine_corpora

EFFECTS, VARIANCES = [0.061, -0.012, 0.034, 0.105, 0.048], [0.0004, 0.0009, 0.0002, 0.0006, 0.0005]


def build_corpora(effects, errors, df=7):
    return [CorpusEffect(f"text{i}", e, s, df) for i, (e, s) in enumerate(zip(effects, errors, strict=True))]


def test_mean_and_interval_equal_those_of_statsmodels():
    expected = combine_effects(
        np.array(EFFECTS), np.array(VARIANCES), method_re="iterated", use_t=True, atol=1e-12
    )
    result = combine_corpora(build_corpora(EFFECTS, np.sqrt(VARIANCES)))
    assert result.tau**2 == pytest.approx(expected.tau2, rel=1e-6)
    assert result.mean.estimate == pytest.approx(expected.mean_effect_re)
    assert result.mean.interval == pytest.approx(expected.conf_int()[3], rel=1e-6)


def test_three_corpora_equal_the_hand_calculation():
    """Three texts of the same standard error: mean 3, variance 4 = 1 + tau^2, so the standard error is
    sqrt(4 / 3); t is 4.303 with 2 degrees of freedom and 12.706 with 1.
    """
    result = combine_corpora(build_corpora([1.0, 3.0, 5.0], [1.0, 1.0, 1.0]))
    assert result.tau == pytest.approx(3**0.5)
    assert result.mean.interval == pytest.approx((3 - 4.3027 * 1.1547, 3 + 4.3027 * 1.1547), abs=1e-3)
    half = 12.7062 * (3 + 4 / 3) ** 0.5
    assert result.new_corpus.interval == pytest.approx((3 - half, 3 + half), abs=1e-2)
    assert result.difference is None


def test_interval_is_never_narrower_than_without_spread():
    result = combine_corpora(build_corpora([0.05, 0.0501, 0.0499], [0.01] * 3))
    assert result.tau == 0
    half = scipy_stats.t.ppf(0.975, 2) * 0.01 / 3**0.5
    assert result.mean.interval == pytest.approx((0.05 - half, 0.05 + half))


def test_two_corpora_are_shown_and_not_averaged():
    result = combine_corpora([CorpusEffect("a", 0.02, 0.003, 3), CorpusEffect("b", 0.05, 0.006, 7)])
    assert (result.mean, result.tau, result.new_corpus) == (None, None, None)
    df = (9 + 36) ** 2 / (81 / 3 + 36**2 / 7)
    half = scipy_stats.t.ppf(0.975, df) * 45**0.5 / 1000
    assert result.difference.interval == pytest.approx((-0.03 - half, -0.03 + half))
    assert result.difference.high < 0
    close = combine_corpora([CorpusEffect("a", 0.02, 0.003, 3), CorpusEffect("b", 0.021, 0.006, 7)])
    assert close.difference.low < 0 < close.difference.high


def test_mean_interval_has_nominal_coverage():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        errors = np.sqrt(rng.chisquare(7, 4) / 7)
        result = combine_corpora(build_corpora(rng.normal(0, 2, 4) + rng.normal(size=4), errors))
        covered += result.mean.low <= 0 <= result.mean.high
    assert 0.92 < covered / 400 < 0.985


@pytest.mark.parametrize(
    ("corpora", "message"),
    [
        ([], "need a flat list"),
        ([CorpusEffect("a", 1, 1, 3)], "at least 2"),
        ([CorpusEffect("a", 1, 1, 3), CorpusEffect("a", 1, 1, 3)], "duplicate corpus"),
        ([CorpusEffect("a", 1, 0, 3), CorpusEffect("b", 1, 1, 3)], "corpus a: se=0"),
        ([CorpusEffect("a", 1, 1, 3), CorpusEffect("b", 1, 1, 0)], "corpus b: se=1, df=0"),
        ([CorpusEffect("a", float("nan"), 1, 3), CorpusEffect("b", 1, 1, 3)], "nan at position 0"),
    ],
)
def test_invalid_corpus_effects_are_rejected(corpora, message):
    with pytest.raises(ValueError, match=message):
        combine_corpora(corpora)


def test_decision_accuracy_counts_claims_that_both_decided():
    verdicts = [
        *[("SUPPORTED", "SUPPORTED")] * 6,
        *[("REFUTED", "REFUTED")] * 2,
        ("SUPPORTED", "REFUTED"),
        *[("INCONCLUSIVE", "REFUTED")] * 3,
        ("NO RESULT", "INCONCLUSIVE"),
        ("REFUTED", "INCONCLUSIVE"),
    ]
    result = compute_decision_accuracy(verdicts)
    assert (result.same, result.opposite, result.small_inconclusive, result.large_inconclusive) == (
        8,
        1,
        4,
        1,
    )
    expected = scipy_stats.binomtest(8, 9).proportion_ci(0.95, method="exact")
    assert (result.proportion.low, result.proportion.high) == pytest.approx((expected.low, expected.high))
    assert compute_decision_accuracy([("INCONCLUSIVE", "REFUTED")]).proportion is None
    assert compute_decision_accuracy([]).proportion is None
