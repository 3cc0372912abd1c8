"""Scaling verdicts: each verdict, undecidable ladders, and error rates."""

import calibration_ladders as simulate
import numpy as np
import pytest

from attnlab.stats.replications.ladder_sample import SizeSample, build_ladder_sample
from attnlab.stats.replications.scaling_verdict import (
    FLIPS,
    GROWS,
    HOLDS,
    INCONCLUSIVE,
    SCALING_VERDICTS,
    SHRINKS,
    apply_rule,
    compute_rule_inputs,
    decide_scaling_verdict,
)

NOISE = np.array([-1.2, 0.4, -0.3, 1.1, 0.7, -0.9, 0.6, -0.4])  # of mean 0


def decide_ladder(*effects, margin=1.0, sd=0.3, seeds=8):
    return decide_scaling_verdict(
        [SizeSample(i, effect + sd * NOISE[:seeds]) for i, effect in enumerate(effects)], margin
    )


@pytest.mark.parametrize(
    ("effects", "sd", "expected", "reason"),
    [
        ((0, 0, 0, 0), 0.3, HOLDS, "within the margin of 1"),
        ((5, 5.1, 5.2, 5.3), 0.2, HOLDS, "within the margin"),
        ((5, 5.1, 5.2, 5.3), 0.05, HOLDS, "within the margin"),  # a significant change within the margin
        ((1, 2, 3, 4), 0.3, GROWS, "along the fitted line"),
        ((-1, -2, -3, -4), 0.3, GROWS, "along the fitted line"),
        ((4, 3, 2, 1), 0.3, SHRINKS, "at the midpoint"),
        (
            (0, 2.1, 2.7, 3),
            0.3,
            GROWS,
            "along the fitted line",
        ),  # though the largest is not where the others point
        ((2, 1, -1, -2), 0.3, FLIPS, "in [−2."),
        ((-0.4, -0.1, 0.2, 0.45), 0.3, FLIPS, "in [0."),  # by less than the margin: the sign decides
        ((0, 1.5, 1.5, 0), 0.3, INCONCLUSIVE, "the largest size differs from the prediction from the others"),
        ((-0.5, -0.17, 0.17, 0.5), 0.75, INCONCLUSIVE, "may pass through 0"),
        ((0, 0.2, 0.4, 0.6), 0.8, INCONCLUSIVE, "reaches beyond the margin"),
        ((0, 0, 0, 0), 3, INCONCLUSIVE, "wider than twice the margin"),
    ],
)
def test_clear_ladder_has_its_verdict(effects, sd, expected, reason):
    result = decide_ladder(*effects, sd=sd)
    assert result.verdict == expected, result
    assert reason in result.reason


def test_sign_changes_no_verdict_and_a_smaller_margin_ends_holds():
    for effects in ((0, 0, 0, 0), (1, 2, 3, 4), (4, 3, 2, 1), (2, 1, -1, -2), (0, 0.3, 0.6, 0.9)):
        mirrored = decide_scaling_verdict(
            [SizeSample(i, -(e + 0.3 * NOISE)) for i, e in enumerate(effects)], 1.0
        )
        assert mirrored.verdict == decide_ladder(*effects).verdict
    assert decide_ladder(5, 5.1, 5.2, 5.3, margin=0.2).verdict != HOLDS


def test_holds_requires_the_end_sizes_to_agree_with_the_line():
    rng = np.random.default_rng(0)
    late = [
        SizeSample(i, rng.normal(e, 0.3, n))
        for i, (e, n) in enumerate(zip((0, 0, 0.1, 1.2), (64, 64, 64, 2), strict=True))
    ]
    result = compute_rule_inputs(build_ladder_sample(late))
    line, ends = result.change
    assert abs(line.estimate) + line.compute_half_width(0.05) < 1.2, "the line says that it holds"
    assert abs(ends.estimate) + ends.compute_half_width(0.05) >= 1.2
    assert decide_scaling_verdict(late, 1.2).verdict != HOLDS


@pytest.mark.parametrize(
    ("rungs", "reason"),
    [
        ([SizeSample(0, NOISE)], "1 ladder size:"),
        (
            [SizeSample(0, NOISE), SizeSample(1, NOISE)],
            "2 ladder sizes: a trend and its test need at least three",
        ),
        ([SizeSample(i, [0.5, 0.5, 0.5]) for i in range(4)], "the noise is unknown"),
        ([SizeSample(i, [0.5 + i]) for i in range(4)], "the noise is unknown"),
    ],
)
def test_ladders_without_known_noise_cannot_tell(rungs, reason):
    result = decide_scaling_verdict(rungs, 1.0)
    assert (result.verdict, result.seeds_needed) == (INCONCLUSIVE, None)
    assert reason in result.reason


