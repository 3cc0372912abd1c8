"""One word for a ladder: what each says, where none is said, and how often they are wrong."""

import calibration_ladders as simulate
import numpy as np
import pytest

from attnlab.stats.across import Rung, word
from attnlab.stats.across.rungs import ladder
from attnlab.stats.across.word import CANNOT_TELL, FLIPS, GROWS, HOLDS, SHRINKS, WORDS, findings, rule

NOISE = np.array([-1.2, 0.4, -0.3, 1.1, 0.7, -0.9, 0.6, -0.4])  # of mean 0


def told(*effects, margin=1.0, sd=0.3, seeds=8):
    return word([Rung(i, effect + sd * NOISE[:seeds]) for i, effect in enumerate(effects)], margin)


@pytest.mark.parametrize(
    ("effects", "sd", "expected", "reason"),
    [
        ((0, 0, 0, 0), 0.3, HOLDS, "within the margin of 1"),
        ((5, 5.1, 5.2, 5.3), 0.2, HOLDS, "within the margin"),
        ((5, 5.1, 5.2, 5.3), 0.05, HOLDS, "within the margin"),  # told from nothing, and too little to matter
        ((1, 2, 3, 4), 0.3, GROWS, "along the line"),
        ((-1, -2, -3, -4), 0.3, GROWS, "along the line"),
        ((4, 3, 2, 1), 0.3, SHRINKS, "midway"),
        ((0, 2.1, 2.7, 3), 0.3, GROWS, "along the line"),  # though the largest is not where the others point
        ((2, 1, -1, -2), 0.3, FLIPS, "in [−2."),
        ((-0.4, -0.1, 0.2, 0.45), 0.3, FLIPS, "in [0."),  # by less than the margin: the sign is what is told
        ((0, 1.5, 1.5, 0), 0.3, CANNOT_TELL, "the largest rung is not where the others point"),
        ((-0.5, -0.17, 0.17, 0.5), 0.75, CANNOT_TELL, "may lead through 0"),
        ((0, 0.2, 0.4, 0.6), 0.8, CANNOT_TELL, "reaches beyond the margin"),
        ((0, 0, 0, 0), 3, CANNOT_TELL, "wider than twice the margin"),
    ],
)
def test_a_clear_ladder_has_its_word(effects, sd, expected, reason):
    seen = told(*effects, sd=sd)
    assert seen.word == expected, seen
    assert reason in seen.reason


def test_a_sign_turns_no_word_and_the_margin_turns_holds():
    for effects in ((0, 0, 0, 0), (1, 2, 3, 4), (4, 3, 2, 1), (2, 1, -1, -2), (0, 0.3, 0.6, 0.9)):
        mirrored = word([Rung(i, -(e + 0.3 * NOISE)) for i, e in enumerate(effects)], 1.0)
        assert mirrored.word == told(*effects).word
    assert told(5, 5.1, 5.2, 5.3, margin=0.2).word != HOLDS


def test_holds_needs_the_end_rungs_to_agree_with_the_line():
    draw = np.random.default_rng(0)
    late = [
        Rung(i, draw.normal(e, 0.3, n))
        for i, (e, n) in enumerate(zip((0, 0, 0.1, 1.2), (64, 64, 64, 2), strict=True))
    ]
    seen = findings(ladder(late))
    line, ends = seen.change
    assert abs(line.estimate) + line.half(0.05) < 1.2, "the line says that it holds"
    assert abs(ends.estimate) + ends.half(0.05) >= 1.2
    assert word(late, 1.2).word != HOLDS


@pytest.mark.parametrize(
    ("rungs", "reason"),
    [
        ([Rung(0, NOISE)], "1 rung:"),
        ([Rung(0, NOISE), Rung(1, NOISE)], "2 rungs: a trend and a test of it take at least three"),
        ([Rung(i, [0.5, 0.5, 0.5]) for i in range(4)], "no noise to judge by"),
        ([Rung(i, [0.5 + i]) for i in range(4)], "no noise to judge by"),
    ],
)
def test_what_has_nothing_to_judge_by_cannot_tell(rungs, reason):
    seen = word(rungs, 1.0)
    assert (seen.word, seen.change, seen.more) == (CANNOT_TELL, None, None)
    assert reason in seen.reason


