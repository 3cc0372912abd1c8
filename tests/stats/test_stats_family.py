import math

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from attnlab.stats import Differences, Exact, Look, Question, decide, holm, holm_levels, paired
from attnlab.store.declarations import RELATIONS

COST = (-math.inf, 0.03)  # the effects for which "costs less than 0.03" holds
FAMILIES = [np.random.default_rng(n).uniform(0, 0.08, n).tolist() for n in (1, 2, 3, 7, 20)] + [
    [0.02, 0.02, 0.02],
    [1.0, 0.0],
    [0.04, 0.011, 0.03],
    [0.05],
]


@pytest.mark.parametrize("p", FAMILIES, ids=str)
def test_holm_agrees_with_statsmodels(p):
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1], abs=1e-12)


@pytest.mark.parametrize("p", FAMILIES, ids=str)
def test_each_claims_level_rejects_just_what_holm_rejects(p):
    rejected = multipletests(p, alpha=0.05, method="holm")[0]
    assert [own <= level for own, level in zip(p, holm_levels(p, 0.05), strict=True)] == rejected.tolist()


def test_an_empty_family_has_no_levels():
    assert holm([]) == holm_levels([]) == decide([]) == []


@pytest.mark.parametrize("bad", [[0.5, 1.5], [-0.1], [float("nan")]])
def test_what_is_no_probability_is_refused(bad):
    with pytest.raises(ValueError, match="p-values"):
        holm(bad)


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
def test_a_tolerance_is_decided_at_90_percent_and_an_effect_at_95(relation, threshold, center, level):
    evidence = Differences([0.01, 0.02, 0.04])
    (decision,) = decide([Question(evidence, RELATIONS[relation].region(threshold, center), center)])
    assert decision.level == pytest.approx(level)
    assert decision.interval == evidence.interval(decision.level)


CLAIMS = [("within", 0.03), ("below", 0.03), ("above", 0.01), ("below", 0.0)]


def test_intervals_and_adjusted_p_decide_alike_in_every_family():
    rng = np.random.default_rng(3)
    kinds = [(relation, RELATIONS[relation].region(threshold)) for relation, threshold in CLAIMS]
    seen = set()
    for _ in range(150):
        samples = [rng.normal(rng.uniform(-0.04, 0.04), 0.015, 6) for _ in kinds]
        questions = [Question(Differences(d), own) for d, (_, own) in zip(samples, kinds, strict=True)]
        for (relation, (low, high)), decision in zip(kinds, decide(questions), strict=True):
            inside = low < decision.low and decision.high < high
            assert inside == (decision.p_holm <= 0.05)
            seen.add((relation, inside))
    assert len(seen) == 6


def test_the_chance_of_any_false_support_stays_below_alpha():
    # three claims, all false and as near to true as a false claim can be
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(2000):
        on_the_edge = [Question(Differences(rng.normal(0.03, 0.01, 6)), COST) for _ in range(3)]
        wrong += any(decision.high < 0.03 for decision in decide(on_the_edge))
    assert 0.035 < wrong / 2000 < 0.06


def test_exact_quantities_take_no_share_of_alpha():
    sample = Differences([0.01, 0.02, 0.04])
    exact, measured = decide([Question(Exact(0.5), (-math.inf, 0.6), 1.0), Question(sample, (-0.1, 0.1))])
    assert (exact.exact, exact.interval, exact.level, exact.p) == (True, (0.5, 0.5), None, None)
    assert measured.alpha == 0.05


def test_a_claim_without_data_keeps_its_share():
    sample = Differences([0.01, 0.02, 0.04])
    measured, nothing, single = decide(
        [
            Question(sample, (-0.01, 0.01)),
            Question(None, (-0.1, 0.1)),
            Question(Differences([0.01]), (-0.1, 0.1)),
        ]
    )
    assert measured.alpha == pytest.approx(0.05 / 3)
    assert (nothing.n, nothing.estimate, nothing.interval, nothing.p_holm) == (0, None, None, None)
    assert (single.n, single.estimate, single.interval, single.p_holm) == (1, 0.01, None, None)


def test_a_claimed_effect_has_the_two_sided_p():
    values = [-0.01, -0.02, -0.04, -0.01]
    (decision,) = decide([Question(Differences(values), (-math.inf, 0.0))])
    assert decision.p == pytest.approx(paired(values).p, abs=1e-12)


def test_ties_decide_nothing_however_wide_the_margin():
    (decision,) = decide([Question(Differences([0.0, 0.0]), (-0.05, 0.05))])
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
def test_a_claim_holds_where_all_of_the_interval_does_and_fails_where_none_of_it_does(
    value, relation, threshold, holds
):
    sample = Differences(value + np.array([-0.02, 0.02, 0.0, 0.01]))
    assert decide([Question(sample, RELATIONS[relation].region(threshold))])[0].holds is holds


LOOKS = (4, 8)
CLEAR = np.array([1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.97, 1.03])
OPEN = np.array([0.3, -0.2, 0.25, 0.15, 0.5, 0.2, 0.1, 0.4])


def at(look, *samples, claim=(0.0, math.inf)):
    design = Look(LOOKS, look)
    return [Question(Differences(sample[: LOOKS[look]], design), claim) for sample in samples]


def test_what_was_decided_stands_and_leaves_its_level_to_what_is_open():
    first = decide(at(0, CLEAR, OPEN))
    assert [decision.holds for decision in first] == [True, None]
    turned, rest = decide(at(1, -CLEAR, OPEN), before=first)
    assert turned == first[0]
    assert rest.alpha == 0.05  # alone it would share with the other
    assert decide(at(1, 0 * CLEAR, OPEN))[1].alpha == 0.025


def test_what_was_refuted_stands_too_and_leaves_nothing():
    first = decide(at(0, -CLEAR, OPEN))
    assert [decision.holds for decision in first] == [False, None]
    stands, rest = decide(at(1, CLEAR, OPEN), before=first)
    assert stands == first[0]
    assert rest.alpha == 0.025


def test_an_open_claim_is_decided_by_this_look_alone():
    (first,) = decide(at(0, OPEN))
    assert first.holds is None
    assert decide(at(1, OPEN), before=[first]) == decide(at(1, OPEN))


def test_an_identity_that_a_later_pair_breaks_is_broken():
    first = decide([Question(Exact(0.0, 0.0), (-1e-9, 1e-9))])
    assert first[0].holds is True
    (second,) = decide([Question(Exact(0.0, 0.0, 0.5), (-1e-9, 1e-9))], before=first)
    assert (second.holds, second.estimate) == (False, 0.5)


def test_the_chance_of_any_false_support_stays_below_alpha_over_all_looks():
    draw, wrong = np.random.default_rng(5), 0
    for _ in range(800):
        samples, decisions = draw.normal(0.03, 0.01, (3, 8)), []
        samples[2] -= 0.03  # this one is so, and leaves its level to the two that are not
        for look in (0, 1):
            decisions = decide(at(look, *samples, claim=COST), before=decisions)
        wrong += any(decision.holds for decision in decisions[:2])
    assert 0.03 < wrong / 800 < 0.07
