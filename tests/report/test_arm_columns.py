"""Columns of a table of many arms: other metrics, longer texts, equal bytes."""

from pathlib import Path

import pytest
from synthetic import World, build_context, build_provenance, replace_fields, write_runs

from attnlab import stats
from attnlab.report.report_builder import build_report
from attnlab.report.schema import Report
from attnlab.report.section import list_tables
from attnlab.report.sections import PageContext, tradeoff_section
from attnlab.report.sections.answer_section import build_arms_table
from attnlab.report.tables import arm_columns

ARMS = ["mha", *(f"arm_{i}" for i in range(1, arm_columns.MANY_ARMS + 1))]
EXTRA = {"val/accuracy": 0.5, "length/1": 4.0, "length/2": 4.1}


def make_report(folder: Path, arms: list[str]) -> Report:
    world = World(effects={arm: 0.01 * i for i, arm in enumerate(arms)}, extra=EXTRA)
    context = build_context(world, claims=[], metrics=["val/accuracy"])
    return build_report(context, write_runs(folder, world), None, build_provenance())


@pytest.fixture(scope="module")
def many_arms_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make_report(tmp_path_factory.mktemp("many"), ARMS)


def test_many_arms_get_columns_for_every_metric_and_the_longest_text(many_arms_report: Report) -> None:
    accuracy, longest = arm_columns.build_arm_columns(many_arms_report)
    assert accuracy.label == "val/accuracy"
    assert {arm: cell.mean for arm, cell in accuracy.cells.items()} == dict.fromkeys(ARMS, 0.5)
    assert {arm: cell.mean for arm, cell in longest.cells.items()} == dict.fromkeys(ARMS, 4.1)
    rows = [*build_arms_table(many_arms_report).iterate_records()]
    assert {row["arm"]: row["val/accuracy"] for row in rows} == dict.fromkeys(ARMS, 0.5)
    assert {row["loss at 2 times the trained length"] for row in rows} == {4.1}


def test_few_arms_get_no_additional_columns(tmp_path: Path) -> None:
    report = make_report(tmp_path, ARMS[:-1])
    assert arm_columns.build_arm_columns(report) == []
    assert [*list_tables([tradeoff_section.build(report, PageContext())])] == ["costs"]


def test_arms_of_equal_bytes_are_grouped_with_their_distance_to_the_best(many_arms_report: Report) -> None:
    [cache] = [panel for panel in many_arms_report.tradeoff if panel.key == "kv_bytes_per_token"]
    bytes_by_arm = {
        "arm_3": 64.0,
        "arm_7": 64.0,
        "arm_5": 32.0,
    }  # two share half of the others' 128, one has its own
    points = [replace_fields(point, x=bytes_by_arm.get(point.arm, 128.0)) for point in cache.points]
    many_arms_report = replace_fields(many_arms_report, tradeoff=[replace_fields(cache, points=points)])
    tables = list_tables([tradeoff_section.build(many_arms_report, PageContext())])
    rows = [*tables["equal_cache"].iterate_records()]
    assert [row["arm"] for row in rows] == [
        "mha",
        "arm_1",
        "arm_2",
        "arm_4",
        "arm_6",
        "arm_8",
        "arm_3",
        "arm_7",
    ]
    values = {
        arm: {run.seed: run.metrics["val/loss"] for run in many_arms_report.runs if run.arm == arm}
        for arm in ("arm_3", "arm_7")
    }
    expected = stats.estimate_paired_difference(
        [values["arm_7"][seed] - values["arm_3"][seed] for seed in values["arm_3"]]
    )
    assert [rows[-1][key] for key in ("difference", "difference_low", "difference_high")] == pytest.approx(
        [expected.mean, expected.low, expected.high]
    )
    assert [row["kv_bytes_per_token"] for row in rows[5:7]] == [128, 64]
    assert rows[0]["difference"] is rows[6]["difference"] is None, "the best of their sizes"
