"""Attention heads: scores by arm, patterns, and the agreement of the maps with the training kernel."""

from typing import Final

from attnlab.report import section
from attnlab.report.charts import series_figures
from attnlab.report.number_format import format_bounds, format_number
from attnlab.report.schema import HeadsReport, HeadsSection
from attnlab.report.section import (
    Block,
    Cell,
    ChartRow,
    Column,
    Fold,
    Heading,
    Items,
    Key,
    Section,
    Table,
    Terms,
    Text,
)
from attnlab.report.sections import PageContext
from attnlab.report.tables.arm_columns import MANY_ARMS

PLACE: Final = 90


def build(report: HeadsReport, context: PageContext) -> Section:
    """Build the section of attention heads; columns that compare runs need several."""
    heads = report.heads
    if not heads:
        return Section(
            "heads", "Heads", [Text("No finished run has head scores or attention maps.")], is_long=True
        )
    single = len(report.runs) == 1
    many = len(report.experiment.arms) > MANY_ARMS
    blocks: list[Block] = []
    if charts := series_figures.build_strip_charts(report):
        reading = (
            "Scores of every head. Dashed: the score of uniform attention."
            if single
            else "Scores of every head, pooled over seeds. Dashed: the score of uniform attention. Head "
            "numbers do not correspond across seeds or arms, so compare distributions, not single heads."
        )
        blocks += [Text(reading, style="lead"), *([] if many or single else [Key()])]
        blocks.append(ChartRow("Head scores", charts))
        terms = Terms([(score.label, score.about) for score in heads.scores if score.about])
        blocks.append(Fold("Table and definitions of the scores", [_build_scores(heads, single), terms]))
    if heads.patterns:
        patterns = _build_patterns(heads, single)
        blocks += [Fold("Head patterns", [patterns])] if many else [Heading("Head patterns"), patterns]
    if heads.absent:
        missing = Items([f"{row.arm} has no {row.label} score: {row.reason}." for row in heads.absent])
        blocks.append(Fold("Undefined scores", [missing]) if many else missing)
    blocks.append(Fold("Agreement of the maps with the training kernel", [_build_agreement(heads, single)]))
    return Section("heads", "Heads", blocks, is_long=True)


def _build_scores(heads: HeadsSection, single: bool) -> Table:
    """A row per score and arm."""
    columns = [
        Column("score"),
        Column("" if single else "arm", "arm"),
        Column("mean", ends=("mean_low", "mean_high")),
        Column("chance"),
        Column("heads above the threshold", "above_threshold"),
        Column("", "heads"),
        Column("", "threshold"),
    ]
    rows = [
        [
            Cell(score.label, score.name),
            section.arm(count.arm),
            section.number(count.mean, 3)
            if single
            else section.interval(count.mean, count.mean_low, count.mean_high, 3),
            section.number(count.chance, 3),
            _build_count(
                count.above_threshold,
                count.above_threshold_low,
                count.above_threshold_high,
                f"{format_number(count.heads)} over {format_number(score.threshold)}",
                single,
            ),
            section.number(count.heads),
            section.number(score.threshold),
        ]
        for score in heads.scores
        for count in score.counts
    ]
    caption = (
        "Head scores: mean over heads, and number of heads above the threshold."
        if single
        else "Head scores: mean over heads and seeds with the range of the means of the seeds, and number of "
        "heads above the threshold (mean and range over seeds)."
    )
    return Table("head_means", caption, columns, rows)


def _build_count(mean: float | None, low: int | None, high: int | None, of: str, single: bool) -> Cell:
    """A number of heads, with its range over seeds."""
    if mean is None:
        return section.number(None)
    note = "" if single else format_bounds(low, high, sign=False)
    return Cell(f"{format_number(mean, 1)} of {of}", mean, low, high, note, "number")


def _build_patterns(heads: HeadsSection, single: bool) -> Table:
    """A row per pattern, a column per arm."""
    arms = [count.arm for count in heads.patterns[0].counts]
    columns = [
        Column("pattern"),
        *(Column("heads" if single else arm, arm) for arm in arms),
        Column("rule"),
    ]
    rows: list[list[Cell | str]] = [
        [
            row.name,
            *(
                _build_count(count.mean, count.low, count.high, format_number(count.heads), single)
                for count in row.counts
            ),
            Cell(row.rule, kind="prose"),
        ]
        for row in heads.patterns
    ]
    caption = (
        f"Number of heads with each pattern{'' if single else ': mean and range over seeds'}. The rules are "
        "fixed; a head may match several patterns or none, and a match requires a score above that of "
        "uniform attention."
    )
    return Table("head_patterns", caption, columns, rows, by_arm=True)


def _build_agreement(heads: HeadsSection, single: bool) -> Table:
    """A row per arm."""
    columns = [
        Column("" if single else "arm", "arm"),
        Column("max |eager − fused|", "max_abs_eager_fused"),
        Column("" if single else "runs", "runs"),
        Column("note"),
    ]
    rows = [
        [
            section.arm(row.arm),
            section.number(row.max_abs),
            section.number(row.runs),
            Cell("; ".join(row.notes)) if row.notes else section.EMPTY,
        ]
        for row in heads.agreement
    ]
    caption = (
        "The eager kernel computes the maps; the table has its largest difference from the training kernel "
        "on the same text."
    )
    return Table("kernel_agreement", caption, columns, rows)
