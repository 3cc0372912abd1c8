"""The page and the Markdown say what report.json says, ask for nothing, and are the same bytes every time."""

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import is_dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from pydantic import BaseModel
from synthetic import selected
from worlds import EVIL, Made

from attnlab.report.answer import answer
from attnlab.report.diff import compare, differences
from attnlab.report.pages.files import render
from attnlab.report.pages.html import inert
from attnlab.report.pages.markdown import cell
from attnlab.report.schema import load
from attnlab.report.tables import maps
from attnlab.report.tables.format import NONE, pvalue, text
from attnlab.report.tables.wording import describe_claim, format_effect

ANCHORS = ["verdict", "budget", "effects", "tradeoff", "curves", "heads", "failures", "config", "reproduce"]
NAMES = ["good", "broken", "nothing", "single"]


class Page(HTMLParser):
    """Numbers (value, shown), ids, addresses and the inert data of a page."""

    def __init__(self, source: str):
        super().__init__()
        self.numbers: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.inside: list[tuple[str, dict]] = []
        self.data = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        found = dict(attrs)
        self.tags.add(tag)
        self.inside.append((tag, found))
        self.ids += [found["id"]] if "id" in found else []
        self.addresses += [found[key] for key in ("src", "href", "xlink:href") if key in found]
        if tag in ("meta", "br", "img", "link", "input"):
            self.inside.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, attrs = self.inside[-1] if self.inside else ("", {})
        if tag == "data":
            self.numbers.append((attrs["value"], data))
        elif tag == "script" and attrs.get("id") == "data":
            self.data += data
        elif tag not in ("script", "style"):
            self.words.append(data)


def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text("utf-8"))


