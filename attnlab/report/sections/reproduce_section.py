"""Reproduce: the command, code, environment and data of the runs."""

from typing import Final

from attnlab.report import section
from attnlab.report.schema import Report, Reproduce
from attnlab.report.section import Block, Cell, Code, Column, Fold, Section, Table, Terms
from attnlab.report.sections import PageContext
from attnlab.report.verdicts.environment import RESULT_PACKAGES

PLACE: Final = 120
DIRTY_WORDS: Final = {True: "dirty", False: "clean", None: "state unknown"}


def build(report: Report, context: PageContext) -> Section:
    """Build the section that tells how to run the experiment again."""
    origin = report.reproduce
    versions = _list_versions(origin)
    packages = [
        f"{name} {' and '.join(found)}"
        for name in RESULT_PACKAGES
        if (found := [version for package, version, _ in versions if package == name])
    ]
    facts = [
        ("commit", section.code(origin.commit or "unknown", f"({DIRTY_WORDS[origin.dirty]})")),
        (
            "preregistration",
            "none"
            if report.verdict.not_preregistered
            else section.code(origin.preregistration_sha256 or "unknown", "(SHA-256)"),
        ),
        ("date of the runs", origin.date or "unknown"),
        ("device", origin.device or "unknown"),
        *([("packages", ", ".join(packages))] if packages else []),
    ]
    environment = [
        *(
            (key, str(value))
            for key, value in origin.environment.items()
            if value is not None and key != "device"
        ),
        *((key, "differs between runs") for key in origin.mixed),
    ]
    blocks: list[Block] = [Code(origin.command, "sh", id="command"), Terms(facts)]
    details: list[Block] = [Terms(environment)] if environment else []
    details += [_build_data(origin)] if origin.data else []
    if details:
        blocks.append(Fold("Environment and data of the runs", details))
    if origin.dirty_diff:
        blocks.append(Fold("Uncommitted changes", [Code(origin.dirty_diff, "diff")], is_long=True))
    if versions:
        columns = [Column("package"), Column("version"), Column("runs")]
        rows: list[list[Cell | str]] = [
            [package, version, section.number(runs)] for package, version, runs in versions
        ]
        table = Table("package_versions", "Packages of the runs.", columns, rows, is_long=True)
        blocks.append(Fold("Package versions", [table]))
    blocks.append(Fold("Run ids", [_build_run_ids(report)]))
    return Section("reproduce", "Reproduce", blocks)


def _list_versions(origin: Reproduce) -> list[tuple[str, str, int | None]]:
    """List each package and version with its number of runs, which older reports lack."""
    if origin.versions:
        return [
            (package, version, runs)
            for package, counts in origin.versions.items()
            for version, runs in counts.items()
        ]
    return [(package, version, None) for package, version in (origin.packages or {}).items()]


def _build_data(origin: Reproduce) -> Table:
    columns = [
        Column("data"),
        Column("training tokens", "train_tokens"),
        Column("unit"),
        Column("SHA-256", "sha256"),
    ]
    rows = [
        [data["name"], section.number(data["train_tokens"]), data["unit"], section.code(data["sha256"])]
        for data in origin.data
    ]
    return Table("data", "Data of the runs.", columns, rows)


def _build_run_ids(report: Report) -> Table:
    columns = [Column("arm"), Column("seed"), Column("run"), Column("status")]
    rows = [
        [
            section.arm(run.arm),
            section.number(run.seed),
            section.code(run.id) if run.id else section.EMPTY,
            Cell(run.status),
        ]
        for run in report.runs
    ]
    return Table("run_ids", "Every required run.", columns, rows, is_long=True)
