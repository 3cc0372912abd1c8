"""Effects, trade-off, curves and conditions as sections: their tables have the numbers of the report."""

import pytest
from rendering import REFERENCES, read_table
from synthetic import replace_fields
from worlds import SyntheticReports

from attnlab.report.schema import Report, load_report
from attnlab.report.section import ChartRow, Section, Table, Text, iterate_blocks, list_charts, list_tables
from attnlab.report.sections import (
    PageContext,
    curves_section,
    effects_section,
    length_section,
    tradeoff_section,
)


@pytest.fixture(scope="module")
def heads_by_task() -> Report:
    """A stored report with conditions, steps to a threshold and a proportion."""
    return load_report(REFERENCES / "heads_by_task" / "report.json")


def read_texts(section: Section) -> str:
    return " ".join(block.plain for block in section.blocks if isinstance(block, Text))


def test_effects_have_a_row_per_arm_and_metric_and_one_per_pair(synthetic_reports: SyntheticReports) -> None:
    report = synthetic_reports["good"][0]
    section = effects_section.build(report, PageContext())
    keys = ("against", "unit", "primary", "n", "mean", "low", "high", "level", "margin", "sd", "p", "p_holm",
            "p_equivalent", "p_noninferior", "verdict")  # fmt: skip
    for row, record in zip(report.effects, read_table(section, "effects"), strict=True):
        assert {key: record[key] or None for key in keys} == {key: getattr(row, key) or None for key in keys}
        assert (record["arm"], record["metric"], record["training"]) == (row.arm, row.metric, None)
    assert [(row["arm"], row["seed"], row["difference"]) for row in read_table(section, "pairs")] == [
        (row.arm, pair.seed, pair.difference) for row in report.effects for pair in row.pairs
    ]
    unpaired = [replace_fields(row, pairs=[]) for row in report.effects]
    section = effects_section.build(replace_fields(report, effects=unpaired), PageContext())
    assert [*list_tables([section])] == ["effects"], "no fold without content"
    nothing = effects_section.build(synthetic_reports["nothing"][0], PageContext())
    assert read_texts(nothing).endswith("No pair of finished runs to compare.")


def test_tradeoff_has_a_row_per_cost_and_arm_and_a_chart_per_differing_cost(
    synthetic_reports: SyntheticReports,
) -> None:
    report = synthetic_reports["good"][0]
    section = tradeoff_section.build(report, PageContext())
    points = [(panel, point) for panel in report.tradeoff for point in panel.points]
    for (panel, point), record in zip(points, read_table(section, "costs"), strict=True):
        assert [record[key] for key in ("arm", "cost", "value", "value_low", "value_high", "result")] == [
            point.arm, panel.key, point.x, point.x_low, point.x_high, point.y,
        ]  # fmt: skip
        assert record["is_on_front"] is (point.arm in panel.pareto_front)
    equal = [panel.label for panel in report.tradeoff if len({point.x for point in panel.points}) == 1]
    assert equal
    assert all(f"Equal in all arms: {label}, " in read_texts(section) for label in equal)
    assert len(list_charts([section])) == len(report.tradeoff) - len(equal)
    for size, is_named in ((2, True), (1, False)):
        panels = [replace_fields(panel, pareto_front=panel.pareto_front[:size]) for panel in report.tradeoff]
        section = tradeoff_section.build(replace_fields(report, tradeoff=panels), PageContext())
        [row] = [block for block in section.blocks if isinstance(block, ChartRow)]
        assert ("The dashed line is the Pareto front." in row.caption) is is_named
    nothing = tradeoff_section.build(synthetic_reports["nothing"][0], PageContext())
    assert list_tables([nothing]) == {}


def test_curves_have_all_points_in_tables_that_only_programs_and_pages_have(heads_by_task: Report) -> None:
    section = curves_section.build(heads_by_task, PageContext())
    assert heads_by_task.curves and heads_by_task.positions  # noqa: PT018
    for name, axis, means in (
        ("mean_curves", "tokens", [(line, line.tokens) for line in heads_by_task.curves.means]),
        ("position_losses", "position", [(line, line.position) for line in heads_by_task.positions.means]),
    ):
        assert [
            (record["arm"], record[axis], record["mean"], record["seeds"])
            for record in read_table(section, name)
        ] == [
            (line.arm, place, value, line.seeds)
            for line, places in means
            for place, value in zip(places, line.values, strict=True)
        ]
    tables = [block for block in iterate_blocks(section.blocks) if isinstance(block, Table)]
    assert all(table.is_long for table in tables)
    assert [chart.name for chart in list_charts([section])] == ["curve0", "curve1", "positions"]
    empty = curves_section.build(replace_fields(heads_by_task, curves=None, positions=None), PageContext())
    assert read_texts(empty) == "No run has a curve."


def test_conditions_have_a_column_per_arm_with_intervals_of_proportions_in_bounds(
    heads_by_task: Report,
) -> None:
    [table] = heads_by_task.length
    last = table.rows[-1]
    rows = [*table.rows[:-1], replace_fields(last, cells=last.cells[1:], undefined=["mha"])]
    report = replace_fields(heads_by_task, length=[replace_fields(table, rows=rows)])
    section = length_section.build(report, PageContext())
    [first, *_, unmeasured] = read_table(section, "conditions.recall")
    cells = {cell.arm: cell for cell in table.rows[0].cells}
    assert {arm: first[arm] for arm in cells} == {arm: cell.mean for arm, cell in cells.items()}
    assert (first["tpa_low"], first["tpa_high"], first["x"]) == (0, 1, table.rows[0].x)
    assert cells["tpa"].high is not None and cells["tpa"].high > 1  # noqa: PT018
    assert unmeasured["mha"] is None
    shown = next(block for block in iterate_blocks(section.blocks) if isinstance(block, Table))
    assert shown.full_rows[-1].typed_cells[2].text == "undefined"
    nothing = replace_fields(heads_by_task, length=[], steps_to_threshold=[])
    assert length_section.build(nothing, PageContext()) is None
