"""Effects on several texts, and how often a small size decides as a large one does."""

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.meta_analysis import combine_effects

from attnlab.stats.across import Text, agreement, texts

EFFECTS, VARIANCES = [0.061, -0.012, 0.034, 0.105, 0.048], [0.0004, 0.0009, 0.0002, 0.0006, 0.0005]


def of(effects, errors, df=7):
    return [Text(f"text{i}", e, s, df) for i, (e, s) in enumerate(zip(effects, errors, strict=True))]


def test_the_mean_and_its_interval_are_hartungs_knapps_sidiks_and_jonkmans():
    known = combine_effects(
        np.array(EFFECTS), np.array(VARIANCES), method_re="iterated", use_t=True, atol=1e-12
    )
    seen = texts(of(EFFECTS, np.sqrt(VARIANCES)))
    assert seen.tau**2 == pytest.approx(known.tau2, rel=1e-6)
    assert seen.mean.estimate == pytest.approx(known.mean_effect_re)
    assert seen.mean.interval == pytest.approx(known.conf_int()[3], rel=1e-6)


def test_by_hand():
    """Three texts of the same standard error: mean 3, variance 4 = 1 + tau^2, so the standard error is
    sqrt(4 / 3); t is 4.303 with 2 degrees of freedom and 12.706 with 1.
    """
    seen = texts(of([1.0, 3.0, 5.0], [1.0, 1.0, 1.0]))
    assert seen.tau == pytest.approx(3**0.5)
    assert seen.mean.interval == pytest.approx((3 - 4.3027 * 1.1547, 3 + 4.3027 * 1.1547), abs=1e-3)
    half = 12.7062 * (3 + 4 / 3) ** 0.5
    assert seen.new.interval == pytest.approx((3 - half, 3 + half), abs=1e-2)
    assert seen.difference is None


def test_texts_that_agree_too_well_are_no_surer_than_their_seeds():
    seen = texts(of([0.05, 0.0501, 0.0499], [0.01] * 3))
    assert seen.tau == 0
    half = scipy_stats.t.ppf(0.975, 2) * 0.01 / 3**0.5
    assert seen.mean.interval == pytest.approx((0.05 - half, 0.05 + half))


def test_two_texts_are_shown_and_not_averaged():
    seen = texts([Text("a", 0.02, 0.003, 3), Text("b", 0.05, 0.006, 7)])
    assert (seen.mean, seen.tau, seen.new) == (None, None, None)
    df = (9 + 36) ** 2 / (81 / 3 + 36**2 / 7)
    half = scipy_stats.t.ppf(0.975, df) * 45**0.5 / 1000
    assert seen.difference.interval == pytest.approx((-0.03 - half, -0.03 + half))
    assert seen.says.endswith("it differs by text")
    assert "0.02 [" in seen.says
    near = texts([Text("a", 0.02, 0.003, 3), Text("b", 0.021, 0.006, 7)])
    assert near.says.endswith("that it differs by text is not shown")


def test_one_text_says_nothing_of_others():
    seen = texts([Text("a", 0.02, 0.003, 3)])
    assert (seen.mean, seen.difference) == (None, None)
    assert "not known" in seen.says
    assert seen.texts[0][1].high == pytest.approx(0.02 + scipy_stats.t.ppf(0.975, 3) * 0.003)


def test_the_mean_is_held_as_often_as_it_says():
    draw, held = np.random.default_rng(0), 0
    for _ in range(400):
        errors = np.sqrt(draw.chisquare(7, 4) / 7)
        seen = texts(of(draw.normal(0, 2, 4) + draw.normal(size=4), errors))
        held += seen.mean.low <= 0 <= seen.mean.high
    assert 0.92 < held / 400 < 0.985


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "need a flat list"),
        ([Text("a", 1, 1, 3), Text("a", 1, 1, 3)], "a text comes twice"),
        ([Text("a", 1, 0, 3)], "text a: se=0"),
        ([Text("a", 1, 1, 0)], "df=0"),
        ([Text("a", float("nan"), 1, 3)], "nan at position 0"),
    ],
)
def test_what_is_no_effect_on_a_text_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        texts(given)


def test_agreement_counts_what_both_decided():
    verdicts = [
        *[("SUPPORTED", "SUPPORTED")] * 6,
        *[("REFUTED", "REFUTED")] * 2,
        ("SUPPORTED", "REFUTED"),
        *[("INCONCLUSIVE", "REFUTED")] * 3,
        ("NO RESULT", "INCONCLUSIVE"),
        ("REFUTED", "INCONCLUSIVE"),
    ]
    seen = agreement(verdicts)
    assert (seen.alike, seen.opposite, seen.small_open, seen.large_open) == (8, 1, 4, 1)
    known = scipy_stats.binomtest(8, 9).proportion_ci(0.95, method="exact")
    assert (seen.share.low, seen.share.high) == pytest.approx((known.low, known.high))
    assert agreement([("INCONCLUSIVE", "REFUTED")]).share is None
    assert agreement([]).share is None
