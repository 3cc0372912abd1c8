"""Runs that were trained elsewhere: the files they are from, how they were compared, and every run."""

from typing import Final

from attnlab.report import section
from attnlab.report.number_format import format_number
from attnlab.report.schema import ClaimResult, FilesSection, Report, Verdict
from attnlab.report.section import Cell, Column, Fold, Section, Table, Terms, Text
from attnlab.report.sections import PageContext

PLACE: Final = 35
DIGEST_LENGTH = 16  # characters of a SHA-256 for readers


def build(report: Report, context: PageContext) -> Section | None:
    """Build the section of files; None for runs of attnlab's sweeps."""
    files = report.files
    if files is None:
        return None
    [claim] = report.verdict.claims
    return Section(
        "files",
        "Files",
        [
            _build_files_table(files, claim.digits + 1),
            Text(_describe_power(files, claim)),
            Terms(_list_terms(report, files, claim)),
            Fold("Every run", [_build_runs_table(report, claim.digits + 1)], is_long=True),
        ],
    )


def _build_files_table(files: FilesSection, digits: int) -> Table:
    columns = [
        Column("arm"), Column("file"), Column("rows read", "rows_read"), Column("runs found", "runs_found"),
        Column("used", "runs"), Column("diverged"), Column("missing"), Column("mean"),
        Column("standard deviation", "sd"), Column("SHA-256", "digest"),
    ]  # fmt: skip
    rows = [
        [
            section.arm(arm.arm),
            arm.name,
            *map(section.number, (arm.rows_read, arm.runs_found, arm.runs, arm.diverged, arm.missing)),
            section.number(arm.mean, digits),
            section.number(arm.sd, digits),
            Cell(arm.digest[:DIGEST_LENGTH], arm.digest, kind="code"),
        ]
        for arm in files.arms
    ]
    caption = "A run that diverged is worse than every other; a missing run counts for neither arm."
    if files.equal_values:
        caption += f" {files.equal_values} runs have a value that another run has too."
    return Table("files", caption, columns, rows)


def _build_runs_table(report: Report, digits: int) -> Table:
    metric = report.experiment.metric
    columns = [Column("arm"), Column("seed"), Column("run", "id"), Column("status"), Column(metric, "value")]
    seeded = {arm.arm for arm in report.files.arms if arm.has_seeds} if report.files else set[str]()
    rows = [
        [
            section.arm(run.arm),
            section.number(run.seed if run.arm in seeded else None),
            run.id,
            run.status,
            section.number(run.metrics[metric], digits),
        ]
        for run in report.runs
    ]
    return Table("file_runs", f"{metric} of every run.", columns, rows, is_long=True)


def _describe_power(files: FilesSection, claim: ClaimResult) -> str:
    if files.required_runs_per_side is None:
        return (
            "No number of runs up to 10,000 per arm would decide the claim with 80% power at the observed "
            "difference, or the runs have no spread from which to tell."
        )
    count = format_number(files.required_runs_per_side)
    sentence = (
        f"{count} runs per arm decide the claim with 80% power at the observed difference, in one declared "
        f"analysis (--looks {files.required_runs_per_side})."
    )
    if claim.verdict != Verdict.INCONCLUSIVE:
        return sentence
    return f"{sentence} Runs may be added until there is a verdict only if it is anytime-valid."


def _list_terms(report: Report, files: FilesSection, claim: ClaimResult) -> list[tuple[str, str | Cell]]:
    looks = report.experiment.looks
    if claim.interim_analyses is None and looks == "anytime":
        analyses = "none: it holds for one analysis or a few, as random pairs change when runs are added"
    elif looks == "anytime":
        analyses = "none: anytime-valid, it holds however often, and for whatever reason, runs were added"
    elif isinstance(looks, list):
        analyses = f"at {', '.join(map(str, looks))} runs per arm"
    else:
        analyses = "none: one analysis of a number of runs that was set before the first one"
    declared = "no"
    if files.declared:
        declared = f"{files.declared}, SHA-256 {files.declaration_digest}"
        if files.run_times != "known":
            declared += f"; {files.run_times}, so only the age of their files was checked"
    gain = claim.pairing.gain if claim.pairing else None
    terms: list[tuple[str, str | Cell]] = [("pairing", files.pairing)]
    if gain is not None:
        terms.append(("gain of pairing", f"unpaired runs would need {gain:.2f} times as many seeds"))
    return [
        *terms,
        ("test", files.test),
        ("interim analyses", analyses),
        ("value of a run", files.reduce),
        ("declared", declared),
    ]
