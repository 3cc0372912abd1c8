"""A section is one function in one file: its table and chart reach every output without registration."""

import json
import shutil
from pathlib import Path

import pytest
from rendering import extract_text
from worlds import SyntheticReports

import attnlab
from attnlab.report import sections
from attnlab.report.pages.report_files import render_report
from attnlab.sweep import wandb_report

MODULE = """
from attnlab.report import section
from attnlab.report.section import Chart, Column, Section, Table

PLACE = 25


def build(report, context):
    arms = enumerate(report.experiment.arms)
    rows = [[section.arm(arm), section.number(7.5 + i, 2), "<b>"] for i, arm in arms]
    columns = [Column("arm"), Column("wing span", "span", "cubits"), Column("kind")]
    table = Table("wings", "Wings of each arm.", columns, rows)
    return Section("wings", "Wings", [table, Chart("wings", "Wings. A bar per arm.", draw, has_picture=True)])


def draw(*, width):
    return {"width": width, "data": {"values": [{"x": 1}]}, "mark": "bar", "encoding": {"x": {"field": "x"}}}
"""


class FakeRun:
    """A W&B run that keeps what is logged."""

    def __init__(self) -> None:
        self.logged: dict = {}
        self.summary: dict = {}

    def log(self, content: dict) -> None:
        self.logged |= content


def test_table_and_chart_of_a_new_file_are_in_every_output(
    synthetic_reports: SyntheticReports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_report, source = synthetic_reports["single"]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "wings.py").write_text(MODULE)
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path / "more")])
    folder = tmp_path / "report"
    folder.mkdir()
    shutil.copy(source / "report.json", folder)
    page = render_report(folder).read_text("utf-8")
    section = page.partition('<section id="wings">')[2].partition("</section>")[0]
    assert "arm wing span (cubits) kind" in extract_text(section.replace("</th>", " "))
    assert '<data value="8.5">8.50</data>' in section
    assert "&lt;b&gt;" in section
    assert section.count("<svg") >= 2, "for screens and phones"
    assert page.index('id="claims"') < page.index('id="wings"') < page.index('id="effects"')
    markdown = (folder / "report.md").read_text("utf-8")
    assert "| gqa | 8.50 | \\<b\\> |" in markdown
    assert "Chart: Wings (`figures/wings.png`)." in markdown
    assert (folder / "figures" / "wings.png").read_bytes().startswith(b"\x89PNG")
    frame = attnlab.load(folder).wings
    assert frame.to_dict("list") == {
        "arm": [*source_report.experiment.arms],
        "span": [7.5, 8.5, 9.5],
        "kind": ["<b>"] * 3,
    }
    run = FakeRun()
    wandb_report._log_report_content(run, type("Settings", (), {"report": False}), folder, source_report)
    wings = run.logged["wings"]
    assert (wings.columns, wings.data) == (
        ["arm", "span", "kind"],
        [["mha", 7.5, "<b>"], ["gqa", 8.5, "<b>"], ["mqa", 9.5, "<b>"]],
    )
    assert {"arms", "claims", "effects", "budget"} <= run.logged.keys()
    json.dumps(run.summary)
