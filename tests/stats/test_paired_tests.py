"""Paired tests against scipy and statsmodels."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.weightstats import DescrStatsW

from attnlab.stats import (
    ExactEvidence,
    PairedDifferences,
    compute_region_p_value,
    estimate_paired_difference,
)
from attnlab.stats.evidence import BootstrapDraws

SAMPLES = [np.random.default_rng(n).normal(0.01, 0.02, n) for n in (2, 3, 6, 11, 31)]


@pytest.mark.parametrize("sample", SAMPLES, ids=len)
@pytest.mark.parametrize("level", [0.9, 0.95, 0.983])
def test_paired_estimate_equals_scipys_paired_t_test(sample, level):
    base = np.linspace(2, 3, len(sample))
    result, expected = estimate_paired_difference(sample, level), scipy_stats.ttest_rel(base + sample, base)
    interval = expected.confidence_interval(level)
    assert result.n == len(sample)
    assert (result.mean, result.sd) == pytest.approx((sample.mean(), sample.std(ddof=1)), rel=1e-12)
    assert result.interval == pytest.approx((interval.low, interval.high), abs=1e-10)
    assert result.p == pytest.approx(expected.pvalue, abs=1e-10)


def test_paired_interval_has_nominal_coverage():
    draws = np.random.default_rng(0).normal(0.3, 1, (20_000, 6))
    low, high = np.array([PairedDifferences(row).interval(0.95) for row in draws]).T
    assert 0.93 < np.mean((low < 0.3) & (high > 0.3)) < 0.97


@pytest.mark.parametrize("sample", SAMPLES, ids=len)
@pytest.mark.parametrize("margin", [0.005, 0.02, 0.1])
def test_tost_agrees_with_statsmodels(sample, margin):
    expected = DescrStatsW(sample).ttost_mean(-margin, margin)[0]
    p = compute_region_p_value(PairedDifferences(sample), (-margin, margin))
    assert p == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("alpha", [0.05, 0.05 / 3, 0.001])
@pytest.mark.parametrize("margin", [0.012, 0.02, 0.03, 0.05])
def test_interval_and_p_value_of_equivalence_agree(alpha, margin):
    for sample in SAMPLES:
        evidence = PairedDifferences(sample)
        low, high = evidence.interval(1 - 2 * alpha)
        p = compute_region_p_value(evidence, (-margin, margin))
        assert (p <= alpha) == (-margin < low and high < margin)


def test_noninferiority_equals_scipys_one_sided_test():
    sample = SAMPLES[2]
    expected = scipy_stats.ttest_1samp(sample, 0.03, alternative="less")
    bound = expected.confidence_interval(0.95).high
    evidence = PairedDifferences(sample)
    assert evidence.interval(0.9)[1] == pytest.approx(bound, abs=1e-10)
    p = compute_region_p_value(evidence, (-math.inf, 0.03))
    assert p == pytest.approx(expected.pvalue, abs=1e-10)
    assert p == compute_region_p_value(PairedDifferences(-sample), (-0.03, math.inf))


def test_one_pair_has_only_a_mean():
    result = estimate_paired_difference([0.25])
    assert (result.n, result.mean, result.sd, result.interval, result.p) == (1, 0.25, None, None, None)
    assert compute_region_p_value(PairedDifferences([0.0]), (-1.0, 1.0)) is None


@pytest.mark.parametrize("values", [[0.1] * 3, [0.0] * 2, [0.1, 0.1 + 1e-17, 0.30000000000000004 - 0.2]])
def test_ties_are_no_evidence(values):
    result = estimate_paired_difference(values)
    assert (result.interval, result.p, result.tied) == (None, None, True)
    assert compute_region_p_value(PairedDifferences(values), (-0.2, 0.2)) is None


@pytest.mark.parametrize("bad", [[], [0.1, math.nan], [math.inf], [[1.0, 2.0]]], ids=str)
def test_invalid_differences_are_rejected(bad):
    with pytest.raises(ValueError, match="differences: "):
        estimate_paired_difference(bad)


def test_impossible_level_is_rejected():
    with pytest.raises(ValueError, match="level"):
        estimate_paired_difference([1, 2], level=95)


@pytest.mark.parametrize(("value", "p"), [(0.4, 0.0), (0.5, 1.0), (0.6, 1.0)])
def test_exact_value_is_certain_and_excludes_its_threshold(value, p):
    assert compute_region_p_value(ExactEvidence(value), (-math.inf, 0.5)) == p


@pytest.mark.parametrize(
    ("values", "low", "high", "estimate"),
    [([0.0, 0.0, 0.0], 0, 0, 0), ([0.0, 1e-9, 0.0], 0, 1e-9, 1e-9), ([0.1, 0.0, -0.3], -0.3, 0.1, -0.3)],
)
def test_identity_holds_only_if_every_pair_does(values, low, high, estimate):
    result = ExactEvidence(*values)
    assert (result.n, result.interval(0.95), result.estimate) == (3, (low, high), estimate)
    assert compute_region_p_value(result, (-1e-12, 1e-12)) == (0.0 if high == low == 0 else 1.0)
    assert compute_region_p_value(result, (-0.5, 0.5)) == 0.0
    with pytest.raises(ValueError, match="exact value: nan at position 1"):
        ExactEvidence(0.0, math.nan)


def test_bootstrap_p_value_counts_draws_on_the_wrong_side():
    draws = BootstrapDraws(20, 0.5, np.arange(99) / 99)
    assert draws.p_above(9.5 / 99) == (1 + 10) / (1 + 99)
    assert draws.p_below(89.5 / 99) == (1 + 9) / (1 + 99)
