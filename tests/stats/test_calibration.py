"""Error rates of verdicts on simulated sweeps with a known truth; docs/calibration.md lists them."""

import math
from pathlib import Path

import calibration
import numpy as np
import pytest
from calibration import (
    COVERAGE_PLANS,
    NOISES,
    PLANS,
    PROPORTION_ROWS,
    RANK_ROWS,
    Row,
    create_accuracy_pairs,
    create_failing_pairs,
    create_solved_pairs,
    decide_by_evalues,
    decide_by_ranks,
    decide_by_t,
    decide_by_t_or_ranks,
    shift_noise,
)

from attnlab.report.verdicts.evidence_bases import RatioEvidence
from attnlab.stats import (
    FIXED_SAMPLE,
    ClaimTest,
    PairedDifferences,
    ProportionDifferences,
    RankDifferences,
    decide_claims,
)

PAGE = Path(__file__).parents[2] / "docs" / "calibration.md"
EVIDENCE = {
    decide_by_t: PairedDifferences,
    decide_by_evalues: lambda values, design: ProportionDifferences(values),
    decide_by_ranks: lambda values, design: RankDifferences(values),
    decide_by_t_or_ranks: lambda values, design: (
        PairedDifferences(values, design) if np.isfinite(values).all() else RankDifferences(values)
    ),
}


def decide_like_report(values, plan, row):
    """The decision of one sweep and its seeds, as a report derives them: analysis by analysis."""
    decisions = []
    for n, design in plan:
        question = ClaimTest(EVIDENCE[row.decide](values[:n], design), row.region)
        decisions = decide_claims([question], previous=decisions)
        if decisions[0].holds is not None:
            return (1 if decisions[0].holds else -1), n
    return 0, plan[-1][0]


# away from the threshold too, so that there is something to decide
COMPARED_ROWS = [
    *(
        Row(f"{noise} {m}", shift_noise(draw, m), *claim, decide_by_t)
        for noise, draw in NOISES.items()
        for m, claim in ((0.9, ("above", 0.0)), (0.3, ("within", 1.65)), (-1.2, ("above", -0.4)))
    ),
    Row("90 % against half", create_solved_pairs(0.9, 0.5), "above", 0.0, decide_by_evalues),
    Row("60 % against 95 %", create_solved_pairs(0.6, 0.95), "above", -0.1, decide_by_evalues),
    Row("never apart", create_solved_pairs(1.0, 0.98), "within", 0.2, decide_by_evalues),
    Row("accuracies", create_accuracy_pairs(0.95, 0.4), "below", 0.3, decide_by_evalues),
    Row("the arm fails", shift_noise(create_failing_pairs(0.3), -1.0), "below", 0.0, decide_by_ranks),
    Row(
        "either fails", shift_noise(create_failing_pairs(0.2, both=True), 0.5), "within", 1.0, decide_by_ranks
    ),
    Row("worse, and fails", shift_noise(create_failing_pairs(0.3), 2.0), "below", 0.0, decide_by_ranks),
    Row(
        "better, and may fail",
        shift_noise(create_failing_pairs(0.1), -1.0),
        "below",
        0.0,
        decide_by_t_or_ranks,
    ),
    Row(
        "worse, and may fail", shift_noise(create_failing_pairs(0.1), 2.0), "below", 0.0, decide_by_t_or_ranks
    ),
    *PROPORTION_ROWS[:3],
    *RANK_ROWS[-3:],
]


def draw_values(row):
    return calibration.draw_sweeps(
        row, 5 if row.decide is decide_by_evalues else 12, 24
    )  # e-value intervals are slow


@pytest.mark.sampled(10)
@pytest.mark.parametrize("row", COMPARED_ROWS, ids=lambda row: row.label)
def test_simulated_sweeps_are_decided_as_in_reports(row):
    values = draw_values(row)
    for name in ("2", "3", "8", "24", "looks to 16", "looks to 24", "by hand to 24"):
        verdicts, seeds = calibration.decide_sweeps(row, values, PLANS[name])
        assert [decide_like_report(sweep, PLANS[name], row) for sweep in values] == list(
            zip(verdicts, seeds, strict=True)
        )


def test_compared_sweeps_cover_every_decision_of_every_method():
    plans = [PLANS[name] for name in ("8", "24", "by hand to 24")]
    verdicts = {
        (row.decide, verdict)
        for row in COMPARED_ROWS
        for plan in plans
        for verdict in calibration.decide_sweeps(row, draw_values(row), plan)[0]
    }
    assert verdicts == {(read, verdict) for read in EVIDENCE for verdict in (-1, 0, 1)}


