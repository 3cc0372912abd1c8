"""Failures and caveats: runs that did not finish, and doubts that the intervals do not cover."""

from typing import Final

from attnlab.report import section
from attnlab.report.schema import Report
from attnlab.report.section import Block, Cell, Code, Column, Fold, Heading, Items, Section, Table, Text
from attnlab.report.sections import PageContext
from attnlab.report.tables.wording import describe_outliers

PLACE: Final = 100


def build(report: Report, context: PageContext) -> Section:
    """Build the section of failures and caveats."""
    failures = report.failures
    blocks: list[Block] = [Text("Every required run finished.")]
    if failures.runs:
        lead = (
            f"{len(failures.runs)} of {report.verdict.planned} required runs failed. They count in the "
            "denominator; means are over complete pairs."
        )
        if any(row.lost for row in failures.counts):
            lead += (
                " A run that was lost to the machine is no failure of its arm; run the same command again to "
                "train it."
            )
        blocks = [Text(lead, style="lead"), _build_table(report)]
        blocks += [
            Fold(f"Last lines of {run.arm}, seed {run.seed}", [Code("\n".join(run.tail))], is_long=True)
            for run in failures.runs
            if run.tail
        ]
    caveats = [*filter(None, (describe_outliers(report), *failures.caveats, *report.warnings))]
    blocks += [Heading("Caveats"), Items(caveats)] if caveats else []
    return Section("failures", "Failures", blocks, "Failures and caveats")


def _build_table(report: Report) -> Table:
    columns = [
        Column("arm"), Column("seed"), Column("failure", "status"), Column("step"), Column("message"),
        Column("run"),
    ]  # fmt: skip
    rows = [
        [
            section.arm(run.arm),
            section.number(run.seed),
            Cell(run.status_label, run.status),
            section.number(run.step),
            Cell(run.message, kind="prose") if run.message else section.EMPTY,
            section.code(run.id) if run.id else section.EMPTY,
        ]
        for run in report.failures.runs
    ]
    return Table("failures", "Failed runs.", columns, rows)
