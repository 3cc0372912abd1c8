"""Two commands that end together publish whole pages, and the pages of the report that was written last."""

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
from sampling import FULL
from worlds import Made

from attnlab.report.pages import files
from attnlab.report.pages.files import render, write
from attnlab.report.pages.html import html
from attnlab.report.pages.index import index
from attnlab.report.schema import Report, load

ROUNDS = 20 if FULL else 5
WHOLE = {
    ".html": b"</html>",
    ".md": b"\n",
    ".csv": b"\n",
    ".png": b"IEND\xaeB`\x82",
    ".json": b"}",
    ".pdf": b"%%EOF",
}


def asking(report: Report, question: str) -> Report:
    """The same report of another question."""
    experiment = report.experiment.model_copy(update={"question": question})
    return report.model_copy(update={"experiment": experiment})


def publish(report: Report, folder: Path) -> Path:
    return write(folder, report, [])


@pytest.mark.usefixtures("blank")
def test_the_temporary_files_of_another_command_are_left_to_it(made: Made, tmp_path: Path) -> None:
    publish(made["nothing"][0], tmp_path / "one")
    others = tmp_path / "one" / "figures" / ".verdict.png.abcd1234.png"
    others.write_bytes(b"half")
    (tmp_path / "one" / "figures" / "older.png").write_bytes(b"of a report before")
    render(tmp_path / "one")
    assert others.exists()
    assert not (tmp_path / "one" / "figures" / "older.png").exists()


@pytest.mark.usefixtures("blank")
def test_pages_show_the_report_that_another_command_wrote_meanwhile(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (asking(made["nothing"][0], question) for question in ("first?", "second?"))
    second = second.model_copy(update={"runs": second.runs[:1]})

    def interrupted(report: Report, *drawn: Any) -> str:
        page = html(report, *drawn)
        monkeypatch.setattr(files, "html", html)
        publish(second, tmp_path / "one")  # the other command, from its beginning to its end
        return page

    monkeypatch.setattr(files, "html", interrupted)
    page = publish(first, tmp_path / "one")
    assert load(tmp_path / "one" / "report.json").experiment.question == "second?"
    assert page.read_text("utf-8") == html(load(tmp_path / "one" / "report.json"))
    assert "second?" in (tmp_path / "one" / "report.md").read_text("utf-8")
    assert (tmp_path / "one" / "runs.csv").read_text("utf-8").count("\n") == 2


@pytest.mark.usefixtures("blank")
def test_the_index_lists_a_report_that_another_command_wrote_meanwhile(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path) -> str:
        page = index(folder)
        monkeypatch.setattr(files, "index", index)
        publish(made["single"][0], tmp_path / "two")
        return page

    monkeypatch.setattr(files, "index", interrupted)
    publish(made["nothing"][0], tmp_path / "one")
    page = (tmp_path / "index.html").read_text("utf-8")
    assert 'href="one/report.html"' in page
    assert 'href="two/report.html"' in page


def publish_often(me: str, report: Report, reports: Path, together: Any) -> None:
    """One of the two commands: each round the same report as the other, and a first one of its own."""
    for number in range(ROUNDS):
        together.wait(120)
        publish(asking(report, f"{me}{number}?"), reports / "both")
        own = reports / f"{me}{number}"
        own.mkdir()
        files.put(own / "report.json", (reports / "both" / "report.json").read_bytes())
        files.refresh(reports)


def read_all(reports: Path, torn: list[str]) -> int:
    """Reads every page that is there; how many there were."""
    pages = [path for path in reports.rglob("*.*") if path.is_file() and not path.name.startswith(".")]
    for path in pages:
        if not path.read_bytes().rstrip(b"\n ").endswith(WHOLE[path.suffix].rstrip(b"\n")):
            torn.append(str(path))
    return len(pages)


@pytest.mark.rare
@pytest.mark.timeout(600)
def test_rounds_of_two_commands_ending_together_publish_whole_pages(made: Made, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    together, over = spawn.Barrier(2), threading.Event()
    both = [
        spawn.Process(target=publish_often, args=(me, made["nothing"][0], tmp_path, together)) for me in "ab"
    ]
    torn, read = list[str](), [0]

    def reading() -> None:
        while not over.wait(0.05):
            read[0] += read_all(tmp_path, torn)

    reader = threading.Thread(target=reading)
    for process in both:
        process.start()
    reader.start()
    for process in both:
        process.join()
    over.set()
    reader.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert torn == []
    assert read[0] > ROUNDS
    page = (tmp_path / "index.html").read_text("utf-8")
    for number in range(ROUNDS):
        assert all(f'href="{me}{number}/report.html"' in page for me in "ab")
    last = load(tmp_path / "both" / "report.json")
    assert (tmp_path / "both" / "report.html").read_text("utf-8") == html(last)
    assert last.experiment.question.endswith(f"{ROUNDS - 1}?")
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]  # no half-written file stays
