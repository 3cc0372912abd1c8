"""A sweep whose runs were not made alike says so before it says anything else."""

import re
from pathlib import Path

import pytest
from synthetic import World, but, experiment, provenance, write_runs

from attnlab.report.build import build
from attnlab.report.pages.html import html
from attnlab.report.pages.markdown import markdown
from attnlab.report.schema import Report
from attnlab.report.verdicts.runs import Run

pytestmark = pytest.mark.usefixtures("blank")
WORLD = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2])


def by(run: Run, package: str, version: str) -> Run:
    packages = {**run.record.environment["packages"], package: version}
    return but(run, environment={**run.record.environment, "packages": packages})


def report_of(runs: list[Run]) -> Report:
    return build(experiment(WORLD), runs, None, provenance())


@pytest.mark.parametrize("package", ["torch", "pytorch-lightning"])
def test_different_versions_are_told_above_the_claims(tmp_path: Path, package: str) -> None:
    runs = write_runs(tmp_path, WORLD)
    runs[0] = by(runs[0], package, "1.9.1")
    report = report_of(runs)
    now = runs[1].record.environment["packages"][package]
    (said,) = report.verdict.unlike
    assert f"different versions of {package}: 1.9.1 (1 run), {now} (5 runs)" in said
    page, short = html(report), markdown(report, {})
    assert page.index("1.9.1 (1 run)") < page.index('<ol class="claims">')
    assert short.index("1.9.1 \\(1 run\\)".replace("\\", "")) < short.index("## Fair fight?")
    assert report.reproduce.versions[package] == {"1.9.1": 1, now: 5}


def test_the_versions_on_the_page_are_those_of_the_runs(tmp_path: Path) -> None:
    runs = [by(run, "torch", "2.11.3") for run in write_runs(tmp_path, WORLD)]
    report = report_of(runs)
    assert report.reproduce.packages["torch"] == "2.13.0"
    assert report.verdict.unlike == []
    page = html(report)
    assert re.search(r"<dt>torch</dt><dd>2\.11\.3</dd>", page)
    assert "2.13.0" not in page
    assert "Made by torch 2.11.3, pytorch-lightning 2.6.1." in markdown(report, {})


def test_a_version_that_decides_nothing_is_no_warning(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, WORLD)
    runs[0] = by(runs[0], "numpy", "2.0.0")
    report = report_of(runs)
    assert report.verdict.unlike == []
    assert report.reproduce.versions["numpy"] == {"2.0.0": 1, "2.4.6": 5}


@pytest.mark.parametrize(("part", "field"), [("heads", "measured_by"), ("maps", "observed_by")])
def test_a_part_that_other_code_measured_is_named_once(tmp_path: Path, part: str, field: str) -> None:
    runs = write_runs(tmp_path, WORLD)
    runs[4] = but(runs[4], **{field: {**getattr(runs[4].record, field), part: "ff" * 8}})
    report = report_of(runs)
    assert report.verdict.unlike == [
        f"{part}: not all runs were measured by the same code, so their values need not compare."
    ]
    assert report.verdict.unlike[0] in html(report)


def test_a_failed_run_measured_nothing(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2], status={("gqa", 1): "crashed"})
    runs = write_runs(tmp_path, world)
    runs = [but(run, measured_by={"memory": "ff" * 8}) if not run.done else run for run in runs]
    assert build(experiment(world), runs, None, provenance()).verdict.unlike == []
