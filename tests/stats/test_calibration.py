"""Verdicts on sweeps whose truth is known are as seldom wrong as they say; the page has the rates."""

import math
from pathlib import Path

import calibration
import numpy as np
import pytest
from calibration import (
    NOISES,
    PLANS,
    RANKS,
    SHARES,
    TOGETHER,
    Row,
    by_either,
    by_ranks,
    by_shares,
    by_t,
)

from attnlab.report.verdicts.bases import Ratios
from attnlab.stats import FIXED, Differences, Question, Ranks, Shares, decide

PAGE = Path(__file__).parents[2] / "docs" / "calibration.md"
EVIDENCE = {
    by_t: Differences,
    by_shares: lambda values, design: Shares(values),
    by_ranks: lambda values, design: Ranks(values),
    by_either: lambda values, design: (
        Differences(values, design) if np.isfinite(values).all() else Ranks(values)
    ),
}


def reported(values, plan, row):
    """The word of one sweep and its seeds, as a report comes to them: look by look."""
    decisions = []
    for n, design in plan:
        question = Question(EVIDENCE[row.read](values[:n], design), row.region)
        decisions = decide([question], before=decisions)
        if decisions[0].holds is not None:
            return (1 if decisions[0].holds else -1), n
    return 0, plan[-1][0]


# away from the threshold too, so that there is something to decide
ALIKE = [
    *(Row(f"{noise} {m}", calibration.moved(draw, m), *claim, by_t)
      for noise, draw in NOISES.items()
      for m, claim in ((0.9, ("above", 0.0)), (0.3, ("within", 1.65)), (-1.2, ("above", -0.4)))),
    Row("90 % against half", calibration.solved(0.9, 0.5), "above", 0.0, by_shares),
    Row("60 % against 95 %", calibration.solved(0.6, 0.95), "above", -0.1, by_shares),
    Row("never apart", calibration.solved(1.0, 0.98), "within", 0.2, by_shares),
    Row("accuracies", calibration.accurate(0.95, 0.4), "below", 0.3, by_shares),
    Row("the arm fails", calibration.moved(calibration.failing(0.3), -1.0), "below", 0.0, by_ranks),
    Row("either fails", calibration.moved(calibration.failing(0.2, both=True), 0.5), "within", 1.0, by_ranks),
    Row("worse, and fails", calibration.moved(calibration.failing(0.3), 2.0), "below", 0.0, by_ranks),
    Row("better, and may fail", calibration.moved(calibration.failing(0.1), -1.0), "below", 0.0, by_either),
    Row("worse, and may fail", calibration.moved(calibration.failing(0.1), 2.0), "below", 0.0, by_either),
    *SHARES[:3], *RANKS[-3:],
]  # fmt: skip


def alike(row):
    return calibration.drawn(row, 5 if row.read is by_shares else 12, 24)  # an interval of shares takes long


@pytest.mark.parametrize("row", ALIKE, ids=lambda row: row.says)
def test_sweeps_are_decided_as_a_report_decides_them(row):
    values = alike(row)
    for name in ("2", "3", "8", "24", "looks to 16", "looks to 24", "by hand to 24"):
        words, seeds = calibration.verdicts(row, values, PLANS[name])
        assert [reported(sweep, PLANS[name], row) for sweep in values] == list(zip(words, seeds, strict=True))


def test_sweeps_that_were_compared_had_every_word_of_every_kind():
    plans = [PLANS[name] for name in ("8", "24", "by hand to 24")]
    words = {
        (row.read, word)
        for row in ALIKE
        for plan in plans
        for word in calibration.verdicts(row, alike(row), plan)[0]
    }
    assert words == {(read, word) for read in EVIDENCE for word in (-1, 0, 1)}


def test_a_ratio_is_decided_as_the_difference_of_logarithms():
    a, b = np.random.default_rng(0).gamma(4, size=(2, 200, 6))
    row = Row("ratio", NOISES["normal"], "above", 0.0, by_t)
    words, _ = calibration.verdicts(row, np.log(1.6 * a / b), PLANS["6"])
    for word, ours, theirs in zip(words, 1.6 * a, b, strict=True):
        (decision,) = decide([Question(Ratios(ours / theirs, FIXED), (1.0, math.inf), center=1.0)])
        assert decision.holds is {1: True, -1: False, 0: None}[word]
    assert set(words) >= {0, 1}


