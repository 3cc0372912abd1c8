"""docs/calibration_files.md has the computed error rates of verdicts on runs that were trained elsewhere."""

import math
from pathlib import Path

import calibration_files as simulate
import numpy as np
import pytest

from attnlab import stats
from attnlab.external.candidate_log import CandidateTest, compute_evalues, open_log
from attnlab.external.judgment import judge_runs
from attnlab.external.question import Question
from attnlab.external.result_files import ExternalRun

PAGE = (Path(__file__).parents[2] / "docs" / "calibration_files.md").read_text("utf-8")
MARGIN, LEVEL = 0.7, 10.0  # of a loss
QUESTION = Question(metric="loss", lower_is_better=True, margin=MARGIN)
LOOKS = {"looks to 16": simulate.LOOKS, "anytime to 30": "anytime", "2 to 20 of B, anytime": "anytime"}


def list_runs(losses, paired=True):
    return [
        ExternalRun(f"runs:{seed}", None, str(seed) if paired else None, "done", (), (float(loss),))
        for seed, loss in enumerate(losses)
    ]


def judge_sides(a, b, plan, paired):
    """The decision of `judge` at the first look that decides."""
    question = QUESTION.model_copy(update={"looks": LOOKS.get(plan, "once")})
    for runs_a, runs_b, _ in simulate.ALL_PLANS[plan]:
        sides = list_runs(LEVEL + a[:runs_a], paired), list_runs(LEVEL - MARGIN + b[:runs_b], paired)
        holds = judge_runs(*sides, question, same_unit=True).decision.holds
        if holds is not None:
            return 1 if holds else -1
    return 0


WIDER, PAIRED = "B has twice the spread", "paired, B has twice the spread"


@pytest.mark.parametrize(
    ("plan", "relation"),
    [*((plan, WIDER) for plan in simulate.ALL_PLANS), *((plan, PAIRED) for plan in simulate.PLANS)],
)
def test_comparisons_are_decided_as_by_judge(plan, relation):
    paired = simulate.RELATIONS[relation][1]
    count = 2 if "anytime" in plan else 6
    for noise, shift in zip(("normal", "skewed", "heavy tails"), (0.0, 3.0, -2.0), strict=True):
        a, b = simulate.draw_sides(noise, relation, plan, count)
        verdicts = simulate.decide_comparisons(a + shift, b, simulate.ALL_PLANS[plan], paired)
        expected = [judge_sides(a[i] + shift, b[i], plan, paired) for i in range(count)]
        assert expected == verdicts.tolist()
        assert set(expected) & {0, int(np.sign(shift))}


def test_wrong_rates_are_nominal_where_the_theory_is_exact():
    a, b = simulate.draw_sides("normal", "paired, B has twice the spread", "7", 20_000)
    verdicts = simulate.decide_comparisons(a, b, simulate.PLANS["7"], paired=True)
    for verdict in (1, -1):
        assert (verdicts == verdict).mean() == pytest.approx(0.025, abs=3 * (0.025 / 20_000) ** 0.5)


SEARCH = simulate.Search(12, 0.5, 2.0, 8, "skewed", 2.0)


def draw_gains(count=6):
    sample = simulate.draw_searches(SEARCH, count)
    return sample, sample.compute_gains()


def test_evalues_are_those_of_judge():
    sample, gains = draw_gains(2)
    judgment = judge_runs(
        list_runs(LEVEL + sample.champion[0]),
        list_runs(LEVEL - MARGIN + sample.candidates[0, 3] - sample.shift * sample.better[0, 3]),
        QUESTION,
    )
    assert simulate.compute_evalues(gains)[0, 3] == pytest.approx(compute_evalues(judgment, QUESTION)[0])
    paths = simulate.compute_evalue_paths(gains)
    for i, j, n in np.ndindex(paths.shape):
        assert paths[i, j, n] == pytest.approx(stats.compute_t_evalue(gains[i, j, : n + 1]), rel=1e-9)
    assert simulate.compute_evalues(gains) == pytest.approx(paths[..., -1], rel=1e-9)


def test_t_tests_are_one_sided():
    _, gains = draw_gains()
    expected = [[stats.PairedDifferences(x).p_above(0.0) < 0.025 for x in row] for row in gains]
    assert simulate.pass_t_tests(gains).tolist() == expected
    assert {False, True} == set(np.ravel(expected).tolist())


class Log:
    """A log of `judge` that counts sets of runs."""

    def __init__(self, log):
        self.log, self.sets = log, 0

    def test(self, e_values):
        candidates = []
        for e_value in e_values:
            self.sets += 1
            candidates.append(
                CandidateTest(
                    champion="a",
                    candidate="b",
                    digests=("a", str(self.sets)),
                    seeds=(),
                    runs=(8, 8, 8),
                    estimate=None,
                    e_value=float(e_value),
                    largest_e_value=1e300,
                )
            )
        return [test.accepted for test in self.log.test_candidates(candidates)]


