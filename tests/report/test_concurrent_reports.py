"""Two commands that end together publish complete pages of the report that was written last."""

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
from sampling import FULL
from synthetic import replace_fields
from worlds import SyntheticReports

from attnlab.report.pages import report_files
from attnlab.report.pages.html import render_page
from attnlab.report.pages.index import render_index
from attnlab.report.pages.report_files import render_report, write_report
from attnlab.report.pages.report_page import build_report_page
from attnlab.report.schema import Report, load_report
from attnlab.report.tables.claim_sources import load_reworded_report

ROUNDS = 20 if FULL else 5
WHOLE = {
    ".html": b"</html>",
    ".md": b"\n",
    ".csv": b"\n",
    ".png": b"IEND\xaeB`\x82",
    ".json": b"}",
}


def replace_question(report: Report, question: str) -> Report:
    """The same report with another question."""
    experiment = replace_fields(report.experiment, question=question)
    return replace_fields(report, experiment=experiment)


def publish(report: Report, folder: Path) -> Path:
    return write_report(folder, report, [])


@pytest.mark.usefixtures("blank_charts")
def test_temporary_files_of_another_command_stay(synthetic_reports: SyntheticReports, tmp_path: Path) -> None:
    publish(synthetic_reports["nothing"][0], tmp_path / "one")
    other_file = tmp_path / "one" / "figures" / ".verdict.png.abcd1234.png"
    other_file.write_bytes(b"half")
    (tmp_path / "one" / "figures" / "older.png").write_bytes(b"of a report before")
    render_report(tmp_path / "one")
    assert other_file.exists()
    assert not (tmp_path / "one" / "figures" / "older.png").exists()


@pytest.mark.usefixtures("blank_charts")
def test_pages_show_a_report_written_concurrently(
    synthetic_reports: SyntheticReports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        replace_question(synthetic_reports["nothing"][0], question) for question in ("first?", "second?")
    )
    second = replace_fields(second, runs=second.runs[:1])

    def render_and_interrupt(*rendered: Any) -> str:
        page = render_page(*rendered)
        monkeypatch.setattr(report_files, "render_page", render_page)
        publish(second, tmp_path / "one")  # the other command, from its beginning to its end
        return page

    monkeypatch.setattr(report_files, "render_page", render_and_interrupt)
    page = publish(first, tmp_path / "one")
    assert load_report(tmp_path / "one" / "report.json").experiment.question == "second?"
    newest = build_report_page(load_reworded_report(tmp_path / "one" / "report.json"))
    assert page.read_text("utf-8") == render_page(newest)
    assert "second?" in (tmp_path / "one" / "report.md").read_text("utf-8")
    assert (tmp_path / "one" / "runs.csv").read_text("utf-8").count("\n") == 2


@pytest.mark.usefixtures("blank_charts")
def test_index_lists_a_report_written_concurrently(
    synthetic_reports: SyntheticReports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render_and_interrupt(folder: Path) -> str:
        page = render_index(folder)
        monkeypatch.setattr(report_files, "render_index", render_index)
        publish(synthetic_reports["single"][0], tmp_path / "two")
        return page

    monkeypatch.setattr(report_files, "render_index", render_and_interrupt)
    publish(synthetic_reports["nothing"][0], tmp_path / "one")
    page = (tmp_path / "index.html").read_text("utf-8")
    assert 'href="one/report.html"' in page
    assert 'href="two/report.html"' in page


def publish_often(me: str, report: Report, reports: Path, together: Any) -> None:
    """One of the two commands: each round the same report as the other, and a new one of its own."""
    for number in range(ROUNDS):
        together.wait(120)
        publish(replace_question(report, f"{me}{number}?"), reports / "both")
        own = reports / f"{me}{number}"
        own.mkdir()
        report_files.write_atomically(own / "report.json", (reports / "both" / "report.json").read_bytes())
        report_files.write_index(reports)


def read_all(reports: Path, torn: list[str]) -> int:
    """Read every existing page and return their number."""
    pages = [path for path in reports.rglob("*.*") if path.is_file() and not path.name.startswith(".")]
    for path in pages:
        if not path.read_bytes().rstrip(b"\n ").endswith(WHOLE[path.suffix].rstrip(b"\n")):
            torn.append(str(path))
    return len(pages)


@pytest.mark.rare
@pytest.mark.timeout(600)
def test_concurrent_commands_publish_complete_pages(
    synthetic_reports: SyntheticReports, tmp_path: Path
) -> None:
    spawn = multiprocessing.get_context("spawn")
    together, over = spawn.Barrier(2), threading.Event()
    combined = [
        spawn.Process(target=publish_often, args=(me, synthetic_reports["nothing"][0], tmp_path, together))
        for me in "ab"
    ]
    torn, read = list[str](), [0]

    def read_until_over() -> None:
        while not over.wait(0.05):
            read[0] += read_all(tmp_path, torn)

    reader = threading.Thread(target=read_until_over)
    for process in combined:
        process.start()
    reader.start()
    for process in combined:
        process.join()
    over.set()
    reader.join()
    assert [process.exitcode for process in combined] == [0, 0]
    assert torn == []
    assert read[0] > ROUNDS
    page = (tmp_path / "index.html").read_text("utf-8")
    for number in range(ROUNDS):
        assert all(f'href="{me}{number}/report.html"' in page for me in "ab")
    last = load_reworded_report(tmp_path / "both" / "report.json")
    assert (tmp_path / "both" / "report.html").read_text("utf-8") == render_page(build_report_page(last))
    assert last.experiment.question.endswith(f"{ROUNDS - 1}?")
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]  # no half-written file stays
