"""Length and recall: results by condition, such as a longer text, and steps to a threshold."""

from typing import Final

from attnlab.report import section
from attnlab.report.charts.series_figures import build_length_charts
from attnlab.report.number_format import format_number, format_pvalue
from attnlab.report.schema import ConditionRow, ConditionTable, Report, StepsToThresholdTable
from attnlab.report.section import Block, Cell, ChartRow, Column, Heading, Key, Section, Table
from attnlab.report.sections import PageContext

PLACE: Final = 80
THRESHOLD_CAPTION = (
    "Runs that reached the threshold (with the exact interval of their proportion), the median over runs, "
    "and the paired difference to {against} with its 95% interval. The log-rank p is unpaired and "
    "approximate; the sign-flip p is exact."
)


def build(report: Report, context: PageContext) -> Section | None:
    """Build the section of conditions and thresholds, if any was measured."""
    blocks: list[Block] = []
    if report.length:
        blocks += [Key(), ChartRow("Results by condition", build_length_charts(report))]
        blocks += [_build_conditions(table, report.experiment.arms) for table in report.length]
    for table in report.steps_to_threshold:
        blocks += [
            Heading(table.label[:1].upper() + table.label[1:]),
            section.note(
                f"Counted up to a budget of {format_number(table.budget, unit=table.unit)}; a run that does "
                "not reach the threshold, or diverges, counts with the whole budget. Negative values are "
                f"earlier than {table.against}."
            ),
            _build_thresholds(table),
        ]
    return Section("length", "Length and recall", blocks) if blocks else None


def _build_conditions(table: ConditionTable, arms: list[str]) -> Table:
    """A row per condition, a column per arm."""
    same_tokens = ", on the same target tokens at every length" if table.key == "length" else ""
    columns = [Column("condition"), Column("", "x"), *map(Column, arms)]
    rows: list[list[Cell | str]] = [
        [row.condition, section.number(row.x), *(_build_condition(table, row, arm) for arm in arms)]
        for row in table.rows
    ]
    caption = f"{table.title}: mean over seeds and its 95% interval{same_tokens}."
    return Table(f"conditions.{table.key}", caption, columns, rows, by_arm=True)


def _build_condition(table: ConditionTable, row: ConditionRow, arm: str) -> Cell:
    cell = next((cell for cell in row.cells if cell.arm == arm), None)
    if cell is None:
        return Cell("undefined", kind="number") if arm in row.undefined else section.number(None)
    cell = cell.clip((0.0, 1.0)) if table.is_proportion else cell
    return section.interval(cell.mean, cell.low, cell.high, 3)


def _build_thresholds(table: StepsToThresholdTable) -> Table:
    """A row per arm."""
    columns = [
        Column("arm"), Column("reached"), Column("", "n"), Column("", "planned"), Column("proportion"),
        Column("median"), Column(f"{table.unit} against {table.against}", "difference"),
        Column("sign-flip p (floor)", "p_sign_flip"), Column("", "p_floor"),
        Column("log-rank p", "p_logrank"),
    ]  # fmt: skip
    rows = []
    for row in table.rows:
        reached, comparison = row.reached, row.comparison
        planned = "" if row.planned == reached.n else f" ({format_number(row.planned)} planned)"
        cells = [
            section.arm(row.arm),
            section.number(reached.count, note=f"of {format_number(reached.n)}{planned}"),
            section.number(reached.n),
            section.number(row.planned),
            section.bounds(reached.low, reached.high, 2, sign=False),
            Cell("not reached", kind="number") if row.median is None else section.number(row.median),
        ]
        if comparison is None:
            cells += [section.number(None)] * 4
        else:
            saved, flips = comparison.steps_saved, comparison.sign_flip
            cells += [
                section.interval(saved.mean, saved.low, saved.high, 0, sign=True),
                Cell(format_pvalue(flips.p), flips.p, note=f"({format_pvalue(flips.floor)})", kind="number"),
                section.pvalue(flips.floor),
                section.pvalue(comparison.logrank_p),
            ]
        rows.append(cells)
    caption = THRESHOLD_CAPTION.format(against=table.against)
    return Table(f"steps_to_threshold.{table.metric}", caption, columns, rows)
