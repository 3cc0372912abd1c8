"""Trade-off: the costs of each arm against its result, and the ranking of arms with equal cache size."""

from dataclasses import replace
from typing import Final

from attnlab.report import section
from attnlab.report.charts.tradeoff_figures import build_tradeoff_charts, has_differing_costs
from attnlab.report.number_format import append_unit, format_number
from attnlab.report.schema import Report
from attnlab.report.section import Block, Cell, ChartRow, Column, Fold, Key, Section, Table, Text
from attnlab.report.sections import PageContext
from attnlab.report.sections.answer_section import build_arms_table
from attnlab.report.tables.arm_columns import MANY_ARMS, average_seeds, get_values_by_seed

PLACE: Final = 60
CACHE_BYTE_KEYS = ("kv_bytes_per_token", "carried_bytes")  # equal values: equal cache size
RANKING_CAPTION = (
    "Arms with equal cache size, best first, and the paired difference of the others to the best, with 95% "
    "intervals. The best arm is selected on the same data, so these differences are biased upward."
)


def build(report: Report, context: PageContext) -> Section:
    """Build the section of costs."""
    experiment = report.experiment
    if not report.tradeoff:
        text = "Fewer than two arms have finished, so there is no trade-off to show."
        return Section("tradeoff", "Trade-off", [Text(text)], is_long=True)
    many = len(experiment.arms) > MANY_ARMS
    has_front = any(len(panel.pareto_front) > 1 for panel in report.tradeoff if has_differing_costs(panel))
    reading = section.join_text(
        "The dashed line is the Pareto front." if has_front else "",
        f"The vertical bar is the 95% interval of the paired difference to {experiment.baseline}, centered "
        "at the mean of the arm; the baseline has none.",
    )
    equal_costs = [panel for panel in report.tradeoff if not has_differing_costs(panel)]
    ranking = _build_ranking(report)
    blocks: list[Block] = [
        Text("Cost of each arm against its result.", style="lead"),
        *([] if many else [Key()]),
        ChartRow(f"Costs against {experiment.metric}", build_tradeoff_charts(report), reading),
        *(
            section.note(
                f"Equal in all arms: {panel.label}, {format_number(panel.points[0].x, unit=panel.unit)}."
            )
            for panel in equal_costs
        ),
        *([Fold("Ranking at equal cache size", [ranking])] if ranking else []),
        Fold("Table of costs and results", [_build_costs(report)], is_long=many),
    ]
    return Section("tradeoff", "Trade-off", blocks, is_long=True)


def _build_ranking(report: Report) -> Table | None:
    """Among many arms those that cache as many bytes as another, per token and per text, most bytes first."""
    arms = build_arms_table(report)
    costs = [(i, column) for i, column in enumerate(arms.columns) if column.key in CACHE_BYTE_KEYS]
    ranked = next(i for i, column in enumerate(arms.columns) if column.key == "is_ranked")
    groups: dict[tuple[float, ...], list[list[Cell]]] = {}
    for cells in (row.typed_cells for row in arms.full_rows):
        cache_bytes = tuple(cells[i].value for i, _ in costs if cells[i].value is not None)
        if cache_bytes and len(cache_bytes) == len(costs) and cells[ranked].value:
            groups.setdefault(cache_bytes, []).append(cells)
    equal_groups = {cache_bytes: rows for cache_bytes, rows in groups.items() if len(rows) > 1}
    if len(report.experiment.arms) <= MANY_ARMS or len(equal_groups) < 2:
        return None
    digits = max(row.digits for row in report.effects if row.primary)
    columns = [
        Column("arm"),
        *(column for _, column in costs),
        replace(arms.columns[1], name="result", ends=None),
        Column("difference to the best", "difference"),
    ]
    rows = [
        [
            section.arm(cells[0].text),
            *map(section.number, cache_bytes),
            cells[1],
            _compare_to_best(report, cells[0].text, best[0].text, digits),
        ]
        for cache_bytes, (best, *others) in sorted(equal_groups.items(), reverse=True)
        for cells in (best, *others)
    ]
    return Table("equal_cache", RANKING_CAPTION, columns, rows)


def _compare_to_best(report: Report, arm: str, best: str, digits: int) -> Cell:
    """The mean of `arm` minus `best` over the seeds of both; a dash for the best itself."""
    if arm == best:
        return section.number(None)
    effects = [row for row in report.effects if row.primary]
    values, best_values = (
        get_values_by_seed(effects, name, report.experiment.baseline) for name in (arm, best)
    )
    difference = average_seeds([values[seed] - best_values[seed] for seed in best_values if seed in values])
    return section.interval(difference.mean, difference.low, difference.high, digits, sign=True)


def _build_costs(report: Report) -> Table:
    """A row per cost and arm."""
    columns = [
        Column("arm"), Column("cost"), Column("value"), Column(report.experiment.metric, "result"),
        Column("on the Pareto front", "is_on_front"),
    ]  # fmt: skip
    rows = [
        [
            section.arm(point.arm),
            Cell(append_unit(panel.label, panel.unit), panel.key),
            section.interval(point.x, point.x_low, point.x_high),
            section.number(point.y, panel.digits),
            Cell("yes", True) if point.arm in panel.pareto_front else Cell("no", False),
        ]
        for panel in report.tradeoff
        for point in panel.points
    ]
    caption = "Values of the panels; timed costs have an interval, counted costs have none."
    return Table("costs", caption, columns, rows)
