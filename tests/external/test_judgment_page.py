"""The page of a verdict on runs that were trained elsewhere."""

import json
import re
import stat
from pathlib import Path

import pytest

from attnlab.__main__ import main
from attnlab.external.judgment_page import DATA_FILE, PAGE_FILE, build_figures, render_judgment
from attnlab.report.number_format import format_number

WORDS = ["a.csv", "b.csv", "--metric", "loss", "--lower-is-better", "--margin", "0.01"]


@pytest.fixture
def judge(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(a, b, *words):
        for name, rows in (("a", a), ("b", b)):
            text = "".join(
                f"{seed},{value},{'diverged' if value == '' else 'done'}\n" for seed, value in rows
            )
            (tmp_path / f"{name}.csv").write_text("seed,loss,status\n" + text)
        main(["judge", *WORDS, *words])
        out, err = capsys.readouterr()
        return json.loads(out), err

    return run


PAIRED = [(seed, 3 + 0.01 * (seed % 4)) for seed in range(8)]
BETTER = [(seed, value - 0.1 + 0.002 * (seed % 3)) for seed, value in PAIRED]


def test_page_shows_every_run_and_is_rendered_from_its_data(judge, tmp_path):
    document, err = judge(PAIRED, BETTER)
    folder = tmp_path / document["report"].removesuffix(f"/{PAGE_FILE}")
    page = (folder / PAGE_FILE).read_text("utf-8")
    assert f"report: {document['report']}" in err
    stored = json.loads((folder / DATA_FILE).read_text("utf-8"))
    assert stored == {key: value for key, value in document.items() if key != "report"}
    assert page.count("<svg") >= 6  # three charts at two widths
    table = page[page.index("Every run") :]
    for (seed, a), (_, b) in zip(PAIRED, BETTER, strict=True):
        row = [str(seed), f"{a:.5f}", f"{b:.5f}", format_number(b - a, 5, sign=True)]
        assert re.search("".join(f'<td class="num">{re.escape(cell)}</td>' for cell in row), table), row
    assert f"{document['required_runs_per_side']} runs a side decide the claim" in page
    assert "EXPLORATORY" in page
    (folder / PAGE_FILE).unlink()
    assert render_judgment(folder).read_text("utf-8") == page
    assert main(["report", str(folder)]) == 0


def test_unpaired_and_diverged_runs(judge):
    document, _ = judge([(seed, 3 + 0.01 * seed) for seed in range(4)], [(9, 2.9), (8, ""), (7, 2.91)])
    figures = {figure.name: figure for figure in build_figures(document, "")}
    assert "differences" not in figures
    rings = figures["runs"].spec["layer"][0]["data"]["values"]
    assert sorted(ring["description"] for ring in rings) == [
        "A seed 0: 3", "A seed 1: 3.01", "A seed 2: 3.02", "A seed 3: 3.03",
        "B seed 7: 2.91", "B seed 9: 2.9",
    ]  # fmt: skip
    page = Path(document["report"]).read_text("utf-8")
    assert '<td class="num">diverged</td>' in page
    assert document["pairing"].endswith(
        "change as runs are added: the verdict holds for one analysis or a few"
    )
    assert "anytime-valid, it holds" not in page


def test_other_questions_have_other_folders(judge):
    reports = {
        judge(PAIRED, BETTER, *words)[0]["report"]
        for words in ([], ["--looks", "once"], ["--margin", "0.02"])
    }
    assert len(reports) == 3
    assert judge(PAIRED, BETTER)[0]["report"] in reports


def test_a_folder_that_cannot_be_written_costs_the_page_alone(judge, tmp_path):
    (tmp_path / "reports").write_text("a file, so no folder")
    document, err = judge(PAIRED, BETTER)
    assert (document["claim"], document["report"]) == ("SUPPORTED", None)
    assert "no report page: " in err
    assert stat.S_ISREG((tmp_path / "reports").stat().st_mode)


def test_a_damaged_file_is_one_line(judge, tmp_path, capsys):
    folder = tmp_path / Path(judge(PAIRED, BETTER)[0]["report"]).parent
    text = (folder / DATA_FILE).read_text("utf-8")
    for damaged in (text[:-9], "[]", text.replace('"exploratory"', '"x"')):
        (folder / DATA_FILE).write_text(damaged, "utf-8")
        assert main(["report", str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"attnlab: {folder / DATA_FILE}: cannot be rendered (")
        assert error.endswith("); run its command again\n")
