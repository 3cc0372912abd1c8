"""Files of a report: the index beside reports, and one-line errors for unreadable files."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from pydantic import ValidationError
from rendering import REFERENCES, make_report
from synthetic import World, replace_fields, write_runs
from worlds import EVIL, SyntheticReports

from attnlab.cli.main import main
from attnlab.cli.verbs.schema import build_schema
from attnlab.report.ladder_schema import load_ladder as load_ladder
from attnlab.report.pages.report_files import format_json, write_index, write_report
from attnlab.report.schema import REPORT_VERSION, Report, load_report
from attnlab.report.tables import map_archive
from attnlab.report.verdicts.results import read_run
from attnlab.store import file_names, run_directories
from attnlab.store.guards import digests


def test_index_lists_every_report_with_its_verdicts(
    synthetic_reports: SyntheticReports, tmp_path: Path
) -> None:
    for name, (_, source) in dict(synthetic_reports).items():
        shutil.copytree(source, tmp_path / name)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "report.json").write_text('{"schema": 2')
    write_index(tmp_path)
    page = (tmp_path / "index.html").read_text("utf-8")
    for name, (report, _) in synthetic_reports.items():
        assert f'href="{name}/report.html"' in page
        assert all(claim.verdict in page for claim in report.verdict.claims)
    assert page.count("NO RESULT") >= 3
    assert EVIL not in page
    assert "cut cannot be read as a report" in page


@pytest.mark.usefixtures("blank_charts")
def test_foreign_index_is_not_replaced(synthetic_reports: SyntheticReports, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "report"
    folder.mkdir(parents=True)
    (folder / "report.json").write_bytes((synthetic_reports["single"][1] / "report.json").read_bytes())
    (tmp_path / "mine" / "index.html").write_text("<p>my own page")
    assert main(["report", str(folder)]) == 0
    assert (tmp_path / "mine" / "index.html").read_text() == "<p>my own page"


def test_index_lists_ladders_and_the_claims_of_sizes(tmp_path: Path) -> None:
    name = "gqa_vs_mha@two_cores"
    for folder, file in ((name, "ladder.json"), (f"{name}.S", "report.json")):
        (tmp_path / folder).mkdir()
        shutil.copy(REFERENCES / folder / file, tmp_path / folder)
    write_index(tmp_path)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert f'href="gqa_vs_mha%40two_cores/report.html">{name}</a>' in page
    assert f">{name}.S</a>" in page, "not the experiment's name, which its other rungs have too"
    assert f'<td class="prose">{load_ladder(tmp_path / name).headline}</td>' in page
    claims = load_report(tmp_path / f"{name}.S" / "report.json").verdict.claims
    assert page.count(f">{name}.S</a>") == len(claims), "a row per claim"
    assert page.count('<span class="badge ') == len(claims)


@pytest.mark.usefixtures("blank_charts")
def test_maps_of_an_earlier_report_are_removed(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0])
    runs = write_runs(tmp_path / "runs", world)
    report = make_report(runs, world)
    page = write_report(tmp_path / "report", report, runs)
    assert set(map_archive.read_archive(page.with_name(map_archive.ARCHIVE_NAME))) == {("mha", 0), ("gqa", 0)}
    assert 'id="head-view"' in page.read_text("utf-8")
    bare = [replace(run, maps=None) for run in runs]
    write_report(tmp_path / "report", make_report(bare, world), bare)
    assert not page.with_name(map_archive.ARCHIVE_NAME).exists()
    assert 'id="head-view"' not in page.read_text("utf-8")


def test_json_has_one_record_per_line_and_round_trips(synthetic_reports: SyntheticReports) -> None:
    report, folder = synthetic_reports["good"]
    text = (folder / "report.json").read_text("utf-8")
    assert text == format_json(report.to_dict())
    assert json.loads(text) == report.to_dict()
    assert load_report(folder / "report.json") == report
    lines = {line.strip().removesuffix(",") for line in text.splitlines()}
    for record in (*report.runs, *report.curves.lines):
        assert (
            json.dumps(record.to_dict(), sort_keys=True, ensure_ascii=False, separators=(",", ":")) in lines
        )
    assert format_json({"b": [1, {"c": []}], "a": {}}) == '{\n "a": {},\n "b": [\n  1,\n  {"c":[]}\n ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        format_json({"a": float("nan")})


def test_broken_map_archive_exits_with_2(
    synthetic_reports: SyntheticReports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("report.json", map_archive.ARCHIVE_NAME):
        shutil.copy(synthetic_reports["single"][1] / name, tmp_path)
    truncate_file(tmp_path / map_archive.ARCHIVE_NAME)
    assert main(["report", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "attention.npz: cannot be read as attention maps" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("schema", 1, f"has schema 1, this version reads {REPORT_VERSION}; run its command again"),
        ("budget.rows.0.cells.1", {}, "is an incomplete report: budget.rows.0.cells.1.arm: Field required"),
        ("effects.0.n", "five", "is an incomplete report: effects.0.n: Input should be a valid integer"),
        ("effects.0.n", "five" * 10**6, "fivefive'; run its command again"),
        ("effects.0.digits", 10**8, "effects.0.digits: Input should be less than or equal to 20, got 1000"),
        ("verdict.surplus", 1, "verdict.surplus"),
        ("verdict.claims.0.is", "beyond", "verdict.claims.0.is"),
    ],
)
def test_invalid_report_is_rejected_by_types_and_schema_and_exits_with_2(
    synthetic_reports: SyntheticReports,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    place: str,
    value: Any,
    message: str,
) -> None:
    report = json.loads((synthetic_reports["good"][1] / "report.json").read_text())
    *parts, last = (int(part) if part.isdigit() else part for part in place.split("."))
    reduce(getitem, parts, report)[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, build_schema("report"))
    with pytest.raises(ValidationError):
        Report.model_validate(report)
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert main(["report", str(tmp_path)]) == 2
    stderr = capsys.readouterr().err
    assert message in stderr
    assert stderr.count("\n") == 1
    assert len(stderr) < 2100


@pytest.mark.usefixtures("blank_charts")
def test_report_whose_values_do_not_fit_together_is_named(
    synthetic_reports: SyntheticReports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads((synthetic_reports["good"][1] / "report.json").read_text())
    for line in report["curves"]["lines"]:
        line["tokens"] *= 2
    (tmp_path / "mine").mkdir()
    source = tmp_path / "mine" / "report.json"
    source.write_text(json.dumps(report))
    assert main(["report", str(source.parent)]) == 2
    assert capsys.readouterr().err.startswith(f"attnlab: {source}: cannot be rendered (ValueError: zip() ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "report.json not found"),
        ("{}", "not a report of attnlab"),
        ("[1, 2]", "not a report of attnlab"),
        ('{"schema": 2, "verd', "cannot be read as a report"),
        ("\udcff", "cannot be read as a report"),
        ("[" * 100_000, "cannot be read as a report: it is nested too deeply"),
    ],
)
def test_missing_or_foreign_report_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "report.json").write_bytes(text.encode(errors="surrogateescape"))
    for command in (["report", str(tmp_path)], ["report", "--diff", str(tmp_path), str(tmp_path)]):
        assert main(command) == 2
        stderr = capsys.readouterr().err
        assert message in stderr
        assert stderr.count("\n") == 1


@pytest.mark.usefixtures("blank_charts")
@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_folder_in_place_of_a_rendered_file_exits_with_2(
    synthetic_reports: SyntheticReports, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shutil.copy(synthetic_reports["nothing"][1] / "report.json", tmp_path)
    (tmp_path / name / "mine").mkdir(parents=True)
    assert main(["report", str(tmp_path)]) == 2
    expected = f"attnlab: {tmp_path / name}: Is a directory: move it away, or change its permissions"
    assert capsys.readouterr().err == f"{expected}, and run the command again\n"
    assert (tmp_path / name / "mine").is_dir()


def test_truncated_run_result_is_named(synthetic_reports: SyntheticReports, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b'{"schema": 1, "sta')
    with pytest.raises(
        ValueError, match=r"run.json: truncated or invalid: delete it and run the command again"
    ):
        read_run(tmp_path, "mha", 0)


def delete_file(path: Path) -> None:
    path.unlink()


def truncate_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip_bit(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("blank_charts")
@pytest.mark.parametrize("spoil_file", [delete_file, truncate_file, flip_bit])
@pytest.mark.parametrize("name", digests.RUN_FILES)
def test_broken_run_file_costs_only_its_content(
    tmp_path: Path, spoil_file: Callable[[Path], None], name: str
) -> None:
    world = World(seeds=[0, 1, 2])
    intact_runs = write_runs(tmp_path, world)
    folder = tmp_path / intact_runs[4].id
    for file_name in (file_names.WEIGHTS_FILE, file_names.VOCABULARY_FILE):  # by a report
        (folder / file_name).write_bytes(bytes(99))
    record = run_directories.load_run_result(folder)
    assert record is not None
    run_directories.write_run_result(folder, replace_fields(record, files=digests.hash_run_files(folder)))
    assert not read_run(folder, intact_runs[4].arm, intact_runs[4].seed).broken_files
    spoil_file(folder / name)
    runs = [read_run(tmp_path / run.id, run.arm, run.seed) for run in intact_runs]
    assert [run.arm for run in runs if run.broken_files] == [intact_runs[4].arm]
    assert (runs[4].curves is None) == (name == file_names.CURVES_FILE)
    assert (runs[4].maps is None) == (name == file_names.MAPS_FILE)
    before, report = (make_report(some, world) for some in (intact_runs, runs))
    [warning] = report.verdict.run_warnings
    assert warning.startswith(f"{runs[4].arm}, seed {runs[4].seed}: {name} is ")
    assert "again" in warning
    assert report.effects == before.effects
    assert report.verdict.claims == before.verdict.claims
    assert len(report.curves.lines) == len(before.curves.lines) - (name == file_names.CURVES_FILE)
    page = write_report(tmp_path / "report", report, runs).read_text("utf-8")
    first = page[: page.index('class="claims"')]
    assert f"{name} is" in first
    assert f"{name} is" in (tmp_path / "report" / "report.md").read_text("utf-8").replace("\\", "")


def test_broken_files_without_digests_cost_no_page(tmp_path: Path) -> None:
    world = World(seeds=[0, 1])
    intact_runs = write_runs(tmp_path, world)
    flip, short = (tmp_path / intact_runs[i].id for i in (0, 1))
    content = (flip / file_names.MAPS_FILE).read_bytes()
    (flip / file_names.MAPS_FILE).write_bytes(content[:999] + bytes(900) + content[1899:])
    truncate_file(short / file_names.CURVES_FILE)
    runs = [read_run(tmp_path / run.id, run.arm, run.seed) for run in intact_runs]
    assert [dict(run.broken_files) for run in runs[:3]] == [
        {file_names.MAPS_FILE: "cannot be read"},
        {file_names.CURVES_FILE: "cannot be read"},
        {},
    ]
    warnings = make_report(runs, world).verdict.run_warnings
    assert len(warnings) == 2
    assert all("delete its run.json" in sentence for sentence in warnings)


def test_report_verb_compares_two_reports(
    synthetic_reports: SyntheticReports, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["report", "--diff", str(synthetic_reports["good"][1]), str(synthetic_reports["broken"][1])])
        == 0
    )
    assert "budget  parameters of mqa: 120,000 -> 130,000" in capsys.readouterr().out


def test_types_and_json_schema_accept_every_report(synthetic_reports: SyntheticReports) -> None:
    for report, _ in dict(synthetic_reports).values():
        jsonschema.validate(report.to_dict(), build_schema("report"))
        assert Report.model_validate(report.to_dict()) == report


def test_pickled_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "attention.npz", maps=np.array([{}, 1], dtype=object))
    run = read_run(tmp_path, "arm", 0)
    assert (run.maps, run.broken_files) == (None, {"attention.npz": "cannot be read"})
