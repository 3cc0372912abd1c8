"""Holm over a family of claims, against statsmodels and by simulation."""

import math

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from attnlab.stats import (
    ClaimTest,
    ExactEvidence,
    GroupSequential,
    PairedDifferences,
    adjust_holm_p_values,
    decide_claims,
    estimate_paired_difference,
)
from attnlab.stats.claim_family import compute_holm_levels
from attnlab.store.experiment_schema import RELATIONS

COST = (-math.inf, 0.03)  # the effects for which "costs less than 0.03" holds
FAMILIES = [np.random.default_rng(n).uniform(0, 0.08, n).tolist() for n in (1, 2, 3, 7, 20)] + [
    [0.02, 0.02, 0.02],
    [1.0, 0.0],
    [0.04, 0.011, 0.03],
    [0.05],
]


@pytest.mark.parametrize("p", FAMILIES, ids=str)
def test_holm_agrees_with_statsmodels(p):
    assert adjust_holm_p_values(p) == pytest.approx(multipletests(p, method="holm")[1], abs=1e-12)


@pytest.mark.parametrize("p", FAMILIES, ids=str)
def test_claim_levels_reject_exactly_as_holm(p):
    rejected = multipletests(p, alpha=0.05, method="holm")[0]
    assert [
        own <= level for own, level in zip(p, compute_holm_levels(p, 0.05), strict=True)
    ] == rejected.tolist()


def test_empty_family_has_no_levels():
    assert adjust_holm_p_values([]) == compute_holm_levels([]) == decide_claims([]) == []


@pytest.mark.parametrize("bad", [[0.5, 1.5], [-0.1], [float("nan")]])
def test_invalid_p_values_are_rejected(bad):
    with pytest.raises(ValueError, match="p-values"):
        adjust_holm_p_values(bad)


@pytest.mark.parametrize(
    ("relation", "threshold", "center", "level"),
    [
        # where no difference satisfies the claim; where it asserts one; and of a ratio
        ("within", 0.03, 0.0, 0.90),
        ("below", 0.03, 0.0, 0.90),
        ("above", -0.03, 0.0, 0.90),
        ("below", 0.0, 0.0, 0.95),
        ("above", 0.01, 0.0, 0.95),
        ("below", -0.01, 0.0, 0.95),
        ("below", 1.05, 1.0, 0.90),
        ("below", 0.95, 1.0, 0.95),
        ("within", 0.05, 1.0, 0.90),
    ],
)
def test_tolerant_claims_use_90_percent_and_others_95_percent_intervals(relation, threshold, center, level):
    evidence = PairedDifferences([0.01, 0.02, 0.04])
    (decision,) = decide_claims(
        [ClaimTest(evidence, RELATIONS[relation].compute_region(threshold, center), center)]
    )
    assert decision.level == pytest.approx(level)
    assert decision.interval == evidence.interval(decision.level)


CLAIMS = [("within", 0.03), ("below", 0.03), ("above", 0.01), ("below", 0.0)]


def test_intervals_and_adjusted_p_values_agree_in_every_family():
    rng = np.random.default_rng(3)
    kinds = [(relation, RELATIONS[relation].compute_region(threshold)) for relation, threshold in CLAIMS]
    outcomes = set()
    for _ in range(150):
        samples = [rng.normal(rng.uniform(-0.04, 0.04), 0.015, 6) for _ in kinds]
        questions = [ClaimTest(PairedDifferences(d), own) for d, (_, own) in zip(samples, kinds, strict=True)]
        for (relation, (low, high)), decision in zip(kinds, decide_claims(questions), strict=True):
            inside = low < decision.low and decision.high < high
            assert inside == (decision.p_holm <= 0.05)
            outcomes.add((relation, inside))
    assert len(outcomes) == 6


def test_familywise_error_rate_is_at_most_alpha():
    # three claims, all false and as near to true as a false claim can be
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(2000):
        on_the_edge = [ClaimTest(PairedDifferences(rng.normal(0.03, 0.01, 6)), COST) for _ in range(3)]
        wrong += any(decision.high < 0.03 for decision in decide_claims(on_the_edge))
    assert 0.035 < wrong / 2000 < 0.06


def test_exact_quantities_use_no_alpha():
    sample = PairedDifferences([0.01, 0.02, 0.04])
    exact, measured = decide_claims(
        [ClaimTest(ExactEvidence(0.5), (-math.inf, 0.6), 1.0), ClaimTest(sample, (-0.1, 0.1))]
    )
    assert (exact.exact, exact.interval, exact.level, exact.p) == (True, (0.5, 0.5), None, None)
    assert measured.alpha == 0.05