@pytest.fixture
def create_log(tmp_path):
    number = iter(range(100))

    def create(procedure="online"):
        with open_log(tmp_path / f"{next(number)}.jsonl", QUESTION, simulate.FDR, procedure) as log:
            return Log(log)

    return create


@pytest.mark.parametrize("procedure", ["online", "batch"])
def test_candidates_are_accepted_as_by_a_log(create_log, procedure):
    _, gains = draw_gains()
    e_values = simulate.compute_evalues(gains)
    accept = {"online": simulate.accept_online, "batch": simulate.accept_batches}[procedure]
    expected = [create_log(procedure).test(row) for row in e_values]
    assert accept(e_values).tolist() == expected
    assert 0 < np.sum(expected) < e_values.size


def test_new_champions_are_the_base_of_later_tests(create_log):
    """With the means of all candidates: each is better by the margin, or more, than the champion."""
    sample, _ = draw_gains(4)
    accepted = simulate.try_with_new_champions(sample)[0]
    replaced = 0
    for i, better in enumerate(sample.better):
        log, mean, champion = create_log(), LEVEL, LEVEL + sample.champion[i]
        for j, is_better in enumerate(better):
            candidate_mean = mean - MARGIN - sample.shift * is_better
            candidate = candidate_mean + sample.candidates[i, j]
            [passed] = log.test([stats.compute_t_evalue(champion - candidate - MARGIN)])
            assert passed == accepted[i, j]
            if passed:
                mean, champion = candidate_mean, candidate
                replaced += 1
    assert replaced > 4


def test_added_pairs_are_counted_as_by_a_log(create_log):
    sample = simulate.draw_searches(simulate.Search(12, 0.8, 2.5, 9), 2)  # tests after discoveries decide
    gains = sample.compute_gains()
    per_pair, per_candidate, by_t = simulate.try_after_added_pairs(sample)
    for i, candidates in enumerate(gains):
        log, one_each = create_log(), create_log()
        for j, x in enumerate(candidates):
            e_values = [stats.compute_t_evalue(x[:n]) for n in range(2, len(x) + 1)]
            assert any(log.test([e_value]) == [True] for e_value in e_values) == per_pair[i, j]
            assert one_each.test([max(e_values)]) == [per_candidate[i, j]]
            p = [stats.PairedDifferences(x[:n]).p_above(0.0) for n in range(2, len(x) + 1)]
            assert (min(p) < 0.025) == by_t[i, j]
    assert 0 < per_pair.sum() < per_candidate.sum()


def test_discoveries_by_hand():
    accepted = np.array([[True, True, False, True], [False] * 4])
    better = np.array([[True, False, True, False], [True, True, False, False]])
    rate, found = simulate.measure_discoveries(accepted, better)
    assert rate == pytest.approx((2 / 3 + 0) / 2)
    assert found == 1 / 4


def read_table(name):
    """The rows of a table of the page, without its head."""
    before = simulate.fill_page(dict.fromkeys(simulate.TABLES, "|")).split("|")[
        [*simulate.TABLES].index(name)
    ]
    return PAGE.partition(before)[2].split("\n\n")[0].strip().splitlines()


@pytest.mark.parametrize("name", simulate.TABLES)
def test_tables_of_the_page_are_complete(name):
    table = simulate.TABLES[name]
    head, _, *rows = read_table(name)
    assert head == simulate.format_cells(*table.head)
    assert [row.count("|") for row in rows] == [head.count("|")] * len(table.rows)
    for row, label in zip(rows, table.rows, strict=True):
        assert row.startswith(simulate.format_cells(*label)[:-1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in simulate.TABLES if name != "added_wider"])  # slow
def test_a_row_of_each_table_is_reproduced(name):
    table = simulate.TABLES[name]
    label = next(iter(table.rows))
    assert table.format_row(label) in read_table(name)


def test_rates_are_too_high_only_where_the_page_says_so():
    for name in ("sides", "unequal"):
        for row in read_table(name)[2:]:
            is_skewed = "| skewed | B has" in row or "| skewed | paired, B has" in row
            assert ("**" in row) <= (is_skewed or name == "unequal"), row
    for name in simulate.TABLES:
        if name in ("sides", "unequal", "limits"):
            continue
        heads = simulate.TABLES[name].head
        for row in read_table(name)[2:]:
            cells = row.strip("| ").split(" | ")
            bold = {head for head, cell in zip(heads, cells, strict=True) if "**" in cell}
            allowed = {head for head in heads if head.endswith("t tests")}
            if name == "added_wider" and cells[1] == "none":
                allowed |= {"e-LOND, a test per candidate"}
            assert bold <= allowed, row


def test_page_matches_its_template():
    parts = simulate.fill_page(dict.fromkeys(simulate.TABLES, "|")).split("|")
    assert len(parts) == len(simulate.TABLES) + 1
    assert all(part in PAGE for part in parts)
    assert math.isclose(simulate.compute_max_rate(0.05, 10_000), 0.0565, abs_tol=1e-4)
