"""The page in a real browser: no request, no error; readable, usable by keyboard, and printable."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rendering import render_html
from visits import BROWSER_MARKS, Visit, find_page
from worlds import EVIL, SyntheticReports

from attnlab.report.schema import load_report
from attnlab.report.sections import PageContext
from attnlab.report.tables.map_archive import read_archive

pytestmark = BROWSER_MARKS
PAGES = ["good", "broken", "nothing", "single", "index", "ledger"]
CLAIMS = ":is(.hypotheses, .identities) tbody tr:visible"
A4_PORTRAIT = {"width": 718, "height": 1047}  # pixels of 210 x 297 mm with margins of 1 cm


@pytest.mark.parametrize("name", PAGES)
def test_page_makes_no_request_and_reports_no_error(
    browser: Any, synthetic_reports: SyntheticReports, name: str
) -> None:
    with Visit(browser, find_page(synthetic_reports, name)) as visit:
        visit.page.mouse.wheel(0, 20_000)
        visit.page.wait_for_load_state()
        requests = [url for url in visit.requests if not url.startswith("data:image/png;base64,")]
        assert requests == [find_page(synthetic_reports, name).as_uri()]
        assert visit.trouble == []


def test_table_that_goes_on_has_a_shadow_at_its_edge(
    browser: Any, synthetic_reports: SyntheticReports
) -> None:
    settings = {"viewport": {"width": 390, "height": 900}, "java_script_enabled": False}
    with Visit(browser, find_page(synthetic_reports, "good"), **settings) as visit:
        box = visit.page.locator(".scroll").first

        def measure_darkness() -> float:
            """Median difference to white of the pixels at the right edge."""
            picture = np.asarray(Image.open(io.BytesIO(box.screenshot())).convert("L"), float)
            return float(np.median(255 - picture[:, -3:]))

        assert box.evaluate("box => box.scrollWidth > box.clientWidth")
        assert measure_darkness() > 20
        box.evaluate("box => { box.scrollLeft = box.scrollWidth }")
        assert measure_darkness() < 5


def test_page_is_readable_without_scripts(browser: Any, synthetic_reports: SyntheticReports) -> None:
    report, folder = synthetic_reports["good"]
    with Visit(browser, folder / "report.html", java_script_enabled=False) as visit:
        page = visit.page
        assert page.locator("#verdict h2").inner_text() == f"Verdict: {report.verdict.headline}"
        assert page.locator("#claims table.claims tbody > tr:not(.details)").count() == 3
        assert page.locator("#effects tbody").first.is_visible()
        assert page.locator("#gallery img").first.is_visible()
        assert page.locator("#effects svg").first.is_visible()
        fold = page.locator("#tradeoff details")
        assert not fold.locator("table").is_visible()
        fold.locator("summary").click()
        assert fold.locator("table").is_visible()
        assert not page.locator("#head-view").is_visible(), "elements that need a script are hidden"
        assert not page.locator("button").first.is_visible()


@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "dark"), (1920, "light")]
)
def test_page_is_not_wider_than_the_screen(
    browser: Any, synthetic_reports: SyntheticReports, width: int, scheme: str
) -> None:
    settings = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with Visit(browser, find_page(synthetic_reports, "good"), "#head=gqa/0/1&q=3", **settings) as visit:
        visit.page.locator("#head-view").wait_for()
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
        paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
        if width == 1920:
            assert visit.page.locator("main").evaluate("main => main.clientWidth") >= 1364 + 40
        visit.page.evaluate("location.hash = '#effects'")
        top = visit.page.evaluate("document.getElementById('effects').getBoundingClientRect().top")
        assert 0 <= top < 120, "a link leads to its section"


def test_table_is_sorted_by_its_header(browser: Any, synthetic_reports: SyntheticReports) -> None:
    with Visit(browser, find_page(synthetic_reports, "good")) as visit:
        table = visit.page.locator("#effects table").first
        table.locator("th button", has_text=re.compile("^Δ")).click()
        values = [float(cell.get_attribute("value")) for cell in table.locator("td:nth-child(4) data").all()]
        assert values == sorted(values)
        assert table.locator('th[aria-sort="ascending"]').count() == 1


def test_page_prints_its_first_screen_or_all_of_it_with_open_folds(
    browser: Any, synthetic_reports: SyntheticReports
) -> None:
    with Visit(browser, find_page(synthetic_reports, "good")) as visit:
        page = visit.page
        page.evaluate(
            "const closed = () => document.querySelectorAll('details:not([open])').length;"
            "addEventListener('beforeprint', () => { window.opened = closed(); })"
        )
        assert 1 <= len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= 2
        page.evaluate("document.documentElement.classList.add('whole')")
        printed = page.pdf(format="A4")
        assert printed.startswith(b"%PDF")
        assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 5
        assert page.evaluate("window.opened") == 0
        assert page.locator("details:not([open])").count() > 3, "they close again"


def test_hostile_tokens_messages_and_config_values_stay_text(
    browser: Any, synthetic_reports: SyntheticReports
) -> None:
    with Visit(browser, find_page(synthetic_reports, "broken"), "#head=mha/0/0&q=0") as visit:
        page = visit.page
        page.locator("#head-view .text span").first.wait_for()
        assert visit.trouble == []
        assert page.locator('img[src="x"]').count() == 0
        assert page.locator("#head-view .text span").first.inner_text() == EVIL
        for section in ("verdict", "failures", "config"):
            assert EVIL in page.locator(f"#{section}").text_content(), section


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_ledger_is_filtered_by_keyboard_and_address_keeps_the_filters(
    browser: Any, synthetic_reports: SyntheticReports, width: int
) -> None:
    path = find_page(synthetic_reports, "ledger")
    with Visit(browser, path, viewport={"width": width, "height": 900}) as visit:
        page = visit.page
        rows, summary = page.locator(CLAIMS), page.locator("#filters output")
        total = rows.count()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert summary.inner_text().startswith(f"{total} of {total} claims: ")
        assert summary.get_attribute("aria-live") == "polite"
        page.get_by_label("search").press_sequentially("MQA")
        n_found = rows.count()
        assert 0 < n_found < total
        assert all("mqa" in text.lower() for text in rows.all_text_contents())
        page.get_by_label("search").press_sequentially(" vs")  # all words must occur
        page.locator("select[name=verdict]").focus()
        page.keyboard.type("SUPPORTED")
        n_visible = rows.count()
        assert 0 < n_visible <= n_found
        assert summary.inner_text() == f"{n_visible} of {total} claims: {n_visible} SUPPORTED"
        address = page.evaluate("location.hash")
        assert address == "#search=MQA+vs&verdict=SUPPORTED"
        page.evaluate("location.hash = '#identities'")
        assert page.get_by_label("search").input_value() == "MQA vs", "a link to a section keeps the query"
    with Visit(browser, path, address) as visit:
        rows = visit.page.locator(CLAIMS)
        assert visit.page.get_by_label("search").input_value() == "MQA vs"
        assert rows.count() == n_visible
        visit.page.locator("#filters button").press("Enter")
        rows.nth(total - 1).wait_for()  # no script of ours: the page's own policy refuses an eval
        assert rows.count() == total
        assert visit.page.evaluate("location.hash") == ""
        assert visit.trouble == []
    with Visit(browser, path, java_script_enabled=False) as visit:
        assert visit.page.locator(CLAIMS).count() == total
        assert visit.page.locator("#filters").count() == 0


@pytest.mark.parametrize(
    "name",
    [
        "gqa_vs_mha",
        "every_variant",
        "rope_interpolation",
        "lossy_caches",
        "kv_cache_bytes",
        "heads_by_task@copy",
    ],
)
def test_no_table_or_map_is_wider_than_a_printed_page(browser: Any, tmp_path: Path, name: str) -> None:
    folder = Path(__file__).parents[2] / "reports" / "reference" / name
    report = load_report(folder / "report.json")
    page_file = tmp_path / "report.html"
    maps = read_archive(folder / "attention.npz")
    page_file.write_text(render_html(report, PageContext(maps=maps)), encoding="utf-8")
    settings = {"viewport": A4_PORTRAIT, "color_scheme": "dark"}
    with Visit(browser, page_file, **settings) as visit:
        page = visit.page
        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("document.documentElement.classList.add('whole')")
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        right_edge = page.evaluate("document.querySelector('main section').getBoundingClientRect().right")
        assert right_edge <= A4_PORTRAIT["width"]
        cut_off = page.evaluate(
            "(edge) => [...document.querySelectorAll('table, canvas, pre, dl')]"
            ".filter((part) => part.getBoundingClientRect().right > edge + 1)"
            ".map((part) => part.outerHTML.slice(0, 200))",
            right_edge,
        )
        assert cut_off == []
        cells = page.locator("#budget table").first.locator("tbody tr").first.locator("td")
        assert cells.count() == len(report.experiment.arms) + 1
        if len(report.experiment.arms) > 6:
            labels = cells.evaluate_all(
                "(all) => all.map((one) => getComputedStyle(one, '::before').content)"
            )
            assert labels == [f'"{arm} "' for arm in [*report.experiment.arms, "tolerance"]]
        assert page.locator("#head-view canvas.map").first.is_visible() == bool(maps)
        colors = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        assert page.evaluate(colors) == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"], "paper is light"


@pytest.mark.parametrize(("width", "is_card"), [(390, True), (735, True), (737, False), (1280, False)])
def test_ledger_shows_a_card_per_claim_on_small_screens(
    browser: Any, synthetic_reports: SyntheticReports, width: int, is_card: bool
) -> None:
    path = find_page(synthetic_reports, "ledger")
    with Visit(browser, path, viewport={"width": width, "height": 900}) as visit:
        row = visit.page.locator(CLAIMS).first
        assert row.evaluate("row => getComputedStyle(row).borderLeftWidth !== '0px'") == is_card
        labels = row.evaluate(
            "row => [...row.cells].slice(1).map(cell => {"
            "const style = getComputedStyle(cell, '::before');"
            "return style.display === 'block' && JSON.parse(style.content) === cell.dataset.label; })"
        )
        assert set(labels) == {is_card}
