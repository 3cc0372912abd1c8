"""What is on disk: the index beside the reports, and one line for what cannot be read as a report."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from pydantic import ValidationError
from synthetic import World, experiment, provenance, write_runs
from worlds import EVIL, Made

from attnlab.cli.main import main
from attnlab.cli.verbs.schema import schema
from attnlab.report.build import build
from attnlab.report.ladder import load as load_ladder
from attnlab.report.pages.files import dumps, refresh, write
from attnlab.report.schema import VERSION, Report, load
from attnlab.report.tables import maps
from attnlab.report.verdicts.runs import read_run
from attnlab.store import runs
from attnlab.store.guards import digests

REFERENCE = Path(__file__).parents[2] / "reports" / "reference"


def test_the_index_lists_every_report_with_its_verdicts(made: Made) -> None:
    every = dict(made)  # each is built as it is asked for, and the index with it
    page = (made["good"][1].parent / "index.html").read_text("utf-8")
    for name, (report, folder) in every.items():
        assert f'href="{folder.name}/report.html"' in page, name
        words = [claim.verdict for claim in report.verdict.claims]
        assert all(word in page for word in words)
    assert page.count("NO RESULT") >= 3
    assert EVIL not in page


@pytest.mark.usefixtures("blank")
def test_a_page_of_somebody_else_is_not_replaced_by_an_index(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "report"
    folder.mkdir(parents=True)
    (folder / "report.json").write_bytes((made["single"][1] / "report.json").read_bytes())
    (tmp_path / "mine" / "index.html").write_text("<p>my own page")
    assert main(["report", str(folder)]) == 0
    assert (tmp_path / "mine" / "index.html").read_text() == "<p>my own page"


def test_a_report_that_cannot_be_read_is_named_in_the_index(made: Made, tmp_path: Path) -> None:
    for name, text in (("good", (made["single"][1] / "report.json").read_text()), ("cut", '{"schema": 2')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(text)
    refresh(tmp_path)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "cut cannot be read as a report" in page
    assert 'href="good/report.html"' in page


def test_the_index_lists_ladders_tells_rungs_apart_and_leads_to_the_ledger(tmp_path: Path) -> None:
    name = "gqa_vs_mha@two_cores"
    for folder, file in ((name, "ladder.json"), (f"{name}.S", "report.json")):
        (tmp_path / folder).mkdir()
        shutil.copy(REFERENCE / folder / file, tmp_path / folder)
    refresh(tmp_path)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert f'href="gqa_vs_mha%40two_cores/report.html">{name}</a>' in page
    assert f">{name}.S</a>" in page, "not the experiment's name, which its other rungs have too"
    words = load_ladder(tmp_path / name).comparisons
    assert all(f"{row.arm} against {row.against}: {row.word}" in page for row in words)
    assert f"python -m attnlab report {tmp_path.name}<" in page
    (tmp_path / "ledger.html").write_text("")
    refresh(tmp_path)
    assert '<a href="ledger.html">' in (tmp_path / "index.html").read_text("utf-8")


@pytest.mark.usefixtures("blank")
def test_maps_of_an_earlier_report_are_removed_where_its_runs_have_none(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0])
    runs = write_runs(tmp_path / "runs", world)
    report = build(experiment(world), runs, None, provenance())
    page = write(tmp_path / "report", report, runs)
    assert set(maps.read(page.with_name(maps.ARCHIVE))) == {("mha", 0), ("gqa", 0)}
    assert 'id="head-view"' in page.read_text("utf-8")
    bare = [replace(run, maps=None) for run in runs]
    write(tmp_path / "report", build(experiment(world), bare, None, provenance()), bare)
    assert not page.with_name(maps.ARCHIVE).exists()
    assert 'id="head-view"' not in page.read_text("utf-8")


def test_json_has_one_record_a_line_and_loads_back_equal(made: Made) -> None:
    report, folder = made["good"]
    text = (folder / "report.json").read_text("utf-8")
    assert text == dumps(report.plain())
    assert json.loads(text) == report.plain()
    assert load(folder / "report.json") == report
    lines = {line.strip().removesuffix(",") for line in text.splitlines()}
    for record in (*report.runs, *report.heads.scores[0].runs, *report.reproduce.runs):
        assert json.dumps(record.plain(), sort_keys=True, ensure_ascii=False, separators=(",", ":")) in lines
    assert dumps({"b": [1, {"c": []}], "a": {}}) == '{\n "a": {},\n "b": [\n  1,\n  {"c":[]}\n ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps({"a": float("nan")})


def test_a_broken_archive_of_maps_is_one_line_and_exit_2(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("report.json", maps.ARCHIVE):
        shutil.copy(made["single"][1] / name, tmp_path)
    cut(tmp_path / maps.ARCHIVE)
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "attention.npz: cannot be read as attention maps" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def old(report: dict[str, Any]) -> None:
    report["schema"] = 1


def gutted(report: dict[str, Any]) -> None:
    del report["budget"]["rows"][0]["cells"][1]["ratio"]


def mistyped(report: dict[str, Any]) -> None:
    report["effects"][0]["n"] = "five"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (old, f"has schema 1, this version reads {VERSION}; run its command again"),
        (gutted, "is not a whole report: budget.rows.0.cells.1.ratio: Field required; run its"),
        (mistyped, "is not a whole report: effects.0.n: Input should be a valid integer"),
    ],
)
def test_a_report_of_another_shape_is_one_line_and_exit_2(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[..., None], told: str
) -> None:
    report = json.loads((made["good"][1] / "report.json").read_text())
    spoil(report)
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no report.json here"),
        ("{}", "is JSON, but not a report of attnlab"),
        ("[1, 2]", "is JSON, but not a report of attnlab"),
        ('{"schema": 2, "verd', "cannot be read as a report"),
        ("\udcff", "cannot be read as a report"),
    ],
)
def test_what_is_no_report_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, told: str
) -> None:
    if text is not None:
        (tmp_path / "report.json").write_bytes(text.encode(errors="surrogateescape"))
    for command in (["report", str(tmp_path)], ["report", "--diff", str(tmp_path), str(tmp_path)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert told in said
        assert said.count("\n") == 1


def test_a_record_cut_in_half_is_named(made: Made, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b'{"schema": 1, "sta')
    with pytest.raises(
        ValueError, match=r"run.json: cut short or broken; delete it and run the command again"
    ):
        read_run(tmp_path, "mha", 0)


def missing(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flipped(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])


@pytest.mark.usefixtures("blank")
@pytest.mark.parametrize("spoil_file", [missing, cut, flipped])
@pytest.mark.parametrize("name", digests.FILES)
def test_a_broken_file_of_one_run_costs_what_it_holds_and_not_the_page(
    tmp_path: Path, spoil_file: Callable[[Path], None], name: str
) -> None:
    world = World(seeds=[0, 1, 2])
    sound = write_runs(tmp_path, world)
    folder = tmp_path / sound[4].id
    for unread in (digests.WEIGHTS, digests.VOCABULARY):  # by a report
        (folder / unread).write_bytes(bytes(99))
    record = runs.record(folder)
    assert record is not None
    runs.write_record(folder, record.model_copy(update={"files": digests.of_files(folder)}))
    assert not read_run(folder, sound[4].arm, sound[4].seed).broken
    spoil_file(folder / name)
    found = [read_run(tmp_path / run.id, run.arm, run.seed) for run in sound]
    assert [run.arm for run in found if run.broken] == [sound[4].arm]
    assert (found[4].curves is None) == (name == digests.CURVES)
    assert (found[4].maps is None) == (name == digests.MAPS)
    before, report = (build(experiment(world), some, None, provenance()) for some in (sound, found))
    [told] = report.verdict.unlike
    assert told.startswith(f"{found[4].arm}, seed {found[4].seed}: {name} is ")
    assert "again" in told
    assert report.effects == before.effects
    assert report.verdict.claims == before.verdict.claims
    assert len(report.curves.lines) == len(before.curves.lines) - (name == digests.CURVES)
    page = write(tmp_path / "report", report, found).read_text("utf-8")
    first = page[: page.index('class="claims"')]
    assert f"{name} is" in first
    assert f"{name} is" in (tmp_path / "report" / "report.md").read_text("utf-8").replace("\\", "")


def test_files_that_an_old_run_left_broken_cost_no_page_either(tmp_path: Path) -> None:
    world = World(seeds=[0, 1])
    sound = write_runs(tmp_path, world)
    flip, short = (tmp_path / sound[i].id for i in (0, 1))
    content = (flip / digests.MAPS).read_bytes()
    (flip / digests.MAPS).write_bytes(content[:999] + bytes(900) + content[1899:])
    cut(short / digests.CURVES)
    found = [read_run(tmp_path / run.id, run.arm, run.seed) for run in sound]
    assert [dict(run.broken) for run in found[:3]] == [
        {digests.MAPS: "cannot be read"},
        {digests.CURVES: "cannot be read"},
        {},
    ]
    told = build(experiment(world), found, None, provenance()).verdict.unlike
    assert len(told) == 2
    assert all("without its run.json" in sentence for sentence in told)


def test_two_reports_are_compared_by_the_verb(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--diff", str(made["good"][1]), str(made["broken"][1])]) == 0
    assert "budget  parameters of mqa: 120,000 -> 130,000" in capsys.readouterr().out


def surplus(report: dict[str, Any]) -> None:
    report["verdict"]["surplus"] = 1


def unknown(report: dict[str, Any]) -> None:
    report["verdict"]["claims"][0]["is"] = "beyond"


def test_the_types_and_the_json_schema_take_every_report_that_is_built(made: Made) -> None:
    for report, _ in dict(made).values():
        jsonschema.validate(report.plain(), schema("report"))
        assert Report.model_validate(report.plain()) == report


@pytest.mark.parametrize("spoil", [old, gutted, mistyped, surplus, unknown])
def test_the_types_and_the_json_schema_refuse_the_same(made: Made, spoil: Callable[..., None]) -> None:
    report = made["good"][0].plain()
    spoil(report)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema("report"))
    with pytest.raises(ValidationError):
        Report.model_validate(report)


def test_pickles_in_arrays_never_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "attention.npz", maps=np.array([{}, 1], dtype=object))
    run = read_run(tmp_path, "arm", 0)
    assert (run.maps, run.broken) == (None, {"attention.npz": "cannot be read"})