def numbers_in(value: object) -> set[float]:
    if isinstance(value, BaseModel):
        return numbers_in(value.model_dump())
    if is_dataclass(value):
        return numbers_in(vars(value))
    if isinstance(value, dict):
        return set().union(*(numbers_in(item) for item in value.values()), set())
    if isinstance(value, list):
        return {float(len(value))}.union(*(numbers_in(item) for item in value))
    return {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()


@pytest.mark.parametrize("name", NAMES)
def test_every_number_on_the_page_is_in_the_json_and_shown_as_such(made: Made, name: str) -> None:
    folder = made[name][1]
    report = load(folder / "report.json")
    known = numbers_in(report) | numbers_in(answer(report))
    known |= numbers_in(selected(report, folder)) if name != "nothing" else set()
    effects = {(repr(row.mean), format_effect(row)) for row in report.effects}
    found = page(folder).numbers
    assert len(found) > 15
    assert {pair for pair in effects if pair[0] != "None"} <= set(found)
    for value, shown in found:
        assert float(value) in known
        if (value, shown) in effects:
            continue
        plain = shown.replace(",", "").replace("\N{MINUS SIGN}", "-").lstrip("+")
        if plain.startswith("<"):
            assert float(value) < float(plain[1:])
        else:
            digits = len(plain.partition("e")[0].partition(".")[2])
            assert float(plain) == pytest.approx(
                float(value), abs=0.51 * 10.0**-digits, rel=6e-3 if "." not in plain else 1e-9
            )


def test_the_effects_table_of_the_markdown_is_the_json(made: Made) -> None:
    report, folder = made["broken"]
    markdown = (folder / "report.md").read_text("utf-8")
    for row in report.effects:
        line = [row.arm, "val/loss", f"{row.n} of 5", format_effect(row), pvalue(row.p_holm), row.word]
        assert f"| {' | '.join(map(cell, line))} |" in markdown


@pytest.mark.parametrize("name", NAMES)
def test_every_section_has_its_anchor_and_no_id_comes_twice(made: Made, name: str) -> None:
    found = page(made[name][1]).ids
    assert [anchor for anchor in found if anchor in ANCHORS] == ANCHORS
    assert len(found) == len(set(found))


def test_length_is_shown_only_where_it_was_measured(made: Made) -> None:
    assert "length" in page(made["good"][1]).ids
    assert "length" not in page(made["broken"][1]).ids


@pytest.mark.parametrize("name", NAMES)
def test_the_page_asks_for_nothing(made: Made, name: str) -> None:
    found = page(made[name][1])
    beside = {"report.json", "runs.csv", "report.md", "summary.png", "../index.html"}
    asked = [a for a in found.addresses if not a.startswith(("#", "data:image/png;base64,"))]
    assert {a.partition("#")[0] for a in asked} <= beside
    assert not found.tags & {"link", "iframe", "object", "base", "form"}
    assert all((made[name][1] / file).exists() for file in beside)


@pytest.mark.usefixtures("blank")
def test_a_page_without_maps_shows_the_command_and_one_of_runs_without_any_shows_neither(
    made: Made, tmp_path: Path
) -> None:
    report, folder = made["good"]
    missing, explorer = "are not beside this page (attention.npz)", 'id="head-view"'
    with_maps = (folder / "report.html").read_text("utf-8")
    assert explorer in with_maps
    assert missing not in with_maps
    (tmp_path / "report.json").write_bytes((folder / "report.json").read_bytes())
    without = render(tmp_path).read_text("utf-8")
    assert explorer not in without
    after = without.partition(missing)[2]
    assert report.reproduce.command in after[: after.index("</pre>")]
    none_made = (made["nothing"][1] / "report.html").read_text("utf-8")
    assert explorer not in none_made
    assert missing not in none_made


def test_a_token_that_ends_a_script_stays_text(made: Made) -> None:
    folder = made["broken"][1]
    found = page(folder)
    assert EVIL not in (folder / "report.html").read_text("utf-8")
    assert "x" not in found.addresses
    assert any(EVIL in word for word in found.words)
    assert json.loads(found.data)["maps"][0]["tokens"][0] == EVIL


def test_no_character_that_ends_a_script_survives() -> None:
    value = {"a": "</script><!--&\u2028\u2029"}
    assert not set(inert(value)) & set("<>&\u2028\u2029")
    assert json.loads(inert(value)) == value


def test_the_headline_is_on_the_page_and_in_the_markdown(made: Made) -> None:
    for report, folder in made.values():
        assert report.verdict.headline in "".join(page(folder).words)
        assert report.verdict.headline in (folder / "report.md").read_text("utf-8").splitlines()[0]
    assert made["nothing"][0].verdict.headline == "NO RESULT"


@pytest.mark.parametrize("name", NAMES)
def test_sizes_keep_their_budgets(made: Made, name: str) -> None:
    folder = made[name][1]
    assert (folder / "report.html").stat().st_size < 3_000_000
    assert all(len(a) < 2048 * 4 / 3 + 40 for a in page(folder).addresses)
    for picture in (folder / "figures").iterdir():
        assert picture.stat().st_size < 60_000
        assert Image.open(io.BytesIO(picture.read_bytes())).size[0] > 500


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
def test_rendering_again_gives_the_same_bytes_in_any_process(
    made: Made, tmp_path: Path, python: str, seed: str, locale: str, zone: str
) -> None:
    source = made["good"][1]
    code = "import pathlib, sys; from attnlab.report.pages import files; "
    code += "files.render(pathlib.Path(sys.argv[1]))"
    for name in ("report.json", maps.ARCHIVE):
        shutil.copy(source / name, tmp_path)
    env = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    subprocess.run([python, "-c", code, str(tmp_path / "report.json")], env=env, check=True)
    figures = [f"figures/{name}.png" for name in ("verdict", "budget", "effects")]
    for file in ("report.html", "report.md", "runs.csv", "summary.png", *figures):
        assert (tmp_path / file).read_bytes() == (source / file).read_bytes(), file


def test_a_folder_without_a_report_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no report\.json here"):
        render(tmp_path)


def test_numbers_are_written_with_a_true_minus_and_the_decimals_asked_for() -> None:
    assert text(-0.0123, 3, sign=True) == "\N{MINUS SIGN}0.012"
    assert text(0.5, 2, sign=True) == "+0.50"
    assert text(1234567) == "1,234,567"
    assert text(24380.95) == "24,381"
    assert text(None) == NONE
    assert pvalue(1e-9) == "< 0.0001"


def test_comparing_a_report_names_what_changed_and_only_that(made: Made) -> None:
    good, broken = made["good"][1], made["broken"][1]
    assert compare(good, good).endswith("no verdict, effect, budget or run differs")
    found = compare(good, broken)
    equal = differences(good, broken).verdicts_equal
    total = len(made["good"][0].verdict.claims)
    assert f"{total - equal} of {total} verdicts differ" in found.splitlines()[0], "that is said first"
    assert f": all {total} verdicts are equal" in compare(good, good).splitlines()[0]
    was, now = (describe_claim(made[name][0].verdict.claims[1]) for name in ("good", "broken"))
    change = f"verdict  mqa is worse than mha{EVIL}: {was} -> {now}"
    assert change in found, "it asks the same, in other words"
    assert "absent" not in "".join(line for line in found.splitlines() if line.startswith("verdict"))
    assert "budget  parameters of mqa: 120,000 -> 130,000" in found
    assert "run  gqa, seed 1" in found
    assert "training tokens" not in found