def test_claim_without_data_keeps_its_alpha():
    sample = PairedDifferences([0.01, 0.02, 0.04])
    measured, nothing, single = decide_claims(
        [
            ClaimTest(sample, (-0.01, 0.01)),
            ClaimTest(None, (-0.1, 0.1)),
            ClaimTest(PairedDifferences([0.01]), (-0.1, 0.1)),
        ]
    )
    assert measured.alpha == pytest.approx(0.05 / 3)
    assert (nothing.n, nothing.estimate, nothing.interval, nothing.p_holm) == (0, None, None, None)
    assert (single.n, single.estimate, single.interval, single.p_holm) == (1, 0.01, None, None)


def test_asserted_difference_has_the_two_sided_p_value():
    values = [-0.01, -0.02, -0.04, -0.01]
    (decision,) = decide_claims([ClaimTest(PairedDifferences(values), (-math.inf, 0.0))])
    assert decision.p == pytest.approx(estimate_paired_difference(values).p, abs=1e-12)


def test_ties_decide_nothing_at_any_margin():
    (decision,) = decide_claims([ClaimTest(PairedDifferences([0.0, 0.0]), (-0.05, 0.05))])
    assert (decision.holds, decision.interval, decision.p) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "relation", "threshold", "holds"),
    [
        (0.02, "within", 0.1, True),
        (0.5, "within", 0.1, False),
        (0.09, "within", 0.1, None),
        (0.5, "above", 0.1, True),
        (-0.5, "above", 0.1, False),
        (0.5, "below", 0.5, None),
    ],
)
def test_claim_holds_if_the_interval_lies_inside_and_fails_if_outside(value, relation, threshold, holds):
    sample = PairedDifferences(value + np.array([-0.02, 0.02, 0.0, 0.01]))
    assert decide_claims([ClaimTest(sample, RELATIONS[relation].compute_region(threshold))])[0].holds is holds


ANALYSES = (4, 8)
CLEAR = np.array([1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.97, 1.03])
INCONCLUSIVE = np.array([0.3, -0.2, 0.25, 0.15, 0.5, 0.2, 0.1, 0.4])


def build_claims(index, *samples, claim=(0.0, math.inf)):
    design = GroupSequential(ANALYSES, index)
    return [ClaimTest(PairedDifferences(sample[: ANALYSES[index]], design), claim) for sample in samples]


def test_supported_claim_is_final_and_passes_on_its_alpha():
    first = decide_claims(build_claims(0, CLEAR, INCONCLUSIVE))
    assert [decision.holds for decision in first] == [True, None]
    reversed_claim, rest = decide_claims(build_claims(1, -CLEAR, INCONCLUSIVE), previous=first)
    assert reversed_claim == first[0]
    assert rest.alpha == 0.05  # half without the passed-on alpha
    assert decide_claims(build_claims(1, 0 * CLEAR, INCONCLUSIVE))[1].alpha == 0.025


def test_refuted_claim_is_final_and_passes_on_no_alpha():
    first = decide_claims(build_claims(0, -CLEAR, INCONCLUSIVE))
    assert [decision.holds for decision in first] == [False, None]
    final, rest = decide_claims(build_claims(1, CLEAR, INCONCLUSIVE), previous=first)
    assert final == first[0]
    assert rest.alpha == 0.025


def test_inconclusive_claim_is_decided_by_the_current_analysis_alone():
    (first,) = decide_claims(build_claims(0, INCONCLUSIVE))
    assert first.holds is None
    assert decide_claims(build_claims(1, INCONCLUSIVE), previous=[first]) == decide_claims(
        build_claims(1, INCONCLUSIVE)
    )


def test_identity_is_broken_by_a_later_pair():
    first = decide_claims([ClaimTest(ExactEvidence(0.0, 0.0), (-1e-9, 1e-9))])
    assert first[0].holds is True
    (second,) = decide_claims([ClaimTest(ExactEvidence(0.0, 0.0, 0.5), (-1e-9, 1e-9))], previous=first)
    assert (second.holds, second.estimate) == (False, 0.5)


def test_familywise_error_rate_over_all_analyses_is_at_most_alpha():
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(800):
        samples, decisions = rng.normal(0.03, 0.01, (3, 8)), []
        samples[2] -= 0.03  # this one is so, and leaves its level to the two that are not
        for index in (0, 1):
            decisions = decide_claims(build_claims(index, *samples, claim=COST), previous=decisions)
        wrong += any(decision.holds for decision in decisions[:2])
    assert 0.03 < wrong / 800 < 0.07
