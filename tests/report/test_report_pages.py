"""The page and the Markdown equal report.json, make no request, and are reproducible."""

import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from worlds import EVIL, SyntheticReports

from attnlab.report.number_format import (
    NO_BREAK_SPACE,
    NONE,
    format_number,
    format_pvalue,
    keep_intervals_whole,
)
from attnlab.report.pages.html import TEMPLATE_FOLDER, escape_json
from attnlab.report.pages.report_files import render_report
from attnlab.report.report_diff import compute_diff, format_diff
from attnlab.report.section import list_tables
from attnlab.report.sections import PageContext, build_sections
from attnlab.report.tables.map_archive import ARCHIVE_NAME, read_archive
from attnlab.report.tables.wording import describe_claim

ANCHORS = ["verdict", "budget", "effects", "tradeoff", "curves", "heads", "failures", "config", "reproduce"]
NAMES = ["good", "broken", "nothing", "single"]


class Page(HTMLParser):
    """Numbers (value, shown text), ids, addresses and the inert data of a page."""

    def __init__(self, source: str):
        super().__init__()
        self.numbers: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.web_links: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.inside: list[tuple[str, dict]] = []
        self.data = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        attributes = dict(attrs)
        self.tags.add(tag)
        self.inside.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        addresses = [attributes[key] for key in ("src", "href", "xlink:href") if key in attributes]
        self.web_links += [address for address in addresses if tag == "a" and "://" in address]
        self.addresses += [address for address in addresses if tag != "a" or "://" not in address]
        if tag in ("meta", "br", "img", "link", "input"):
            self.inside.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, attrs = self.inside[-1] if self.inside else ("", {})
        if tag == "data":
            self.numbers.append((attrs["value"], data.replace(NO_BREAK_SPACE, " ")))
        elif tag == "script" and attrs.get("id") == "data":
            self.data += data
        elif tag not in ("script", "style"):
            self.words.append(data)


def parse_page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text("utf-8"))


def is_rounded(value: float, shown: str) -> bool:
    """Whether a value rounds to the digits that are shown."""
    plain = (
        shown.replace(",", "").replace("\N{MINUS SIGN}", "-").lstrip("+").removesuffix("×").removesuffix("%")
    )
    if plain.startswith("<"):
        return value < float(plain[1:])
    digits = len(plain.partition("e")[0].partition(".")[2])
    rel = 6e-3 if "." not in plain else 1e-9
    return math.isclose(value, float(plain), abs_tol=0.51 * 10.0**-digits, rel_tol=rel)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_the_page_are_those_of_its_tables(synthetic_reports: SyntheticReports, name: str) -> None:
    report, folder = synthetic_reports[name]
    tables = list_tables(build_sections(report, PageContext(maps=read_archive(folder / ARCHIVE_NAME))))
    cells = [cell for table in tables.values() for row in table.full_rows for cell in row.typed]
    values = {repr(cell.value) for cell in cells}
    numbers = parse_page(folder).numbers
    assert len(numbers) > 15
    for value, shown in numbers:
        assert value in values
        printed = "0" if shown == "none" else shown.partition(" ")[0] if shown[0] != "<" else shown
        assert is_rounded(float(value) * (100 if "%" in printed else 1), printed), (value, shown)


@pytest.mark.parametrize("name", NAMES)
def test_page_has_every_section_its_headline_and_no_external_address(
    synthetic_reports: SyntheticReports, name: str
) -> None:
    report, folder = synthetic_reports[name]
    parsed = parse_page(folder)
    assert [anchor for anchor in parsed.ids if anchor in ANCHORS] == ANCHORS
    assert len(parsed.ids) == len(set(parsed.ids))
    assert ("length" in parsed.ids) == (name == "good")
    assert report.verdict.headline in "".join(parsed.words)
    assert report.verdict.headline in (folder / "report.md").read_text("utf-8")
    assert (report.verdict.headline == "NO RESULT") == (name == "nothing")
    assert all(link.startswith("https://arxiv.org/abs/") for link in parsed.web_links), "for readers to click"
    style = (TEMPLATE_FOLDER / "page.css").read_text("utf-8")
    assert not re.search(r"@import|@font-face|url\(", style)
    files = {"report.json", "runs.csv", "report.md", "../index.html"}
    addresses = [a for a in parsed.addresses if not a.startswith(("#", "data:image/png;base64,"))]
    assert {a.partition("#")[0] for a in addresses} <= files
    assert not parsed.tags & {"link", "iframe", "object", "base", "form"}
    assert all((folder / file).exists() for file in files)
    assert (folder / "report.html").stat().st_size < 3_000_000
    assert all(len(a) < 2048 * 4 / 3 + 40 for a in parsed.addresses)
    for picture in (folder / "figures").iterdir():
        assert picture.stat().st_size < 60_000
        assert Image.open(io.BytesIO(picture.read_bytes())).size[0] > 500


