"""Effects: each arm against the baseline in every metric, with the values of every seed."""

from dataclasses import replace
from typing import Final

from attnlab.report import section
from attnlab.report.charts import comparison_figures
from attnlab.report.number_format import append_unit, format_percent
from attnlab.report.schema import EffectVerdict, Report
from attnlab.report.section import Block, Cell, ChartRow, Column, Fold, Items, Key, Section, Table, Text
from attnlab.report.sections import PageContext
from attnlab.report.tables.arm_columns import MANY_ARMS
from attnlab.report.tables.wording import (
    DELTA,
    HOLM_OVER_ARMS,
    build_effect_cell,
    build_training_cell,
    explain_effect,
    format_effect_level,
    format_interval_method,
)

PLACE: Final = 50
CAPTION = (
    "Differences to {baseline} over complete pairs. {holm} is adjusted over the arms of a metric and "
    "decides no claim; p equivalent and p non-inferior are unadjusted tests against the margin. Each verdict "
    "uses the alpha beside it, which Holm’s method allocates to the claim about that arm, so that it never "
    "goes beyond the verdict on the claim; without a claim the alpha is 5%. Where the 95% CI alone would "
    "give another verdict, the level that decides follows it: 1 − 2·alpha for "
    f"{EffectVerdict.EQUIVALENT} and {EffectVerdict.NON_INFERIOR}, "
    "otherwise 1 − alpha."
)


def build(report: Report, context: PageContext) -> Section:
    """Build the section of effects."""
    experiment = report.experiment
    pairing = "paired by seed" if report.is_paired else "unpaired"
    lead = Text(
        f"Each arm minus {experiment.baseline}, {pairing}. {experiment.direction.capitalize()} "
        f"{experiment.metric} is better.",
        style="lead",
    )
    charts = comparison_figures.build_effect_charts(report)
    if not charts:
        return Section("effects", "Effects", [lead, Text("No pair of finished runs to compare.")])
    many = len(experiment.arms) > MANY_ARMS
    method = format_interval_method(experiment.looks, report.effects)
    caption = f"Filled: mean with its 95% interval ({method}). Rings: single seeds. Shaded: the margin."
    blocks: list[Block] = [lead, Key(), *charts[:-1], replace(charts[-1], caption=caption)]
    slopes = comparison_figures.build_slope_charts(report)
    if slopes:
        reading = (
            f"One line per seed, from {experiment.baseline} to the arm. Parallel lines mean that pairing by "
            "seed removes most of the noise."
        )
        blocks.append(Fold("Seed by seed", [ChartRow("Seed by seed", slopes, reading)]))
    table = _build_table(report)
    blocks.append(Fold("Table of effects", [table]) if many else table)
    explained = [
        f"{row.arm}: {text}." for row in report.effects if row.primary and (text := explain_effect(row))
    ]
    blocks += [] if many or not explained else [Items(explained)]
    if slopes:
        blocks.append(Fold("Values of every seed", [_build_pairs(report)], is_long=True))
    return Section("effects", "Effects", blocks)


def _build_table(report: Report) -> Table:
    """A row per arm and metric."""
    columns = [
        Column("arm"), Column("", "against"), Column("metric"), Column("", "unit"), Column("", "primary"),
        Column("seeds", "n"), Column(DELTA, "mean", ends=("low", "high")), Column("", "level"),
        Column("", "margin"), Column("training compute" if report.compute_calibration else "", "training"),
        Column("sd"), Column(HOLM_OVER_ARMS, "p_holm"), Column("p equivalent", "p_equivalent"),
        Column("p non-inferior", "p_noninferior"), Column("", "p"), Column("verdict"),
    ]  # fmt: skip
    rows: list[list[Cell | str]] = []
    for row in report.effects:
        alpha = f"alpha {format_percent(row.alpha)}%" if row.primary and row.mean is not None else ""
        word = f"{row.verdict}{format_effect_level(row, report.experiment.direction)}"
        rows.append(
            [
                section.arm(row.arm),
                row.against,
                Cell(append_unit(row.label, row.unit), row.metric, note="" if row.primary else "exploratory"),
                row.unit,
                Cell("", row.primary),
                section.number(row.n, note=f"of {row.planned}"),
                build_effect_cell(row),
                section.number(row.level),
                section.number(row.margin),
                build_training_cell(row.training_equivalent),
                section.number(row.sd, row.digits),
                *map(section.pvalue, (row.p_holm, row.p_equivalent, row.p_noninferior, row.p)),
                Cell(word, str(row.verdict), note=alpha, kind="verdict"),
            ]
        )
    caption = CAPTION.format(baseline=report.experiment.baseline, holm=HOLM_OVER_ARMS)
    return Table("effects", caption, columns, rows)


def _build_pairs(report: Report) -> Table:
    """A row per seed of an arm and metric."""
    columns = [
        Column("arm"), Column("metric"), Column("seed"), Column("value"),
        Column(report.experiment.baseline, "against"), Column("difference"),
    ]  # fmt: skip
    rows: list[list[Cell | str]] = [
        [
            section.arm(row.arm),
            row.metric,
            section.number(pair.seed),
            section.number(pair.value, row.digits + 1),
            section.number(pair.against, row.digits + 1),
            section.number(pair.difference, row.digits + 1, sign=True),
        ]
        for row in report.effects
        for pair in row.pairs
    ]
    return Table("pairs", "Complete pairs.", columns, rows, is_long=True)
