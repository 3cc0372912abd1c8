"""The learning-rate search in a report: every rate tried, the rung that dropped it, and the cost."""

import math
from pathlib import Path
from typing import Any

import pytest
from rates import build_tuning_result
from rendering import make_report
from synthetic import World, replace_fields, write_runs

from attnlab.report.schema import Report, TuningResult
from attnlab.report.section import Text, list_tables
from attnlab.report.sections import PageContext, budget_section

ARMS = ("mha", "gqa")


def compute_loss(rate: float, seed: int) -> float:
    return math.inf if rate > 0.01 and seed == 101 else abs(math.log10(rate / 0.01)) + seed / 1000


def approximately(value: float) -> Any:
    return pytest.approx(value, abs=1e-3)


def describe_rates(report: Report) -> str:
    blocks = budget_section.build(report, PageContext()).blocks
    return next(
        block.plain for block in blocks if isinstance(block, Text) and "Learning rates:" in block.plain
    )


@pytest.fixture
def build_from_tuning(tmp_path: Path) -> Any:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2])
    runs = write_runs(tmp_path, world)

    def build(tuning: TuningResult) -> Report:
        report = make_report(runs, world, tuning=tuning)
        assert Report.model_validate(report.to_dict()) == report
        return report

    return build


def test_page_shows_every_rate_with_seeds_rung_and_cost(build_from_tuning: Any) -> None:
    report = build_from_tuning(build_tuning_result(ARMS, compute_loss))
    sentence = report.budget.lr_tuning
    assert sentence.count(". ") == 3, "four sentences"
    assert "3 learning rates with seed 100 (first rung)" in sentence
    assert "neighbors with seeds 101, 102 too (second rung), each for 33% of its steps" in sentence
    assert "the best median val/loss" in sentence
    assert sentence.endswith("at most 3 times. Tuning took 56% of the training tokens of the comparison")
    section = budget_section.build(report, PageContext())
    assert describe_rates(report) == (
        "Learning rates: mha 0.01 (0.101), gqa 0.01 (0.101), by the median val/loss of 3 tuning seeds."
    )
    table = list_tables([section])["learning_rates"]
    trials = [row for row in table.iterate_records() if row.pop("arm") == "gqa"]
    spent = {"tokens": 100, "comparison_ratio": approximately(0.5556)}
    assert [[*row.values()][:-2] for row in trials] == [
        [0.001, 1.1, None, None, None, "dropped in the first rung", False],
        [0.003, *map(approximately, (0.6229, 0.6239, 0.6249, 0.6239)), "second rung", False],
        [0.01, 0.1, 0.101, 0.102, 0.101, "selected", True],
        [
            0.03333,
            approximately(0.6229),
            None,
            *[approximately(0.6249)] * 2,
            "second rung, grid extension",
            False,
        ],
    ]
    assert all(row | spent == row for row in trials)
    assert table.full_rows[3].typed_cells[3].text == "diverged"


def test_rates_are_shown_with_the_statistic_and_the_rule_that_picked_them(tmp_path: Path) -> None:
    def look_up_loss(rate: float, seed: int) -> float:
        return {0.001: 0.6, 0.003: 0.505, 0.01: 0.5}.get(rate, 0.7)

    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2])
    runs = write_runs(tmp_path, world)
    for robust, statistic, lr in ((None, "median", 0.01), (0.01, "mean", 0.003)):
        tuning = build_tuning_result(ARMS, look_up_loss, robust=robust)
        report = make_report(runs, world, tuning=tuning, required_seeds={"gqa": 2})
        section = report.budget
        assert [row.lr for row in section.tuning.arms[0].rows if row.picked] == [lr]
        assert ("whose mean val/loss is at most 0.01 worse" in section.lr_tuning) == (robust is not None)
        assert f"by the {statistic} val/loss of 3 tuning seeds." in describe_rates(report)
        ratios = {arm.arm: arm.comparison_ratio for arm in section.tuning.arms}
        assert ratios["gqa"] == pytest.approx(1.5 * ratios["mha"]), "relative to the seeds needed so far"
    old = replace_fields(report, budget__tuning__statistic=None)
    assert "by the median val/loss" in describe_rates(old)
    old = replace_fields(old, reproduce__preregistered={"tune": {"robust": 0.01}})
    assert describe_rates(old) == describe_rates(report)


def test_warnings_for_grid_edge_missing_pick_and_other_settings(build_from_tuning: Any) -> None:
    def join_warnings(**changes: Any) -> str:
        return " ".join(build_from_tuning(build_tuning_result(ARMS, **changes)).warnings)

    edge_warning = "gqa: the best learning rate is at the edge of the grid"
    assert edge_warning in join_warnings(look_up_loss=compute_loss, extend=0)
    assert edge_warning not in join_warnings(look_up_loss=compute_loss)
    assert "has no run" not in join_warnings(look_up_loss=compute_loss)
    warnings = join_warnings(look_up_loss=lambda rate, seed: None if seed == 101 else rate)
    assert "gqa: its learning rate is unknown: no result at 3.703e-05 with seed 101" in warnings
    assert "so it has no run" in warnings
    assert "gqa: its learning rate was tuned with other settings" in join_warnings(
        look_up_loss=compute_loss, settings="config-b"
    )


@pytest.mark.parametrize(("excess", "is_warned"), [(0.0, False), (0.5, False), (0.7, True), (math.inf, True)])
def test_warning_for_a_picked_rate_with_one_bad_seed(
    build_from_tuning: Any, excess: float, is_warned: bool
) -> None:
    """The median of the other rate is 0.52 worse, and so is its worst seed."""

    def look_up_loss(rate: float, seed: int) -> float:
        return compute_loss(rate, seed) + (excess if rate == 0.01 and seed == 102 else 0.0)

    warnings = " ".join(build_from_tuning(build_tuning_result(ARMS, look_up_loss)).warnings)
    warning = "gqa: the learning rate 0.003 has a better worst tuning seed than the selected 0.01"
    assert (warning in warnings) == is_warned
