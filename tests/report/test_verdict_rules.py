"""Decision rules for the verdicts of claims and effects."""

import math

import pytest
from synthetic import build_claim_result

from attnlab import stats
from attnlab.report.pages.glossary import DEFINITIONS
from attnlab.report.schema import MEANINGS, Effect, EffectVerdict, Verdict
from attnlab.report.tables.wording import explain_verdict
from attnlab.report.verdicts.verdict_rules import (
    count_decimals,
    decide_claim_verdict,
    decide_effect_verdict,
    find_diverging_level,
)
from attnlab.store.experiment_schema import RELATIONS

S, R, I = Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INCONCLUSIVE  # noqa: E741


def decide(relation, threshold, interval, n=6, comparable=True, center=0.0):
    holds = interval and stats.is_inside_region(
        RELATIONS[relation].compute_region(threshold, center), interval
    )
    return decide_claim_verdict(holds, n=n, comparable=comparable)


@pytest.mark.parametrize(
    ("relation", "threshold", "low", "high", "verdict"),
    [
        ("within", 0.03, 0.01, 0.02, S),
        ("within", 0.03, 0.04, 0.09, R),
        ("within", 0.03, -0.09, -0.04, R),
        ("within", 0.03, 0.01, 0.04, I),
        ("within", 0.03, -0.09, 0.09, I),
        ("within", 0.03, -0.02, 0.03, I),
        ("within", 0.03, 0.03, 0.09, R),  # touching the threshold is not satisfying it
        ("below", 0.03, -0.50, 0.02, S),
        ("below", 0.03, 0.02, 0.04, I),
        ("below", 0.03, 0.01, 0.03, I),
        ("below", 0.03, 0.03, 0.09, R),
        ("above", 0.01, 0.02, 0.90, S),
        ("above", 0.01, 0.00, 0.04, I),
        ("above", 0.01, 0.01, 0.03, I),
        ("above", 0.01, -0.09, 0.01, R),
        ("below", -0.01, -0.05, -0.02, S),
        ("below", 0.55, 0.5, 0.5, S),  # exact
        ("below", 0.5, 0.5, 0.5, R),
        ("below", 0.03, -math.inf, 0.02, S),  # ranks with diverged runs
        ("below", 0.03, -math.inf, 0.04, I),
        ("below", 0.03, math.inf, math.inf, R),
        ("above", 0.0, math.inf, math.inf, S),
        ("above", 0.0, -math.inf, math.inf, I),
        ("within", 0.03, math.inf, math.inf, R),
        ("within", 0.03, -math.inf, 0.02, I),
    ],
)
def test_claim_is_decided_by_the_whole_interval(relation, threshold, low, high, verdict):
    assert decide(relation, threshold, (low, high)) == verdict
    center = 1.0 if relation == "within" else 0.0  # the threshold of a ratio is around 1
    ends = low + center, high + center
    assert decide(relation, threshold + 0.001 * bool(center), ends, center=center) == (
        decide(relation, threshold + 0.001 * bool(center), (low, high))
    )


@pytest.mark.parametrize(
    ("n", "comparable", "interval", "verdict"),
    [
        (0, True, None, Verdict.NO_RESULT),
        (0, False, None, Verdict.NO_RESULT),
        (1, True, None, I),
        (1, False, None, Verdict.NOT_COMPARABLE),
        (6, False, (-0.01, 0.01), Verdict.NOT_COMPARABLE),
        (6, False, (0.04, 0.09), Verdict.NOT_COMPARABLE),
    ],
)
def test_missing_or_incomparable_pairs_take_precedence(n, comparable, interval, verdict):
    assert decide("within", 0.03, interval, n=n, comparable=comparable) == verdict
    with pytest.raises(AssertionError):
        decide("below", 0.03, (math.nan, math.nan))