def test_token_that_would_end_a_script_stays_text(synthetic_reports: SyntheticReports) -> None:
    folder = synthetic_reports["broken"][1]
    parsed = parse_page(folder)
    assert EVIL not in (folder / "report.html").read_text("utf-8")
    assert "x" not in parsed.addresses
    assert any(EVIL in verdict for verdict in parsed.words)
    assert json.loads(parsed.data)["maps"][0]["tokens"][0] == EVIL
    value = {"a": "</script><!--&\u2028\u2029"}
    assert not set(escape_json(value)) & set("<>&\u2028\u2029")
    assert json.loads(escape_json(value)) == value


OTHER_PYTHON = os.environ.get("ATTNLAB_OTHER_PYTHON")  # of another version; needs no torch
_NO_OTHER = "set ATTNLAB_OTHER_PYTHON to a Python with jinja2, numpy, pillow, pyarrow, scipy and vl-convert"


@pytest.mark.parametrize(
    ("python", "seed", "locale", "zone"),
    [
        pytest.param(sys.executable, "1", "C", "UTC", marks=pytest.mark.rare),
        (sys.executable, "2", "de_DE.UTF-8", "Asia/Kolkata"),
        pytest.param(
            OTHER_PYTHON, "3", "C", "UTC", marks=pytest.mark.skipif(not OTHER_PYTHON, reason=_NO_OTHER)
        ),
    ],
)
def test_rendering_is_reproducible_in_any_process(
    synthetic_reports: SyntheticReports, tmp_path: Path, python: str, seed: str, locale: str, zone: str
) -> None:
    source = synthetic_reports["good"][1]
    code = "import pathlib, sys; from attnlab.report.pages import report_files; "
    code += "report_files.render_report(pathlib.Path(sys.argv[1]))"
    for name in ("report.json", ARCHIVE_NAME):
        shutil.copy(source / name, tmp_path)
    env = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    subprocess.run([python, "-c", code, str(tmp_path / "report.json")], env=env, check=True)
    figures = [f"figures/{name}.png" for name in ("verdict", "effects")]
    for file in ("report.html", "report.md", "runs.csv", *figures):
        assert (tmp_path / file).read_bytes() == (source / file).read_bytes(), file


def test_folder_without_a_report_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"report\.json not found"):
        render_report(tmp_path)


def test_intervals_in_cells_break_nowhere(synthetic_reports: SyntheticReports) -> None:
    source = (synthetic_reports["good"][1] / "report.html").read_text("utf-8")
    for cell in re.findall(r"<td[^>]*>(.*?)</td>", source):
        assert not re.search(r"\[[^\]]* [^\]]*\]", re.sub("<[^>]*>", "", cell)), cell
    assert keep_intervals_whole("a, b (c) 95% CI [−0.1, +0.2] (−∞, 3]") == (
        "a, b (c) 95% CI [−0.1,\xa0+0.2] (−∞,\xa03]"
    )


def test_numbers_have_a_true_minus_and_the_requested_decimals() -> None:
    assert format_number(-0.0123, 3, sign=True) == "\N{MINUS SIGN}0.012"
    assert format_number(0.5, 2, sign=True) == "+0.50"
    assert [format_number(x, 2, sign=True) for x in (-0.004, 0.004, 0.0)] == ["0.00"] * 3
    assert format_number(-0.04, 0) == format_number(0, sign=True) == "0"
    assert format_number(1234567) == "1,234,567"
    assert format_number(24380.95) == "24,381"
    assert format_number(None) == NONE
    assert format_pvalue(1e-9) == "< 0.0001"


def test_report_diff_lists_only_changes(synthetic_reports: SyntheticReports) -> None:
    good, broken = synthetic_reports["good"][1], synthetic_reports["broken"][1]
    assert format_diff(good, good).endswith("no verdict, effect, budget or run differs")
    diff = format_diff(good, broken)
    equal = compute_diff(good, broken).verdicts_equal
    total = len(synthetic_reports["good"][0].verdict.claims)
    assert f"{total - equal} of {total} verdicts differ" in diff.splitlines()[0], "that is said first"
    assert f": all {total} verdicts are equal" in format_diff(good, good).splitlines()[0]
    before, after = (
        describe_claim(synthetic_reports[name][0].verdict.claims[1]) for name in ("good", "broken")
    )
    change = f"verdict  mqa is worse than mha{EVIL}: {before} -> {after}"
    assert change in diff, "it asks the same, in other words"
    assert "absent" not in "".join(line for line in diff.splitlines() if line.startswith("verdict"))
    assert "budget  parameters of mqa: 120,000 -> 130,000" in diff
    assert "run  gqa, seed 1" in diff
    assert "training tokens" not in diff
