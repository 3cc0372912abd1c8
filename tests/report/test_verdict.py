import math

import numpy as np
import pytest

from attnlab import stats
from attnlab.report.schema import Verdict, Word
from attnlab.report.verdicts.verdict import MEANING, claim_verdict, decimals, effect_word
from attnlab.stats import Differences, Question, decide, paired
from attnlab.store.declarations import RELATIONS

S, R, I = Verdict.SUPPORTED, Verdict.REFUTED, Verdict.INCONCLUSIVE  # noqa: E741


def planted(mean: float, sd: float, n: int) -> np.ndarray:
    """Differences of exactly this mean and standard deviation."""
    noise = np.random.default_rng(n).normal(0, 1, n)
    return mean + sd * (noise - noise.mean()) / noise.std(ddof=1)


def worded(relation, threshold, interval, n=6, comparable=True, center=0.0):
    told = interval and stats.holds(RELATIONS[relation].region(threshold, center), interval)
    return claim_verdict(told, n=n, comparable=comparable)


@pytest.mark.parametrize(
    ("relation", "threshold", "low", "high", "verdict"),
    [
        ("within", 0.03, -0.02, 0.02, S),
        ("within", 0.03, 0.01, 0.02, S),
        ("within", 0.03, 0.04, 0.09, R),
        ("within", 0.03, -0.09, -0.04, R),
        ("within", 0.03, 0.01, 0.04, I),
        ("within", 0.03, -0.04, 0.01, I),
        ("within", 0.03, -0.09, 0.09, I),
        ("within", 0.03, -0.02, 0.03, I),
        ("within", 0.03, 0.03, 0.09, R),  # touching is not satisfying
        ("below", 0.03, -0.50, 0.02, S),
        ("below", 0.03, 0.04, 0.09, R),
        ("below", 0.03, 0.02, 0.04, I),
        ("below", 0.03, 0.01, 0.03, I),
        ("below", 0.03, 0.03, 0.09, R),
        ("above", 0.01, 0.02, 0.90, S),
        ("above", 0.01, -0.09, 0.00, R),
        ("above", 0.01, 0.00, 0.04, I),
        ("above", 0.01, 0.01, 0.03, I),
        ("above", 0.01, -0.09, 0.01, R),
        ("below", -0.01, -0.05, -0.02, S),
        ("above", -0.03, -0.02, 0.5, S),
        ("below", 0.55, 0.5, 0.5, S),
        ("below", 0.5, 0.5, 0.5, R),
        ("above", 0.4, 0.5, 0.5, S),  # exact
        ("below", 0.03, -math.inf, 0.02, S),  # of ranks, where runs diverged
        ("below", 0.03, -math.inf, -math.inf, S),
        ("below", 0.03, -math.inf, 0.04, I),
        ("below", 0.03, math.inf, math.inf, R),
        ("above", 0.0, 0.01, math.inf, S),
        ("above", 0.0, math.inf, math.inf, S),
        ("above", 0.0, -math.inf, math.inf, I),
        ("above", 0.0, -math.inf, -math.inf, R),
        ("within", 0.03, math.inf, math.inf, R),
        ("within", 0.03, -math.inf, 0.02, I),
    ],
)
def test_a_claim_is_supported_by_the_whole_interval_or_refuted_by_it(relation, threshold, low, high, verdict):
    assert worded(relation, threshold, (low, high), n=6) == verdict


@pytest.mark.parametrize(("interval", "verdict"), [((0.98, 1.02), S), ((1.1, 1.2), R), ((0.94, 1.0), I)])
def test_a_ratio_is_within_its_threshold_of_one(interval, verdict):
    assert worded("within", 0.05, interval, n=6, center=1.0) == verdict


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
def test_what_forbids_a_verdict_goes_before_the_interval(n, comparable, interval, verdict):
    assert worded("within", 0.03, interval, n=n, comparable=comparable) == verdict


def test_not_a_number_has_no_verdict():
    with pytest.raises(AssertionError):
        worded("below", 0.03, (math.nan, math.nan))


