"""`report FOLDER` renders changed reports of a folder and its index."""

import json
import os
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import SyntheticReports

from attnlab.cli.main import main
from attnlab.report import reports_folder
from attnlab.report.schema import REPORT_VERSION, load_report
from attnlab.report.tables import map_archive

FILES = {"report.html", "report.md", "runs.csv", "report.json", "attention.npz", "figures"}
EXPLORER = b'id="head-view"'


class InlinePool:
    """A pool that runs its tasks in this process, where charts are blank."""

    def __init__(self, workers: int, mp_context: Any) -> None:
        assert workers >= 1

    def __enter__(self) -> "InlinePool":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, task: Any, *args: Any) -> Any:
        page = Future[None]()
        try:
            page.set_result(task(*args))
        except Exception as error:  # as a pool does
            page.set_exception(error)
        return page

    def shutdown(self, *, cancel_futures: bool) -> None:
        assert cancel_futures


@pytest.fixture
def folder(synthetic_reports: SyntheticReports, tmp_path: Path) -> Path:
    """Two reports as they are in git, one with its attention maps."""
    for name in ("single", "nothing"):
        (tmp_path / "reports" / name).mkdir(parents=True)
        shutil.copy(synthetic_reports[name][1] / "report.json", tmp_path / "reports" / name)
    shutil.copy(synthetic_reports["single"][1] / "attention.npz", tmp_path / "reports" / "single")
    return tmp_path / "reports"


@pytest.fixture
def inline_pool(monkeypatch: pytest.MonkeyPatch, blank_charts: None) -> None:
    monkeypatch.setattr(reports_folder, "ProcessPoolExecutor", InlinePool)


def read_versions(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The time and content of each file of the reports."""
    files = [path for path in sorted(folder.glob("*/**/*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def read_sibling_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def list_rendered_reports(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The reports whose pages were written."""
    pages = [name for name in after if name.endswith("report.html")]
    return {name.partition("/")[0] for name in pages if before.get(name) != after[name]}


@pytest.mark.rare
def test_folder_is_rendered_by_several_processes(
    synthetic_reports: SyntheticReports, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(folder), "--json"]) == 0
    tail, err = capsys.readouterr()
    pages = [folder / "nothing" / "report.html", folder / "single" / "report.html"]
    pages += [folder / "index.html"]
    assert json.loads(tail) == {"pages": [str(page) for page in pages], "errors": []}
    assert "2/2" in err
    assert {path.name for path in (folder / "single").iterdir()} == FILES
    for name in ("nothing", "single"):
        alone = synthetic_reports[name][1]
        for file in ("report.html", "report.md", "runs.csv"):
            assert (folder / name / file).read_bytes() == (alone / file).read_bytes(), file
    assert 'href="single/report.html"' in (folder / "index.html").read_text("utf-8")


@pytest.mark.usefixtures("inline_pool")
@pytest.mark.parametrize("content", ["[1]", "3", '{"single": 3}', "[" * 100_000])
def test_reports_are_rendered_despite_an_invalid_file_of_digests(folder: Path, content: str) -> None:
    (folder / reports_folder.DIGESTS_FILE).write_text(content)
    assert main(["report", str(folder)]) == 0
    assert set(json.loads((folder / reports_folder.DIGESTS_FILE).read_text())) == {"nothing", "single"}


@pytest.mark.usefixtures("inline_pool")
def test_folder_whose_name_is_not_utf8_is_listed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "nothing").rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9"))
    assert main(["report", str(folder)]) == 0
    assert 'href="caf%E9/report.html' in (folder / "index.html").read_text("utf-8")


@pytest.mark.usefixtures("inline_pool")
def test_only_pages_with_changed_sources_are_rendered_again(folder: Path) -> None:
    assert main(["report", str(folder)]) == 0
    first, first_beside = read_versions(folder), read_sibling_files(folder)
    assert set(first_beside) == {"index.html", ".rendered.json"}
    assert main(["report", str(folder)]) == 0
    assert read_versions(folder) == first, "not even their times have changed"

    (folder / ".rendered.json").unlink()
    assert main(["report", str(folder)]) == 0
    repeated = read_versions(folder)
    assert list_rendered_reports(first, repeated) == {"single", "nothing"}
    assert {name: content for name, (_, content) in repeated.items()} == {
        name: content for name, (_, content) in first.items()
    }
    assert read_sibling_files(folder) == first_beside

    source = folder / "single" / "report.json"
    source.write_text(source.read_text().replace("gqa is as good as mha", "gqa is no worse than mha"))
    assert main(["report", str(folder)]) == 0
    reworded = read_versions(folder)
    assert list_rendered_reports(repeated, reworded) == {"single"}
    assert b"gqa is no worse than mha" in reworded["single/report.html"][1]
    assert b"gqa is no worse than mha" in read_sibling_files(folder)["index.html"]

    (folder / "nothing" / "report.html").unlink()
    (folder / "single" / "attention.npz").unlink()
    assert main(["report", str(folder)]) == 0
    last = read_versions(folder)
    assert list_rendered_reports(reworded, last) == {"nothing", "single"}
    assert EXPLORER in reworded["single/report.html"][1]
    assert EXPLORER not in last["single/report.html"][1]


@pytest.mark.usefixtures("inline_pool")
def test_report_of_another_version_does_not_stop_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder / "nothing" / "report.json"
    source.write_text(source.read_text().replace(f'"schema": {REPORT_VERSION}', '"schema": 7'))
    assert main(["report", str(folder)]) == 2
    [message] = [line for line in capsys.readouterr().err.splitlines() if "report.json" in line]
    assert message == (
        f"{source}: has schema 7, this version reads {REPORT_VERSION}; run its command again "
        "(finished runs are cached)"
    )
    assert (folder / "single" / "report.html").is_file()
    assert (folder / "index.html").is_file()
    assert not (folder / "nothing" / "report.html").exists()


@pytest.mark.usefixtures("inline_pool")
def test_invalid_archive_does_not_stop_the_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = load_report(folder / "single" / "report.json").runs[0]
    key = run.arm, run.seed
    (folder / "single" / map_archive.ARCHIVE_NAME).write_bytes(
        map_archive.build_archive({key: {"tokens": np.arange(3)}})
    )
    assert main(["report", str(folder)]) == 2
    assert "single/report.json: cannot be rendered (KeyError: 'maps')" in capsys.readouterr().err
    assert (folder / "nothing" / "report.html").is_file()


def test_folder_without_reports_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    stderr = capsys.readouterr().err
    assert f"{tmp_path}: report.json not found" in stderr
    assert stderr.count("\n") == 1
