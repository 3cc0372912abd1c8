"""Mixed environments of the runs are reported before the claims."""

from pathlib import Path

import pytest
from synthetic import World, build_context, build_provenance, replace_result, write_runs

from attnlab.report.report_builder import build_report
from attnlab.report.schema import Report
from attnlab.report.section import Terms, list_tables
from attnlab.report.sections import PageContext
from attnlab.report.sections import reproduce_section as reproduce
from attnlab.report.verdicts.results import Run

WORLD = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2])


def with_package(run: Run, package: str, version: str) -> Run:
    packages = {**run.result.environment["packages"], package: version}
    return replace_result(run, environment={**run.result.environment, "packages": packages})


def make_report(runs: list[Run]) -> Report:
    return build_report(build_context(WORLD), runs, None, build_provenance())


@pytest.mark.parametrize("package", ["torch", "pytorch-lightning"])
def test_mixed_versions_are_reported_above_the_claims(tmp_path: Path, package: str) -> None:
    runs = write_runs(tmp_path, WORLD)
    runs[0] = with_package(runs[0], package, "1.9.1")
    report = make_report(runs)
    version = runs[1].result.environment["packages"][package]
    (warning,) = report.verdict.run_warnings
    assert f"different versions of {package}: 1.9.1 (1 run), {version} (5 runs)" in warning
    assert report.reproduce.versions[package] == {"1.9.1": 1, version: 5}


def test_page_shows_the_versions_of_the_runs(tmp_path: Path) -> None:
    runs = [with_package(run, "torch", "2.11.3") for run in write_runs(tmp_path, WORLD)]
    report = make_report(runs)
    assert report.reproduce.packages["torch"] == "2.13.0"
    assert report.verdict.run_warnings == []
    section = reproduce.build(report, PageContext())
    [versions] = [block.pairs for block in section.blocks if isinstance(block, Terms)]
    assert ("packages", "torch 2.11.3, pytorch-lightning 2.6.1") in versions
    records = list_tables([section])["package_versions"].iterate_records()
    assert [row["version"] for row in records if row["package"] == "torch"] == ["2.11.3"]


def test_mixed_version_of_an_uncritical_package_gives_no_warning(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, WORLD)
    runs[0] = with_package(runs[0], "numpy", "2.0.0")
    report = make_report(runs)
    assert report.verdict.run_warnings == []
    assert report.reproduce.versions["numpy"] == {"2.0.0": 1, "2.4.6": 5}


@pytest.mark.parametrize(("part", "field"), [("heads", "measured_by"), ("maps", "observed_by")])
def test_part_measured_by_different_code_is_reported_once(tmp_path: Path, part: str, field: str) -> None:
    runs = write_runs(tmp_path, WORLD)
    runs[4] = replace_result(runs[4], **{field: {**getattr(runs[4].result, field), part: "ff" * 8}})
    report = make_report(runs)
    assert report.verdict.run_warnings == [
        f"{part}: measured by different versions of the code, so the values may not be comparable."
    ]


def test_failed_run_does_not_count_as_measured_by_other_code(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2], status={("gqa", 1): "crashed"})
    runs = write_runs(tmp_path, world)
    runs = [replace_result(run, measured_by={"memory": "ff" * 8}) if not run.is_done else run for run in runs]
    assert build_report(build_context(world), runs, None, build_provenance()).verdict.run_warnings == []
