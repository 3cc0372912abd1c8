"""Figures that compare arms: from report.json to named specs, each with the sentence that can replace it.

The same specs become SVG in the page and, three of them, PNG beside the Markdown.
"""

import math
from dataclasses import dataclass
from typing import Any

from attnlab.report.charts import comparison_charts, vega_layers
from attnlab.report.charts.svg import render_svg
from attnlab.report.number_format import MINUS, TIMES, append_unit, format_difference, format_number
from attnlab.report.schema import (
    BudgetCell,
    BudgetCheck,
    BudgetRow,
    HeadsReport,
    Interval,
    Report,
    TradeoffPanel,
    TradeoffPoint,
)
from attnlab.report.tables.arm_columns import MANY_ARMS
from attnlab.report.tables.wording import format_effect, format_interval, format_level
from attnlab.report.verdicts.budget_check import is_unmatched

FEW_SEEDS = 3  # up to here a chart shows every seed beside the mean


@dataclass(frozen=True)
class Figure:
    """A named chart; `label` describes it in words."""

    name: str
    spec: vega_layers.Spec
    label: str

    def render_svg(self) -> str:
        return render_svg(self.spec, name=self.name, label=self.label)


def build_styles(report: HeadsReport) -> dict[str, tuple[str, str]]:
    """Color and shape of every arm of a report."""
    return vega_layers.assign_styles(report.experiment.arms, report.experiment.baseline)


def list_seed_values(report: HeadsReport, arm: str, metric: str) -> dict[int, float]:
    """Seed -> the metric of a finished run, for an arm with so few that a chart shows each; else empty."""
    values = {
        run.seed: float(value)
        for run in report.runs
        if run.arm == arm and run.is_done and (value := run.metrics.get(metric)) is not None
    }
    return values if len(values) <= FEW_SEEDS else {}