EFFECTS = [  # 95 % interval, 90 % interval, where lower is better and the margin is 0.03
    ((0.04, 0.09), (0.05, 0.08), Word.WORSE_MORE),
    ((-0.09, -0.04), (-0.08, -0.05), Word.BETTER_MORE),
    ((-0.02, 0.02), (-0.01, 0.01), Word.EQUIVALENT),
    ((-0.04, 0.04), (-0.02, 0.02), Word.EQUIVALENT),  # it is the 90 % interval that decides
    ((0.01, 0.02), (0.012, 0.018), Word.EQUIVALENT),  # surely there, and surely too small to matter
    ((0.01, 0.09), (0.02, 0.08), Word.WORSE),
    ((0.03, 0.09), (0.04, 0.08), Word.WORSE),  # touching the margin is not more than it
    ((-0.09, -0.01), (-0.08, -0.02), Word.BETTER),
    ((-0.09, 0.04), (-0.08, 0.02), Word.NOT_WORSE),
    ((-0.09, 0.04), (-0.08, 0.03), Word.INCONCLUSIVE),
    ((-0.02, 0.09), (-0.01, 0.08), Word.INCONCLUSIVE),
    ((-0.09, 0.09), (-0.08, 0.08), Word.INCONCLUSIVE),
    (None, None, Word.INCONCLUSIVE),
]


@pytest.mark.parametrize(("interval", "tolerance", "word"), EFFECTS)
def test_every_effect_has_its_word(interval, tolerance, word):
    assert effect_word(interval, tolerance, 0.03) == word


@pytest.mark.parametrize(("interval", "tolerance", "word"), EFFECTS)
def test_the_words_mirror_where_higher_is_better(interval, tolerance, word):
    flipped = [None if ends is None else (-ends[1], -ends[0]) for ends in (interval, tolerance)]
    assert effect_word(*flipped, 0.03, "higher") == word


def test_the_table_covers_the_vocabulary():
    about_it = {Word.EXPLORATORY, Word.NO_RESULT, Word.NOT_COMPARABLE}  # without a judgment of its size
    assert {word for *_, word in EFFECTS} | {Word.LEAKING} == set(MEANING) == set(Word) - about_it


@pytest.mark.parametrize(
    ("interval", "word"),
    [((0.04, 0.09), Word.WORSE), ((-0.09, -0.04), Word.BETTER), ((-0.01, 0.01), Word.INCONCLUSIVE)],
)
def test_without_a_margin_only_a_direction_is_told(interval, word):
    assert effect_word(interval, interval, None) == word


def test_a_direction_is_lower_or_higher():
    with pytest.raises(ValueError, match="direction='min'"):
        effect_word((0.0, 1.0), (0.1, 0.9), 0.03, "min")


@pytest.mark.parametrize(
    ("mean", "sd", "n", "word"),
    [
        (0.0, 0.005, 8, Word.EQUIVALENT),
        (0.1, 0.02, 8, Word.WORSE_MORE),
        (-0.1, 0.02, 8, Word.BETTER_MORE),
        (0.05, 0.03, 8, Word.WORSE),
        (-0.05, 0.03, 8, Word.BETTER),
        (-0.02, 0.04, 8, Word.NOT_WORSE),
        (0.0, 0.1, 3, Word.INCONCLUSIVE),
        (0.02, 0.05, 5, Word.INCONCLUSIVE),
        (0.0, 0.0, 4, Word.INCONCLUSIVE),  # ties prove nothing
    ],
)
def test_planted_effects_get_the_right_word(mean, sd, n, word):
    values = planted(mean, sd, n)
    assert effect_word(paired(values).interval, paired(values, 0.9).interval, 0.03) == word


@pytest.mark.parametrize(
    ("mean", "sd", "verdict"), [(0.0, 0.005, S), (0.1, 0.02, R), (-0.1, 0.02, R), (0.02, 0.05, I)]
)
def test_planted_data_decide_a_claim_of_equivalence(mean, sd, verdict):
    (decision,) = decide([Question(Differences(planted(mean, sd, 6)), RELATIONS["within"].region(0.03))])
    assert worded("within", 0.03, decision.interval, n=decision.n) == verdict


@pytest.mark.parametrize(
    ("width", "digits"), [(0.03, 3), (0.0099, 4), (0.1, 2), (5, 1), (47, 0), (4e5, 0), (0, 3), (None, 3)]
)
def test_decimals_show_two_digits_of_the_width(width, digits):
    assert decimals(width) == digits
