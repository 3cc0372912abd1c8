"""Sections of resources, heads, maps, text, failures, configs and provenance: their tables and texts."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rendering import make_report, read_table
from synthetic import World, collect_maps, replace_fields, write_runs
from worlds import EVIL

from attnlab.data.token_labels import CONTINUATION
from attnlab.report.charts.chart_renderer import RenderedCharts
from attnlab.report.pages.html import HtmlWriter
from attnlab.report.pages.markdown import format_sections
from attnlab.report.schema import LayerKinds, Report
from attnlab.report.section import Block, Interactive, Page, Section, Text, iterate_blocks, list_tables
from attnlab.report.sections import (
    PageContext,
    budget_section,
    config_section,
    failures_section,
    heads_section,
    maps_section,
    reproduce_section,
    running_text_section,
)

Record = dict[str, Any]


def read_markdown(section: Section) -> str:
    return "\n".join(format_sections([replace(section, is_long=False)])).replace("\\", "")


def write_html(section: Section) -> str:
    page = Page("name", "title", "heading", "", [section])
    return str(HtmlWriter(page, RenderedCharts()).format_section(section))


def select_blocks(section: Section, kind: type[Block]) -> list[Any]:
    return [block for block in iterate_blocks(section.blocks) if isinstance(block, kind)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    world = World(
        seeds=[0, 1],
        sample="on a <mat>\n",
        status={("gqa", 1): "diverged", ("mqa", 0): "missing"},
        parameters={"gqa": 130_000, "mqa": 130_000},
        note=EVIL,
    )
    return make_report(tmp_path_factory.mktemp("runs"), world, unmatched=["gqa"])


def test_budget_marks_each_cell_by_its_state(report: Report) -> None:
    layers = LayerKinds(arm="mqa", layers=[0, 1, 0], kinds=["Attention", "Recurrent"])
    section = budget_section.build(replace_fields(report, config__layers=[layers]), PageContext())
    table = list_tables([section])["budget"]
    signs = {
        row.typed_cells[0].value: [cell.mark and cell.mark[0] for cell in row.typed_cells[3:6]]
        for row in table.full_rows
    }
    assert signs["parameters"] == ["✓", "†", "✗"]
    assert signs["parameters_non_embedding"] == ["✓", "≠", "≠"]
    assert signs["finished_seeds"] == ["✓", "✗", "✗"]
    records = {record["resource"]: record for record in read_table(section, "budget")}
    expected = {"mha": 120_000, "mqa": 130_000, "tolerance": 0.01, "controlled": True}
    assert expected.items() <= records["parameters"].items()
    assert (records["finished_seeds"]["gqa"], records["tokens"]["tolerance"]) == (1, 0)
    assert (records["kernel"]["mha"], records["kernel"]["tolerance"]) == ("sdpa", None)
    markdown = read_markdown(section)
    for text in (
        "| parameters (controlled) | 120,000 ✓ | 130,000 1.083× † | 130,000 1.083× ✗ | 1% |",
        "✗ differs although controlled, † unmatched by design",
        "through model.ffn_width; gqa not matched.",
        "Layers of mqa, first layer on the left: ABA. A Attention; B Recurrent.",
    ):
        assert text in markdown
    kernel = re.findall(r"<tr><th[^>]*>attention kernel.*?</tr>", write_html(section))[0]
    assert kernel.count('<td class="num"') == 4, "texts are below the numbers of their column"
    plain = replace_fields(report, budget__unmatched=[], budget__controlled=[])
    markdown = read_markdown(budget_section.build(plain, PageContext()))
    assert "unmatched by design" not in markdown
    assert "The experiment controls no resource." in markdown


def test_failures_are_counted_and_listed_with_their_last_lines(report: Report, tmp_path: Path) -> None:
    section = failures_section.build(report, PageContext())
    first, second = read_table(section, "failures")
    assert (first["arm"], first["seed"], first["status"], first["step"]) == ("gqa", 1, "diverged", 160)
    assert first["message"].endswith(EVIL)
    assert (second["arm"], second["status"], second["step"]) == ("mqa", "missing", None)
    page, markdown = write_html(section), read_markdown(section)
    assert EVIL not in page
    assert "2 of 6 required runs failed." in markdown
    assert "lost to the machine" not in markdown
    assert "### Caveats" in markdown
    tails = [run for run in report.failures.runs if run.tail]
    assert page.count("<summary>Last lines of ") == len(tails) > 0
    assert "Last lines of" not in markdown
    lost = make_report(tmp_path, World(seeds=[0], status={("gqa", 0): "killed"}))
    assert "run the same command again to train it." in read_markdown(
        failures_section.build(lost, PageContext())
    )
    whole = replace_fields(report, failures__runs=[], failures__caveats=[], warnings=[])
    assert "Every required run finished." in read_markdown(failures_section.build(whole, PageContext()))


def test_config_distinguishes_absent_keys_from_null(tmp_path: Path) -> None:
    changes = {
        "mha": {"extra": {"key": None, "list": [1, 2]}},
        "gqa": {"extra": {"list": [1, 3]}},
        "mqa": {"extra": {"key": "absent"}},
    }
    report = make_report(tmp_path, World(seeds=[0], config=changes))
    section = config_section.build(report, PageContext())
    records = {record.pop("key"): record for record in read_table(section, "config")}
    assert records["extra.key"] == {"mha": "null", "gqa": "absent", "mqa": '"absent"'}
    assert "<code>[1, 3]</code>" in write_html(section), "verbatim, to be copied"
    assert "Complete config of mha" in write_html(section)
    empty = replace_fields(report.config, rows=[], baseline_config={})
    plain = config_section.build(replace_fields(report, config=empty), PageContext())
    assert read_markdown(plain).splitlines()[2:] == ["The arms do not differ in any key."]


def test_provenance_has_command_code_packages_data_and_runs(report: Report) -> None:
    section = reproduce_section.build(report, PageContext())
    markdown = read_markdown(section)
    for line in (
        "```sh\npython -m attnlab +experiment=gqa_vs_mha size=debug\n```",
        "- commit: `0123456789abcdef0123456789abcdef01234567` (clean)",
        "- packages: torch 2.13.0, pytorch-lightning 2.6.1",
        "| text | 419,430 | char |",
    ):
        assert line in markdown
    assert [record["sha256"] for record in read_table(section, "data")] == ["cd" * 32]
    runs = read_table(section, "run_ids")
    assert [(run["arm"], run["seed"], run["status"], run["run"]) for run in runs] == [
        (run.arm, run.seed, run.status, run.id or None) for run in report.runs
    ]
    assert not any(run.id in markdown for run in report.runs if run.id)
    assert {"package": "torch", "version": "2.13.0", "runs": 5} in read_table(section, "package_versions")
    old = replace_fields(
        report,
        reproduce__versions=None,
        reproduce__data=[],
        reproduce__environment={},
        reproduce__mixed=[],
        reproduce__dirty=True,
        reproduce__dirty_diff="+a",
    )
    section = reproduce_section.build(old, PageContext())
    assert {"package": "numpy", "version": "2.4.6", "runs": None} in read_table(section, "package_versions")
    page = write_html(section)
    assert "<summary>Uncommitted changes</summary>" in page
    assert "(dirty)" in page
    assert "Environment and data" not in page


def test_head_tables_compare_runs_only_if_there_are_several(report: Report, tmp_path: Path) -> None:
    section = heads_section.build(report, PageContext())
    assert [score.chance for score in report.heads.scores] == [0.059, 0.049, 0.074, 1.0]
    sink = next(score for score in report.heads.scores if score.name == "sink")
    records = [record for record in read_table(section, "head_means") if record["score"] == "sink"]
    for record, count in zip(records, sink.counts, strict=True):
        assert (record["arm"], record["mean"], record["mean_low"]) == (count.arm, count.mean, count.mean_low)
        assert record["above_threshold_high"] == count.above_threshold_high
        assert (record["chance"], record["heads"], record["threshold"]) == (0.074, 8, 0.3)
    [pattern] = [row for row in read_table(section, "head_patterns") if row["pattern"] == "sink"]
    expected = next(row for row in report.heads.patterns if row.name == "sink").counts[1]
    assert (pattern["gqa"], pattern["gqa_low"]) == (expected.mean, expected.low)
    agreement = read_table(section, "kernel_agreement")
    assert [(row["arm"], row["max_abs_eager_fused"], row["runs"]) for row in agreement] == [
        ("mha", 2.4e-7, 2), ("gqa", 2.4e-7, 1), ("mqa", 2.4e-7, 1),
    ]  # fmt: skip
    markdown = read_markdown(section)
    assert "gqa has no copying (OV) score: Toy heads have no separate values." in markdown
    assert "Head numbers do not correspond across seeds" in markdown
    single = make_report(tmp_path, World({"mha": 0.0}, seeds=[0]), claims=[])
    markdown = read_markdown(heads_section.build(single, PageContext()))
    assert "| score | mean | chance | heads above the threshold |" in markdown
    assert "| pattern | heads | rule |" in markdown
    assert "| max |eager − fused| | note |" in markdown
    assert "[" not in markdown.partition("| score |")[2].partition("- previous token")[0], (
        "no range of one run"
    )
    none = heads_section.build(replace_fields(report, heads=None), PageContext())
    assert "No finished run has head scores" in read_markdown(none)


@pytest.mark.parametrize(
    ("arms", "tokens", "title"),
    [
        (1, ["a", "é", "<b>"], "All 8 heads by score"),
        (2, ["a", "", "é", "<b>"], "Top 8 and 8 random heads"),
    ],
)
def test_maps_have_a_thumbnail_per_head_and_random_ones_beside_a_selection(
    tmp_path: Path, arms: int, tokens: list[str], title: str
) -> None:
    world = World(dict.fromkeys(["mha", "gqa"][:arms], 0.0), seeds=[0], tokens=tokens)
    runs = write_runs(tmp_path, world)
    report = make_report(runs, world, claims=[])
    section = maps_section.build(report, PageContext(maps=collect_maps(runs)))
    assert section is not None
    page = write_html(section)
    gallery = page.partition('<div id="gallery">')[2].partition("<h3>")[0]
    assert gallery.count('<div class="head"') == arms * 2 * 4
    assert gallery.count('class="group"') == 2 * sum([4, 2][:arms]), "a box per KV head"
    assert title in page
    assert ("<h4>Random 8</h4>" in page) == (arms == 2)
    texts = " ".join(text.plain for text in select_blocks(section, Text))
    assert ("One run of each arm" in texts) == (arms == 2)
    assert (f"{CONTINUATION} marks a token that continues the character" in texts) == (arms == 2)
    assert "<b>" not in page
    assert format_sections([section]) == [], "pictures and their script are for HTML alone"
    data = next(block.data for block in select_blocks(section, Interactive) if block.data)
    assert data["maps"][0]["tokens"] == ["a", "é", *[CONTINUATION] * (arms - 1), "<b>"]
    assert {score["name"] for score in data["scores"]} == {"previous", "sink", "entropy", "induction"}
    json.dumps(data, allow_nan=False)
    without = maps_section.build(report, PageContext())
    assert without is not None
    after = read_markdown(without).partition("(attention.npz) are not in the folder of this page")[2]
    assert report.reproduce.command in after
    nothing = replace_fields(report, heads=None)
    assert maps_section.build(nothing, PageContext()) is None


def test_running_text_has_a_sample_or_the_reason_for_none(report: Report) -> None:
    section = running_text_section.build(report, PageContext())
    assert section is not None
    samples = read_table(section, "samples")
    assert samples[0] == {
        "arm": "mha", "seed": 0, "run": report.text.samples[0].run, "prompt": "the cat ",
        "sample": "on a <mat>\n", "rest": "sat", "reason": None,
    }  # fmt: skip
    assert "<code>on a &lt;mat&gt;\n</code>" in write_html(section), "with its line ends"
    missing = replace_fields(report.text.samples[0], sample=None, reason="it has no text")
    text = replace_fields(report.text, samples=[missing], token_categories=[])
    without = running_text_section.build(replace_fields(report, text=text), PageContext())
    assert without is not None
    assert read_table(without, "samples")[0]["sample"] is None
    assert "reason for no sample" in write_html(without)
    assert "reason for no sample" not in write_html(section)
    for empty in (None, replace_fields(text, samples=[])):
        assert running_text_section.build(replace_fields(report, text=empty), PageContext()) is None