def test_normal_seeds_mislead_as_often_as_was_said():
    for row in calibration.claims("normal"):
        most = calibration.most(row, 8_000)
        for name, (supported, refuted) in calibration.rates(row, PLANS, 8_000).items():
            assert max(supported, refuted) <= most, (row.says, name)
            if not name.startswith("by hand"):  # which pays for looks that nobody declared
                least = 2 * row.tail() - most
                assert refuted >= least, (row.says, name)
                assert supported >= least or row.relation == "within", (row.says, name)


@pytest.mark.parametrize("row", [*SHARES, *RANKS], ids=lambda row: row.says)
def test_shares_and_ranks_mislead_no_more_often_than_was_said(row):
    for name, wrong in calibration.rates(row, PLANS, 4_000).items():
        assert max(wrong) <= calibration.most(row, 4_000), name


@pytest.mark.parametrize("noise", ["heavy tails", "wild seeds"])
def test_noise_that_is_alike_on_both_sides_makes_verdicts_rarer_and_not_wrong(noise):
    for row in calibration.claims(noise):
        for name, wrong in calibration.rates(row, PLANS, 4_000).items():
            assert max(wrong) <= calibration.most(row, 4_000), (row.says, name)


@pytest.mark.parametrize("noise", ["skewed", "bad seeds", "two modes"])
def test_where_the_page_says_that_t_is_wrong_it_is(noise):
    row = calibration.claims(noise)[1]
    assert max(calibration.rates(row, PLANS, 2_000)["looks to 24"]) > 0.07
    assert "**" in calibration.line(row, {"4": PLANS["4"]}, 4_000)


def test_intervals_cover_the_truth_at_all_looks_but_where_the_page_says_otherwise():
    for row in calibration.covered():
        missed = {name: sum(wrong) for name, wrong in calibration.rates(row, TOGETHER, 2_000).items()}
        if any(noise in row.says for noise in ("t: skewed", "t: bad seeds", "t: two modes")):
            assert max(missed.values()) > 0.1, row.says
        else:
            assert max(missed.values()) <= 0.05 + 3 * (0.05 / 2_000) ** 0.5, row.says
            assert "t: normal" not in row.says or missed["8 seeds"] > 0.03


def test_looks_find_what_is_clear_with_fewer_seeds():
    for relation, seeds_of_looks in (("below", 7.1), ("within", 8.0)):
        row = Row("equal arms", NOISES["normal"], relation, 1.65, by_t)
        values = calibration.drawn(row, 4_000, 24)
        words, seeds = calibration.verdicts(row, values, PLANS["looks to 24"])
        assert (words == 1).mean() > 0.998
        assert seeds.mean() == pytest.approx(seeds_of_looks, abs=0.2)
        assert (calibration.verdicts(row, values, PLANS["8"])[0] == 1).mean() < 0.998


def test_the_page_has_the_figures_that_the_code_gives():
    page = PAGE.read_text("utf-8")
    assert calibration.costs() in page
    for row in (calibration.claims("normal")[0], calibration.claims("skewed")[1], RANKS[3]):
        assert calibration.line(row) in page


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("name", calibration.TABLES)
def test_each_table_of_the_page_is_made_by_its_command(name):
    table = calibration.TABLES[name]()
    assert table in PAGE.read_text("utf-8")
    # no rate is too high but where the page says that it is
    assert "**" not in table or name in ("other", "shares_by_t", "either")


def test_the_page_says_what_its_template_says():
    words = Path(calibration.__file__).with_suffix(".md").read_text("utf-8")
    parts = words.format(sweeps=f"{calibration.SWEEPS:,}", **dict.fromkeys(calibration.TABLES, "|")).split(
        "|"
    )
    assert len(parts) == len(calibration.TABLES) + 1
    assert all(part in PAGE.read_text("utf-8") for part in parts)
