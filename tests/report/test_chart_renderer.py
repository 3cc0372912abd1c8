"""Rendering in a separate process: failures cost figures, never the page, which lists the missing ones."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic import World, build_context, build_provenance, write_runs

from attnlab.report.charts import chart_renderer
from attnlab.report.pages.report_files import render_report, write_report
from attnlab.report.report_builder import build_report
from attnlab.report.section import Chart, list_charts
from attnlab.report.sections import build_sections

POINT: dict[str, Any] = {
    "data": {"values": [{"x": 1, "arm": "a\0b"}]},
    "mark": "point",
    "encoding": {"x": {"field": "x"}, "y": {"field": "arm", "type": "nominal"}},
}


def make_chart(name: str, spec: dict[str, Any] = POINT, *, has_picture: bool = False) -> Chart:
    return Chart(name, "a chart", lambda: spec, is_fixed=True, has_picture=has_picture)


@pytest.fixture
def report_folder(synthetic_reports: dict, tmp_path: Path) -> Path:
    """A copy of a whole report."""
    return Path(shutil.copytree(synthetic_reports["single"][1], tmp_path / "single"))


def install_renderer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *lines: str) -> None:
    """Replace the renderer program for one test."""
    file = tmp_path / "draws.py"
    file.write_text("\n".join(("import os, sys, time, signal", *lines)))
    monkeypatch.setattr(chart_renderer.svg, "__file__", str(file))


def read_files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name: path.read_bytes() for path in files}


def test_all_figures_are_rendered_by_one_process(
    report_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: (calls.append(args), run(*args, **more))[1])
    before = read_files(report_folder)
    render_report(report_folder)
    assert len(calls) == 1
    assert read_files(report_folder) == before


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("os.kill(os.getpid(), signal.SIGKILL)",), "the rendering process was killed by SIGKILL"),
        (("sys.exit(3)",), "the rendering process exited with status 3"),
        (("time.sleep(60)",), "the rendering process took more than 0.3 s"),
    ],
)
def test_failed_renderer_costs_no_page(
    synthetic_reports: dict,
    report_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: tuple[str, ...],
    reason: str,
) -> None:
    install_renderer(monkeypatch, tmp_path, *lines)
    monkeypatch.setattr(chart_renderer, "TIMEOUT", 0.3)
    page = render_report(report_folder).read_text("utf-8")
    charts = list_charts(build_sections(synthetic_reports["single"][0]))
    figures = sum(len(chart.list_names()) + chart.has_picture for chart in charts)
    message = f"{figures} of {figures} figures could not be rendered ({reason})"
    assert message in page[: page.index('class="claims"')]
    assert f"Figure not rendered: {charts[0].label[:30]}" in page
    assert not list((report_folder / "figures").iterdir()), "what is old there would be taken for new"
    short = (report_folder / "report.md").read_text("utf-8").replace("\\", "")
    assert message in short
    assert "![" not in short


def test_figures_finished_before_a_crash_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    half = """open(sys.argv[2], "w").write('["svg", "<svg/>"]\\n["svg", "<sv')"""
    install_renderer(monkeypatch, tmp_path, half, "os.abort()")
    charts = chart_renderer.render_charts([make_chart("one"), make_chart("two")])
    assert charts.svgs == {"one": "<svg/>"}
    assert charts.errors == ["the rendering process was killed by SIGABRT"]


def test_invalid_figure_costs_no_other_figure() -> None:
    good, bad = make_chart("good", has_picture=True), make_chart("bad", {"mark": 7})
    charts = chart_renderer.render_charts([bad, good])
    assert list(charts.svgs) == list(charts.pngs) == ["good"]
    assert charts.pngs["good"].startswith(b"\x89PNG")
    assert charts.error_messages[0].startswith("1 of 3 figures could not be rendered (ValueError: ")


def test_page_is_written_without_a_renderer_process(
    report_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "the rendering process could not start: No such file" in render_report(report_folder).read_text(
        "utf-8"
    )


@pytest.mark.rare
def test_nul_in_a_name_is_replaced(tmp_path: Path) -> None:
    charts = chart_renderer.render_charts([make_chart("one", has_picture=True)])
    assert charts.errors == []
    assert "a\ufffdb" in charts.svgs["one"]
    world = World(seeds=[0, 1], tokens=["a\0b", "c", "d"], note="\0")
    report = build_report(build_context(world), runs := write_runs(tmp_path, world), None, build_provenance())
    page = write_report(tmp_path / "report", report, runs).read_text("utf-8")
    assert "could not be rendered" not in page


def limit_address_space() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9))


@pytest.mark.rare
@pytest.mark.parametrize("is_limited", [True, False])
def test_address_space_limit_costs_figures_only_and_closed_standard_input_nothing(
    report_folder: Path, is_limited: bool
) -> None:
    before = read_files(report_folder)
    line = [sys.executable, "-m", "attnlab", "report", str(report_folder)]
    prepare = limit_address_space if is_limited else lambda: os.close(0)
    ended = subprocess.run(line, preexec_fn=prepare, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    killed = "figures could not be rendered (the rendering process was killed by"
    assert (killed in (report_folder / "report.html").read_text("utf-8")) == is_limited
    assert is_limited or read_files(report_folder) == before