def test_ratio_is_decided_as_difference_of_logarithms():
    a, b = np.random.default_rng(0).gamma(4, size=(2, 200, 6))
    row = Row("ratio", NOISES["normal"], "above", 0.0, decide_by_t)
    verdicts, _ = calibration.decide_sweeps(row, np.log(1.6 * a / b), PLANS["6"])
    for verdict, arm_values, baseline_values in zip(verdicts, 1.6 * a, b, strict=True):
        (decision,) = decide_claims(
            [
                ClaimTest(
                    RatioEvidence(arm_values / baseline_values, FIXED_SAMPLE), (1.0, math.inf), center=1.0
                )
            ]
        )
        assert decision.holds is {1: True, -1: False, 0: None}[verdict]
    assert set(verdicts) >= {0, 1}


def test_error_rates_with_normal_noise_are_nominal():
    for row in calibration.list_claims("normal"):
        max_rate = calibration.get_max_rate(row, 8_000)
        for name, (supported, refuted) in calibration.measure_rates(row, PLANS, 8_000).items():
            assert max(supported, refuted) <= max_rate, (row.label, name)
            if not name.startswith("by hand"):  # conservative: valid at any number of analyses
                min_rate = 2 * row.get_tail() - max_rate
                assert refuted >= min_rate, (row.label, name)
                assert supported >= min_rate or row.relation == "within", (row.label, name)


@pytest.mark.parametrize("row", [*PROPORTION_ROWS, *RANK_ROWS], ids=lambda row: row.label)
def test_error_rates_of_evalues_and_ranks_are_at_most_nominal(row):
    for name, wrong in calibration.measure_rates(row, PLANS, 4_000).items():
        assert max(wrong) <= calibration.get_max_rate(row, 4_000), name


@pytest.mark.parametrize("noise", ["heavy tails", "wild seeds"])
def test_symmetric_heavy_tails_do_not_raise_error_rates(noise):
    for row in calibration.list_claims(noise):
        for name, wrong in calibration.measure_rates(row, PLANS, 4_000).items():
            assert max(wrong) <= calibration.get_max_rate(row, 4_000), (row.label, name)


@pytest.mark.parametrize("noise", ["skewed", "bad seeds", "two modes"])
def test_t_errs_where_the_page_reports_errors(noise):
    row = calibration.list_claims(noise)[1]
    assert max(calibration.measure_rates(row, PLANS, 2_000)["looks to 24"]) > 0.07
    assert "**" in calibration.format_row(row, {"4": PLANS["4"]}, 4_000)


def test_intervals_cover_the_truth_at_all_analyses_except_documented_noises():
    for row in calibration.list_coverage_rows():
        missed = {
            name: sum(wrong) for name, wrong in calibration.measure_rates(row, COVERAGE_PLANS, 2_000).items()
        }
        if any(noise in row.label for noise in ("t: skewed", "t: bad seeds", "t: two modes")):
            assert max(missed.values()) > 0.1, row.label
        else:
            assert max(missed.values()) <= 0.05 + 3 * (0.05 / 2_000) ** 0.5, row.label
            assert "t: normal" not in row.label or missed["8 seeds"] > 0.03


def test_interim_analyses_decide_clear_effects_with_fewer_seeds():
    for relation, seeds_of_looks in (("below", 7.1), ("within", 8.0)):
        row = Row("equal arms", NOISES["normal"], relation, 1.65, decide_by_t)
        values = calibration.draw_sweeps(row, 4_000, 24)
        verdicts, seeds = calibration.decide_sweeps(row, values, PLANS["looks to 24"])
        assert (verdicts == 1).mean() > 0.998
        assert seeds.mean() == pytest.approx(seeds_of_looks, abs=0.2)
        assert (calibration.decide_sweeps(row, values, PLANS["8"])[0] == 1).mean() < 0.998


def test_page_has_the_computed_figures():
    page = PAGE.read_text("utf-8")
    assert calibration.format_cost_table() in page
    for row in (calibration.list_claims("normal")[0], calibration.list_claims("skewed")[1], RANK_ROWS[3]):
        assert calibration.format_row(row) in page


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("name", calibration.TABLES)
def test_each_table_of_the_page_is_reproduced(name):
    table = calibration.TABLES[name]()
    assert table in PAGE.read_text("utf-8")
    # no rate is too high but where the page says that it is
    assert "**" not in table or name in ("contrasts", "other", "shares_by_t", "either")


def test_page_matches_its_template():
    template = Path(calibration.__file__).with_suffix(".md").read_text("utf-8")
    parts = template.format(sweeps=f"{calibration.SWEEPS:,}", **dict.fromkeys(calibration.TABLES, "|")).split(
        "|"
    )
    assert len(parts) == len(calibration.TABLES) + 1
    assert all(part in PAGE.read_text("utf-8") for part in parts)
