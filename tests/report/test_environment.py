"""Mixed environments of the runs are reported before the claims."""

from dataclasses import replace
from pathlib import Path

import pytest
from rendering import make_report
from synthetic import World, replace_result, write_runs

from attnlab.report.section import Terms, list_tables
from attnlab.report.sections import PageContext, reproduce_section
from attnlab.report.verdicts.results import Run

WORLD = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2])


def with_package(run: Run, package: str, version: str) -> Run:
    packages = {**run.result.environment["packages"], package: version}
    return replace_result(run, environment={**run.result.environment, "packages": packages})


@pytest.mark.parametrize(
    ("package", "is_critical"), [("torch", True), ("pytorch-lightning", True), ("numpy", False)]
)
def test_mixed_versions_are_reported_above_the_claims(
    tmp_path: Path, package: str, is_critical: bool
) -> None:
    runs = write_runs(tmp_path, WORLD)
    runs[0] = with_package(runs[0], package, "1.9.1")
    report = make_report(runs, WORLD)
    version = runs[1].result.environment["packages"][package]
    warning = f"different versions of {package}: 1.9.1 (1 run), {version} (5 runs)"
    assert [warning in line for line in report.verdict.run_warnings] == [True] * is_critical
    assert report.reproduce.versions[package] == {"1.9.1": 1, version: 5}


def test_page_shows_the_versions_of_the_runs(tmp_path: Path) -> None:
    runs = [with_package(run, "torch", "2.11.3") for run in write_runs(tmp_path, WORLD)]
    report = make_report(runs, WORLD)
    assert report.reproduce.packages["torch"] == "2.13.0"
    assert report.verdict.run_warnings == []
    section = reproduce_section.build(report, PageContext())
    [versions] = [block.pairs for block in section.blocks if isinstance(block, Terms)]
    assert ("packages", "torch 2.11.3, pytorch-lightning 2.6.1") in versions
    records = list_tables([section])["package_versions"].iterate_records()
    assert [row["version"] for row in records if row["package"] == "torch"] == ["2.11.3"]


@pytest.mark.parametrize(("part", "field"), [("heads", "measured_by"), ("maps", "observed_by")])
@pytest.mark.parametrize("is_failed", [False, True])
def test_part_measured_by_different_code_is_reported_once_for_finished_runs(
    tmp_path: Path, part: str, field: str, is_failed: bool
) -> None:
    world = replace(WORLD, status={("gqa", 1): "crashed"} if is_failed else {})
    runs = write_runs(tmp_path, world)
    runs[4] = replace_result(runs[4], **{field: {**getattr(runs[4].result, field), part: "ff" * 8}})
    warning = f"{part}: measured by different versions of the code, so the values may not be comparable."
    assert make_report(runs, world).verdict.run_warnings == ([] if is_failed else [warning])