@pytest.mark.parametrize("margin", [0, -1, float("nan"), float("inf")])
def test_a_margin_that_is_none_is_refused(margin):
    with pytest.raises(ValueError, match="positive number of nats"):
        word([Rung(i, NOISE) for i in range(3)], margin)


def test_one_seed_at_the_top_decides_what_is_clear():
    rungs = [*(Rung(i, 1 + i + 0.1 * NOISE) for i in range(3)), Rung(3, [4.05])]
    assert word(rungs, 1.0).word == GROWS


def test_the_seeds_that_it_asks_for_decide():
    """With as many as it says at the top, 80 % of ladders whose truth is what was seen are decided."""
    seeds, draw = [16, 16, 8, 4], np.random.default_rng(5)
    values = [draw.normal(size=n) for n in seeds]
    values = [(v - v.mean()) / v.std(ddof=1) for v in values]  # no effect and sd 1, as seen
    seen = word([Rung(0.8 * i, v) for i, v in enumerate(values)], 1.05)
    assert seen.word == CANNOT_TELL
    assert 5 < seen.more.at_top < 100
    assert seen.more.x == pytest.approx(3.2)
    assert seen.more.further is not None
    shares = []
    for n in (4, seen.more.at_top):
        held = simulate.drawn("normal", "no effect", (16, 16, 8, n), 1.05, 2000)
        shares.append((rule(findings(held), 1.05) == WORDS.index(HOLDS)).mean())
    assert shares[0] < 0.5
    assert shares[1] == pytest.approx(0.8, abs=0.1)


def test_what_no_seeds_at_the_top_would_decide_is_said():
    rungs = [Rung(i, n * NOISE[:3]) for i, n in enumerate((1, 1, 1))]
    seen = word([*rungs, Rung(3, 0.5 + NOISE)], 0.3)
    assert seen.word == CANNOT_TELL
    assert seen.more.at_top is None, "the others' noise alone is wider than the margin"


@pytest.mark.parametrize(
    ("noise", "seeds"),
    [
        ("normal", (16, 16, 8, 3)),
        ("normal", (8, 8, 8, 8)),
        ("quieter upwards", (16, 16, 8, 4)),
        ("louder upwards", (12, 12, 6, 4)),
        ("heavy tails", (16, 16, 8, 4)),
    ],
)
def test_a_word_is_wrong_no_more_often_than_was_said(noise, seeds):
    for truth in simulate.TRUTHS:
        assert simulate.wrong(noise, truth, seeds, 1.65, 1500) <= simulate.most(1500), truth


@pytest.mark.parametrize("noise", ["skewed", "rungs wobble", "same seeds"])
def test_where_the_page_says_that_it_is_wrong_it_is(noise):
    rates = [simulate.wrong(noise, truth, (8, 8, 8, 8), 1.65, 1500) for truth in simulate.TRUTHS]
    assert max(rates) > simulate.most(1500)


def test_true_words_are_found():
    for truth, expected, least in (
        ("no effect", HOLDS, 0.9),
        ("grows by twice the margin", GROWS, 0.99),
        ("shrinks by twice the margin", SHRINKS, 0.99),
        ("flips, to as much", FLIPS, 0.9),
    ):
        assert simulate.said("normal", truth, (16, 16, 8, 4), 3.0, 1500)[expected] > least


def test_thousands_are_decided_as_one_is():
    held = simulate.drawn("normal", "grows by the margin", (8, 8, 8, 8), 0.7, 25)
    many = rule(findings(held), 0.7)
    for i, number in enumerate(many):
        scatter = NOISE / NOISE.std(ddof=1)  # seeds with the same mean and variance
        rungs = [
            Rung(x, m + np.sqrt(v) * scatter)
            for x, m, v in zip(held.x, held.means[i], held.variances[i], strict=True)
        ]
        assert word(rungs, 0.7).word == WORDS[number]
    assert len(set(many.tolist())) >= 2