EFFECTS = [  # 95% interval, 90% interval; lower is better, margin 0.03
    ((0.0, 0.0), (0.0, 0.0), EffectVerdict.EQUAL),
    ((0.01, 0.01), (0.01, 0.01), EffectVerdict.EQUIVALENT),  # counted
    ((0.04, 0.09), (0.05, 0.08), EffectVerdict.WORSE),
    ((-0.09, -0.04), (-0.08, -0.05), EffectVerdict.BETTER),
    ((-0.02, 0.02), (-0.01, 0.01), EffectVerdict.EQUIVALENT),
    ((-0.04, 0.04), (-0.02, 0.02), EffectVerdict.EQUIVALENT),  # the 90% interval decides
    (
        (0.01, 0.02),
        (0.012, 0.018),
        EffectVerdict.EQUIVALENT,
    ),  # certainly nonzero, and certainly below the margin
    ((0.01, 0.09), (0.02, 0.08), EffectVerdict.WORSE),
    ((0.03, 0.09), (0.04, 0.08), EffectVerdict.WORSE),
    ((-0.09, -0.01), (-0.08, -0.02), EffectVerdict.BETTER),
    ((-0.09, 0.04), (-0.08, 0.02), EffectVerdict.NON_INFERIOR),
    ((-0.09, 0.04), (-0.08, 0.03), EffectVerdict.INCONCLUSIVE),
    ((-0.02, 0.09), (-0.01, 0.08), EffectVerdict.INCONCLUSIVE),
    ((-0.09, 0.09), (-0.08, 0.08), EffectVerdict.INCONCLUSIVE),
    (None, None, EffectVerdict.INCONCLUSIVE),
]


@pytest.mark.parametrize(("interval", "tolerance", "verdict"), EFFECTS)
def test_effect_verdict_by_interval_mirrors_if_higher_is_better(interval, tolerance, verdict):
    assert decide_effect_verdict(interval, tolerance, 0.03) == verdict
    flipped = [None if ends is None else (-ends[1], -ends[0]) for ends in (interval, tolerance)]
    assert decide_effect_verdict(*flipped, 0.03, "higher") == verdict
    with pytest.raises(ValueError, match="direction='min'"):
        decide_effect_verdict(interval, tolerance, 0.03, "min")
    by_direction = {EffectVerdict.EQUAL, EffectVerdict.BETTER, EffectVerdict.WORSE}
    without = decide_effect_verdict(interval, interval, None)
    assert without in by_direction | {EffectVerdict.INCONCLUSIVE}, "without a margin only a direction"
    assert verdict not in by_direction or without == verdict


def test_effect_table_covers_all_judgments_and_every_verdict_has_a_meaning():
    assert {verdict for *_, verdict in EFFECTS} == {
        verdict for verdict in EffectVerdict if verdict.is_judgment
    }
    assert MEANINGS.keys() == {*Verdict, *EffectVerdict}
    assert MEANINGS.items() <= DEFINITIONS.items()
    for verdict in MEANINGS:
        claim = build_claim_result(-0.01, 0.02, verdict) if verdict in Verdict else None
        assert claim is None or explain_verdict(claim) == MEANINGS[verdict]


@pytest.mark.parametrize(
    ("interval", "alpha", "verdict", "level"),
    [
        ((0.04, 0.09), 0.0125, EffectVerdict.WORSE, None),  # the 95% interval shows it too
        ((0.0, 0.0), 0.0125, EffectVerdict.EQUAL, None),
        ((0.01, 0.09), 0.0125, EffectVerdict.INCONCLUSIVE, 0.9875),
        ((-0.02, 0.02), 0.0125, EffectVerdict.INCONCLUSIVE, 0.975),  # equivalence is one-sided
        ((-0.04, 0.04), 0.05, EffectVerdict.EQUIVALENT, 0.9),
        ((-0.09, -0.01), 0.025, EffectVerdict.NON_INFERIOR, 0.975),  # that of the superiority not shown
        ((0.04, 0.09), 0.05, EffectVerdict.INCONCLUSIVE, None),  # decided by ranks, at the same level
        ((None, None), 0.05, EffectVerdict.INCONCLUSIVE, None),
        ((0.04, 0.09), 0.05, EffectVerdict.EXPLORATORY, None),
    ],
)
def test_a_verdict_that_the_printed_interval_would_not_give_has_its_level(interval, alpha, verdict, level):
    low, high = interval
    effect = Effect.model_construct(
        primary=True, mean=0.0, low=low, high=high, level=0.95, alpha=alpha, margin=0.03, verdict=verdict
    )
    assert find_diverging_level(effect, "lower") == (level and pytest.approx(level))


@pytest.mark.parametrize(
    ("width", "digits"), [(0.03, 3), (0.0099, 4), (0.1, 2), (5, 1), (47, 0), (4e5, 0), (0, 3), (None, 3)]
)
def test_decimals_show_two_digits_of_the_width(width, digits):
    assert count_decimals(width) == digits
