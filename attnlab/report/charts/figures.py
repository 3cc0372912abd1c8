"""Which charts a report has: from report.json to named specs, each with the sentence that stands for it.

The same specs become SVG in the page and, three of them, PNG beside the Markdown.
"""

import math
from dataclasses import dataclass
from typing import Any

from attnlab.report.charts import charts, marks
from attnlab.report.charts.svg import svg
from attnlab.report.schema import BudgetCell, BudgetRow, HeadsReport, Report, TradeoffPanel
from attnlab.report.tables.format import MINUS, text, with_unit
from attnlab.report.tables.ranking import MANY
from attnlab.report.tables.wording import format_effect, format_interval, format_level


@dataclass(frozen=True)
class Figure:
    name: str
    spec: marks.Spec
    label: str

    def svg(self) -> str:
        return svg(self.spec, name=self.name, label=self.label)


def styles(report: HeadsReport) -> dict[str, tuple[str, str]]:
    return marks.style(report.experiment.arms, report.experiment.baseline)


def verdicts(report: Report, width: int, name: str = "verdict") -> list[Figure]:
    """One chart per kind of axis (a metric's differences, ratios) for the claims that have an interval."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for number, claim in enumerate(report.verdict.claims, 1):
        decision = claim.decision
        if decision.exact or decision.estimate is None:
            continue
        ratio = claim.compare == "ratio"
        joint = f"{claim.arm} {'/' if ratio else MINUS} {claim.against}"
        written = text(decision.estimate, claim.digits, sign=not ratio)
        if decision.level is not None and (decision.low is not None or decision.high is not None):
            ends = format_interval(decision.low, decision.high, claim.digits, sign=not ratio)
            written += f"  {format_level(decision.level)} {ends}"
        start, end = (None if math.isinf(edge) else edge for edge in claim.region or (math.inf, math.inf))
        groups.setdefault((claim.metric, claim.compare, claim.unit), []).append(
            {
                "label": f"{number}  {joint}",
                "mean": decision.estimate,
                "low": decision.low,
                "high": decision.high,
                "from": start,
                "to": end,
                "word": str(claim.verdict),
                "text": written,
                "said": f"{claim.says}: {claim.verdict}, {joint} {written}",
            }
        )
    figures = []
    for i, ((metric, compare, unit), rows) in enumerate(groups.items()):
        title = with_unit(f"{'ratio' if compare == 'ratio' else 'difference'} in {metric}", unit)
        label = f"Interval of each claim against the region where it holds, {title}. " + "; ".join(
            str(r["said"]) for r in rows
        )
        spec = charts.intervals(rows, unit=title, width=width, centre=1.0 if compare == "ratio" else 0.0)
        figures.append(Figure(f"{name}{i}", spec, label))
    return figures


def forests(report: Report, width: int, name: str = "effects") -> list[Figure]:
    """A forest plot per metric."""
    figures = []
    metrics = dict.fromkeys(row.metric for row in report.effects)
    for i, metric in enumerate(metrics):
        rows = [row for row in report.effects if row.metric == metric and row.mean is not None]
        if not rows:
            continue
        if len(rows) > MANY:
            rows.sort(key=lambda row: row.mean or 0.0, reverse=report.experiment.direction == "higher")
        drawn = [
            {
                "arm": row.arm,
                "mean": row.mean,
                "low": row.low,
                "high": row.high,
                "said": f"{row.arm}: mean {format_effect(row)}, {row.word}",
            }
            for row in rows
        ]
        points = [
            {
                "arm": row.arm,
                "value": p.difference,
                "said": f"{row.arm}, seed {p.seed}: {text(p.difference, 4, sign=True)}",
            }
            for row in rows
            for p in row.pairs
        ]
        unit = with_unit(f"{metric}: arm {MINUS} {rows[0].against}", rows[0].unit)
        spec = charts.forest(drawn, points, styles(report), unit=unit, margin=rows[0].margin, width=width)
        figures.append(
            Figure(f"{name}{i}", spec, f"Effects on {metric}. " + "; ".join(str(d["said"]) for d in drawn))
        )
    return figures


def slopes(report: Report) -> list[Figure]:
    """Paired slopes of the primary metric, one panel per arm, on one scale."""
    rows = [row for row in report.effects if row.primary and row.pairs]
    domain = marks.span([v for row in rows for p in row.pairs for v in (p.value, p.against)])
    figures = []
    for i, row in enumerate(rows):
        points = [
            {
                "arm": arm,
                "seed": p.seed,
                "value": value,
                "said": f"{arm}, seed {p.seed}: {text(value, row.digits + 1)}",
            }
            for p in row.pairs
            for arm, value in ((row.against, p.against), (row.arm, p.value))
        ]
        spec = charts.slopes(
            points,
            row.arm,
            row.against,
            styles(report),
            domain=domain,
            unit=with_unit(row.metric, row.unit),
        )
        figures.append(
            Figure(f"slope{i}", spec, f"{row.metric} of each seed, from {row.against} to {row.arm}")
        )
    return figures


def traded(report: Report) -> list[TradeoffPanel]:
    """The panels in which arms cost something else."""
    return [panel for panel in report.tradeoff if len({point.x for point in panel.points}) > 1]


def tradeoffs(report: Report) -> list[Figure]:
    figures = []
    experiment = report.experiment
    unit = next((row.unit for row in report.effects if row.primary), "")
    for i, panel in enumerate(traded(report)):
        axis = with_unit(panel.label, panel.unit)
        points = [
            {
                **dict(p),
                "said": f"{p.arm}: {axis} {text(p.x)}, {experiment.metric} {text(p.y, panel.digits)}",
            }
            for p in panel.points
        ]
        front = sorted((p for p in points if p["arm"] in panel.front), key=lambda p: p["x"])
        spec = charts.tradeoff(
            points,
            front,
            styles(report),
            x_title=axis,
            y_title=with_unit(experiment.metric, unit),
            lower_x=panel.lower_is_better,
            named=[*panel.front, experiment.baseline] if len(points) > MANY else experiment.arms,
        )
        figures.append(
            Figure(
                f"trade{i}",
                spec,
                f"{experiment.metric} against {axis}. " + "; ".join(p["said"] for p in points),
            )
        )
    return figures


def budget(report: Report) -> Figure:
    """The budget table as a picture, for places where only pictures travel."""
    table = report.budget
    cells = [
        {
            "row": row.label + (" (held)" if row.held else ""),
            "arm": cell.arm,
            "text": text(cell.value),
            "mark": mark(row, cell),
        }
        for row in table.rows
        for cell in row.cells
    ]
    return Figure("budget", charts.budget(cells), "What each arm was given")


def mark(row: BudgetRow, cell: BudgetCell) -> str:
    """How one cell of the budget reads: equal, differs though held, differs and may, or unknown."""
    if cell.same is None:
        return "unknown"
    return "equal" if cell.same else "differs, held" if row.held else "differs"