def build_verdict_figures(
    report: Report, width: int, name: str = "verdict", max_claims: int | None = None
) -> list[Figure]:
    """One chart per kind of axis (a metric's differences, ratios) for the claims that have an interval.

    Args:
        max_claims: only the first claims of the report; None means all.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for number, claim in enumerate(report.verdict.claims[:max_claims], 1):
        decision = claim.decision
        if decision.exact or decision.estimate is None:
            continue
        ratio = claim.compare == "ratio"
        comparison = (
            f" {TIMES} ".join(claim.interaction)
            if claim.interaction
            else f"{claim.arm} / {claim.against}"
            if ratio
            else format_difference(claim.arm, claim.against)
        )
        estimate_text = format_number(decision.estimate, claim.digits, sign=not ratio)
        if decision.level is not None and (decision.low is not None or decision.high is not None):
            ends = format_interval(decision.low, decision.high, claim.digits, sign=not ratio)
            estimate_text += f"  {format_level(decision.level)} {ends}"
        start, end = (None if math.isinf(edge) else edge for edge in claim.region or (math.inf, math.inf))
        groups.setdefault((claim.metric, claim.compare, claim.unit), []).append(
            {
                "label": f"{number}  {comparison}",
                "mean": decision.estimate,
                "low": decision.low,
                "high": decision.high,
                "from": start,
                "to": end,
                "verdict": str(claim.verdict),
                "text": estimate_text,
                "description": f"{claim.says}: {claim.verdict}, {comparison} {estimate_text}",
            }
        )
    figures = []
    for i, ((metric, compare, unit), rows) in enumerate(groups.items()):
        title = append_unit(f"{'ratio' if compare == 'ratio' else 'difference'} in {metric}", unit)
        label = f"Interval of each claim against the region where it holds, {title}. " + "; ".join(
            str(r["description"]) for r in rows
        )
        spec = comparison_charts.build_interval_chart(
            rows, unit=title, width=width, center=1.0 if compare == "ratio" else 0.0
        )
        figures.append(Figure(f"{name}{i}", spec, label))
    return figures


def build_effect_figures(report: Report, width: int, name: str = "effects") -> list[Figure]:
    """A forest plot per metric."""
    figures = []
    metrics = dict.fromkeys(row.metric for row in report.effects)
    for i, metric in enumerate(metrics):
        rows = [row for row in report.effects if row.metric == metric and row.mean is not None]
        if not rows:
            continue
        rows = [row.clip((-1.0, 1.0)) if row.is_proportion else row for row in rows]
        if len(rows) > MANY_ARMS:
            rows.sort(key=lambda row: row.mean or 0.0, reverse=report.experiment.direction == "higher")
        chart_rows = [
            {
                "arm": row.arm,
                "mean": row.mean,
                "low": row.low,
                "high": row.high,
                "description": f"{row.arm}: {format_effect(row)}, {row.verdict}",
            }
            for row in rows
        ]
        points = [
            {
                "arm": row.arm,
                "value": p.difference,
                "description": f"{row.arm}, seed {p.seed}: {format_number(p.difference, 4, sign=True)}",
            }
            for row in rows
            for p in row.pairs
        ]
        unit = append_unit(f"{metric}: arm {MINUS} {rows[0].against}", rows[0].unit)
        spec = comparison_charts.build_forest_chart(
            chart_rows, points, build_styles(report), unit=unit, margin=rows[0].margin, width=width
        )
        figures.append(
            Figure(
                f"{name}{i}",
                spec,
                f"Effects on {metric}. " + "; ".join(str(d["description"]) for d in chart_rows),
            )
        )
    return figures


def build_slope_figures(report: Report) -> list[Figure]:
    """Paired slopes of the primary metric, one panel per arm, on one scale."""
    rows = [row for row in report.effects if row.primary and row.pairs]
    domain = vega_layers.compute_domain([v for row in rows for p in row.pairs for v in (p.value, p.against)])
    figures = []
    for i, row in enumerate(rows):
        points = [
            {
                "arm": arm,
                "seed": p.seed,
                "value": value,
                "description": f"{arm}, seed {p.seed}: {format_number(value, row.digits + 1)}",
            }
            for p in row.pairs
            for arm, value in ((row.against, p.against), (row.arm, p.value))
        ]
        spec = comparison_charts.build_slope_chart(
            points,
            row.arm,
            row.against,
            build_styles(report),
            domain=domain,
            unit=append_unit(row.metric, row.unit),
        )
        figures.append(
            Figure(f"slope{i}", spec, f"{row.metric} of each seed, from {row.against} to {row.arm}")
        )
    return figures


def select_tradeoff_panels(report: Report) -> list[TradeoffPanel]:
    """The panels in which the costs of arms differ."""
    return [panel for panel in report.tradeoff if len({point.x for point in panel.points}) > 1]


def build_tradeoff_figures(report: Report) -> list[Figure]:
    figures = []
    experiment = report.experiment
    primary = next((row for row in report.effects if row.primary), None)
    unit = primary.unit if primary else ""
    for i, panel in enumerate(select_tradeoff_panels(report)):
        axis = append_unit(panel.label, panel.unit)
        points = [
            {
                **dict(p),
                **_clip_result(p, is_proportion=bool(primary and primary.is_proportion)),
                "description": f"{p.arm}: {axis} {format_number(p.x)}, {experiment.metric} "
                f"{format_number(p.y, panel.digits)}",
            }
            for p in panel.points
        ]
        seeds = [
            {
                "arm": p.arm,
                "x": p.x,
                "value": value,
                "description": f"{p.arm}, seed {seed}: {format_number(value, panel.digits)}",
            }
            for p in panel.points
            for seed, value in list_seed_values(report, p.arm, experiment.metric).items()
        ]
        front = sorted((p for p in points if p["arm"] in panel.pareto_front), key=lambda p: p["x"])
        spec = comparison_charts.build_tradeoff_chart(
            points,
            front,
            seeds,
            build_styles(report),
            x_title=axis,
            y_title=append_unit(experiment.metric, unit),
            lower_x_is_better=panel.lower_is_better,
            labeled_arms=[*panel.pareto_front, experiment.baseline]
            if len(points) > MANY_ARMS
            else experiment.arms,
        )
        figures.append(
            Figure(
                f"trade{i}",
                spec,
                f"{experiment.metric} against {axis}. " + "; ".join(p["description"] for p in points),
            )
        )
    return figures


def _clip_result(point: TradeoffPoint, *, is_proportion: bool) -> dict[str, float | None]:
    """The interval of a result, that of a proportion in [0, 1]."""
    interval = Interval(low=point.y_low, high=point.y_high)
    interval = interval.clip((0.0, 1.0)) if is_proportion else interval
    return {"y_low": interval.low, "y_high": interval.high}


def build_budget_figure(report: Report) -> Figure:
    """The budget table as a picture, for media that carry pictures only."""
    table = report.budget
    cells = [
        {
            "row": row.label + (" (controlled)" if row.controlled else ""),
            "arm": cell.arm,
            "text": format_number(cell.value),
            "mark": classify_budget_cell(table, row, cell),
        }
        for row in table.rows
        for cell in row.cells
    ]
    return Figure("budget", comparison_charts.build_budget_chart(cells), "Budget of each arm")


def classify_budget_cell(budget: BudgetCheck, row: BudgetRow, cell: BudgetCell) -> str:
    """State of a budget cell: equal, differs (controlled or not), unmatched by design, or unknown."""
    if cell.same is None:
        return "unknown"
    if cell.same:
        return "equal"
    if not row.controlled:
        return "differs"
    return "unmatched by design" if is_unmatched(budget, row, cell.arm) else "differs, controlled"