@pytest.mark.parametrize("margin", [0, -1, float("nan"), float("inf")])
def test_invalid_margin_is_rejected(margin):
    with pytest.raises(ValueError, match="positive number of nats"):
        decide_scaling_verdict([SizeSample(i, NOISE) for i in range(3)], margin)


def test_one_seed_at_the_largest_size_decides_a_clear_ladder():
    rungs = [*(SizeSample(i, 1 + i + 0.1 * NOISE) for i in range(3)), SizeSample(3, [4.05])]
    assert decide_scaling_verdict(rungs, 1.0).verdict == GROWS


def test_seeds_needed_decide_with_80_percent_power():
    """With as many seeds at the largest size, 80% of ladders with the observed effects are decided."""
    seeds, rng = [16, 16, 8, 4], np.random.default_rng(5)
    values = [rng.normal(size=n) for n in seeds]
    values = [(v - v.mean()) / v.std(ddof=1) for v in values]  # observed effect 0 and sd 1
    result = decide_scaling_verdict([SizeSample(0.8 * i, v) for i, v in enumerate(values)], 1.05)
    assert result.verdict == INCONCLUSIVE
    assert 5 < result.seeds_needed.at_largest_size < 100
    assert result.seeds_needed.x == pytest.approx(3.2)
    assert result.seeds_needed.at_next_size is not None
    shares = []
    for n in (4, result.seeds_needed.at_largest_size):
        sample = simulate.draw_ladders("normal", "no effect", (16, 16, 8, n), 1.05, 2000)
        shares.append((apply_rule(compute_rule_inputs(sample), 1.05) == SCALING_VERDICTS.index(HOLDS)).mean())
    assert shares[0] < 0.5
    assert shares[1] == pytest.approx(0.8, abs=0.1)


def test_seeds_needed_are_none_where_no_number_decides():
    rungs = [SizeSample(i, n * NOISE[:3]) for i, n in enumerate((1, 1, 1))]
    result = decide_scaling_verdict([*rungs, SizeSample(3, 0.5 + NOISE)], 0.3)
    assert result.verdict == INCONCLUSIVE
    assert result.seeds_needed.at_largest_size is None, "the others' noise alone is wider than the margin"


@pytest.mark.parametrize(
    ("noise", "seeds"),
    [
        ("normal", (16, 16, 8, 3)),
        ("normal", (8, 8, 8, 8)),
        ("noise falls with size", (16, 16, 8, 4)),
        ("noise rises with size", (12, 12, 6, 4)),
        ("heavy tails", (16, 16, 8, 4)),
    ],
)
def test_verdict_error_rate_is_at_most_nominal(noise, seeds):
    for truth in simulate.TRUTHS:
        assert simulate.measure_error_rate(noise, truth, seeds, 1.65, 1500) <= simulate.get_max_rate(1500), (
            truth
        )


@pytest.mark.parametrize("noise", ["skewed", "shift for each size", "shared seeds"])
def test_verdicts_err_where_the_page_reports_errors(noise):
    rates = [simulate.measure_error_rate(noise, truth, (8, 8, 8, 8), 1.65, 1500) for truth in simulate.TRUTHS]
    assert max(rates) > simulate.get_max_rate(1500)


def test_true_verdicts_are_found():
    for truth, expected, min_rate in (
        ("no effect", HOLDS, 0.9),
        ("grows by twice the margin", GROWS, 0.99),
        ("shrinks by twice the margin", SHRINKS, 0.99),
        ("flips, to as much", FLIPS, 0.9),
    ):
        assert simulate.measure_verdict_rates("normal", truth, (16, 16, 8, 4), 3.0, 1500)[expected] > min_rate


def test_simulated_ladders_are_decided_as_single_ones():
    sample = simulate.draw_ladders("normal", "grows by the margin", (8, 8, 8, 8), 0.7, 25)
    verdict_indices = apply_rule(compute_rule_inputs(sample), 0.7)
    for i, number in enumerate(verdict_indices):
        scatter = NOISE / NOISE.std(ddof=1)  # seeds with the same mean and variance
        rungs = [
            SizeSample(x, m + np.sqrt(v) * scatter)
            for x, m, v in zip(sample.x, sample.means[i], sample.variances[i], strict=True)
        ]
        assert decide_scaling_verdict(rungs, 0.7).verdict == SCALING_VERDICTS[number]
    assert len(set(verdict_indices.tolist())) >= 2
