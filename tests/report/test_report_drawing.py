"""A picture costs no report: one process draws them all, and the page says which are missing, and why."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic import World, experiment, provenance, write_runs

from attnlab.report.build import build
from attnlab.report.charts import drawing
from attnlab.report.charts.figures import Figure
from attnlab.report.pages.files import render, write
from attnlab.report.pages.html import inline

POINT: dict[str, Any] = {
    "data": {"values": [{"x": 1, "arm": "a\0b"}]},
    "mark": "point",
    "encoding": {"x": {"field": "x"}, "y": {"field": "arm", "type": "nominal"}},
}


@pytest.fixture
def rendered(made: dict, tmp_path: Path) -> Path:
    """A copy of a whole report."""
    return Path(shutil.copytree(made["single"][1], tmp_path / "single"))


def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *lines: str) -> None:
    """What draws, for the time of a test."""
    file = tmp_path / "draws.py"
    file.write_text("\n".join(("import os, sys, time, signal", *lines)))
    monkeypatch.setattr(drawing.svg, "__file__", str(file))


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name: path.read_bytes() for path in files}


def test_all_pictures_of_a_report_are_drawn_by_one_process(
    rendered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: (calls.append(args), run(*args, **more))[1])
    before = content(rendered)
    render(rendered)
    assert len(calls) == 1
    assert content(rendered) == before


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (("os.kill(os.getpid(), signal.SIGKILL)",), "the process that draws was ended by SIGKILL"),
        (("sys.exit(3)",), "the process that draws ended with status 3"),
        (("time.sleep(60)",), "the process that draws took more than 0.3 s"),
    ],
)
def test_a_process_that_draws_nothing_costs_no_page(
    made: dict,
    rendered: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: tuple[str, ...],
    why: str,
) -> None:
    program(monkeypatch, tmp_path, *lines)
    monkeypatch.setattr(drawing, "PATIENCE", 0.3)
    page = render(rendered).read_text("utf-8")
    figures = len(inline(made["single"][0])) + 3 + 1  # beside the Markdown, and the slide
    told = f"{figures} of {figures} pictures could not be drawn ({why})"
    assert told in page[: page.index('class="claims"')]
    assert f"Not drawn: {inline(made['single'][0])[0].label[:30]}" in page
    assert not list((rendered / "figures").iterdir()), "what is old there would be taken for new"
    short = (rendered / "report.md").read_text("utf-8").replace("\\", "")
    assert told in short
    assert "![" not in short


def test_what_was_drawn_before_the_end_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    half = """open(sys.argv[2], "w").write('["svg", "<svg/>"]\\n["svg", "<sv')"""
    program(monkeypatch, tmp_path, half, "os.abort()")
    drawn = drawing.draw([Figure("one", POINT, "a point"), Figure("two", POINT, "a point")])
    assert drawn.svgs == {"one": "<svg/>"}
    assert drawn.lost == {"two": "the process that draws was ended by SIGABRT"}


def test_one_picture_that_cannot_be_drawn_costs_itself_alone() -> None:
    good, bad = Figure("good", POINT, "a point"), Figure("bad", {"mark": 7}, "no chart")
    drawn = drawing.draw([bad, good], [Figure("beside", POINT, "a point")])
    assert list(drawn.svgs) == ["good"]
    assert drawn.pngs["beside"].startswith(b"\x89PNG")
    assert list(drawn.lost) == ["bad"]
    assert drawn.sentences[0].startswith("1 of 3 pictures could not be drawn (ValueError: ")


def test_where_no_process_can_be_started_there_is_a_page(
    rendered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "no process could be started to draw: No such file" in render(rendered).read_text("utf-8")


@pytest.mark.rare
def test_a_nul_in_a_name_is_drawn_as_a_sign_that_pictures_have(tmp_path: Path) -> None:
    drawn = drawing.draw([Figure("svg", POINT, "a point")], [Figure("png", POINT, "a point")])
    assert drawn.lost == {}
    assert "a\ufffdb" in drawn.svgs["svg"]
    world = World(seeds=[0, 1], tokens=["a\0b", "c", "d"], note="\0")
    report = build(experiment(world), runs := write_runs(tmp_path, world), None, provenance())
    page = write(tmp_path / "report", report, runs).read_text("utf-8")
    assert "could not be drawn" not in page


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9))


@pytest.mark.rare
def test_a_limit_of_the_address_space_costs_the_pictures_alone(rendered: Path) -> None:
    line = [sys.executable, "-m", "attnlab", "report", str(rendered)]
    ended = subprocess.run(line, preexec_fn=limited, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "pictures could not be drawn (the process that draws was ended by" in (
        rendered / "report.html"
    ).read_text("utf-8")


@pytest.mark.rare
def test_a_closed_standard_input_costs_nothing(rendered: Path) -> None:
    before = content(rendered)
    line = [sys.executable, "-m", "attnlab", "report", str(rendered)]
    ended = subprocess.run(line, preexec_fn=lambda: os.close(0), capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert content(rendered) == before
