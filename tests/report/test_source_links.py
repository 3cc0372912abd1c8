"""The source of a claim links to arXiv and to its entry in the bibliography, wherever it is shown."""

import re
import shutil
from pathlib import Path

import ledger
import pytest
from rendering import REFERENCES

from attnlab.config import CONF
from attnlab.report.pages.report_files import render_report
from attnlab.report.replications.ladder_page import render_ladder
from attnlab.report.section import Link
from attnlab.report.tables import source_links
from attnlab.report.tables.claim_sources import Citation
from attnlab.report.tables.source_links import find_bibliography, format_citation, split_source

ROOT = CONF.parent
ARXIV, ENTRY = "https://arxiv.org/abs/2305.13245", "../../docs/bibliography.md#ainslie-2023-2305-13245"
DOCUMENT = "../../docs/bibliography.md#the-gollm-chapter-on-self-attention"


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("this project", [("this project", "")]),
        ("Nobody 2001, 2002.00001", [("Nobody 2001", ""), (", ", ""), ("2002.00001", "https://arxiv.org/abs/2002.00001")]),
        ("Somebody 2001, version 2013.12", [("Somebody 2001, version 2013.12", "")]),
        ("version 1.2305.13245", [("version 1.2305.13245", "")]),
        ("nanochat; A | B", [("nanochat", "b.md#nanochat"), ("; ", ""), ("A | B", "")]),
        ("Gemma 2, 2408.00118", [
            ("Gemma 2", "b.md#gemma-2-2408-00118"), (", ", ""), ("2408.00118", "https://arxiv.org/abs/2408.00118")
        ]),
    ],
)  # fmt: skip
def test_source_is_split_into_text_and_links(source: str, parts: list[tuple[str, str]]) -> None:
    assert list(split_source(source, "b.md")) == [Link(*part) if part[1] else part[0] for part in parts]
    assert not any("b.md" in part.href for part in split_source(source, "") if isinstance(part, Link))


def test_citation_has_both_sources_with_their_statements() -> None:
    assert format_citation(Citation(other_source="B"), "") == []
    parts = format_citation(Citation(source="A", source_says="fine", other_source="B"), "")
    assert parts == ["Source: ", "A", ": fine.", " Conflicting source: ", "B", "."]


def test_bibliography_is_found_only_from_within_the_repository(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "bibliography.md").touch()
    assert find_bibliography(tmp_path / "reports") == ""
    assert find_bibliography(ROOT / "reports" / "mine") == "../../docs/bibliography.md"
    assert find_bibliography(ROOT / "reports") == "../docs/bibliography.md"


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a report, a ladder and one of its sizes, without their pages."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    monkeypatch.setattr(source_links, "CONF", tmp_path / "conf")
    folder = tmp_path / "reports"
    for name in ("gqa_vs_mha", "gqa_vs_mha@two_cores", "gqa_vs_mha@two_cores.40k"):
        (folder / name).mkdir(parents=True)
        for source in REFERENCES.joinpath(name).glob("*.json"):
            shutil.copy(source, folder / name)
    return folder


@pytest.mark.usefixtures("blank_charts")
def test_every_page_that_shows_a_source_links_it(reports: Path) -> None:
    render_report(reports / "gqa_vs_mha")
    render_ladder(reports / "gqa_vs_mha@two_cores")
    ledger.write_ledger(reports)
    for page in ("gqa_vs_mha/report.html", "gqa_vs_mha@two_cores/report.html", "ledger.html"):
        links = re.findall(r'<a href="([^"]+)">', (reports / page).read_text("utf-8"))
        entries = (
            [ENTRY, DOCUMENT] if "/" in page else [entry.removeprefix("../") for entry in (ENTRY, DOCUMENT)]
        )
        assert {ARXIV, *entries} <= set(links), page
    for page in ("gqa_vs_mha/report.md", "gqa_vs_mha@two_cores/ladder.md", "README.md"):
        entry = ENTRY if "/" in page else ENTRY.removeprefix("../")
        assert f"[Ainslie 2023](<{entry}>), [2305.13245](<{ARXIV}>)" in (reports / page).read_text("utf-8"), (
            page
        )
