"""The page in a real browser: no request, no error; readable, usable by keyboard, and printable."""

import re
from typing import Any

import pytest
from visits import BROWSER_MARKS, Visit, find_page
from worlds import EVIL, SyntheticReports

pytestmark = BROWSER_MARKS
PAGES = ["good", "broken", "nothing", "single", "index", "ledger"]


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


def test_page_is_readable_without_scripts(browser: Any, synthetic_reports: SyntheticReports) -> None:
    report, folder = synthetic_reports["good"]
    with Visit(browser, folder / "report.html", java_script_enabled=False) as visit:
        page = visit.page
        assert page.locator("#verdict h2").inner_text() == f"Verdict: {report.verdict.headline}"
        assert page.locator("#verdict .claim").count() == 3
        assert page.locator("#effects tbody").first.is_visible()
        assert page.locator("#gallery img").first.is_visible()
        assert page.locator("#effects svg").first.is_visible()
        fold = page.locator("#tradeoff details")
        assert not fold.locator("table").is_visible()
        fold.locator("summary").click()
        assert fold.locator("table").is_visible()
        assert not page.locator("#head-view").is_visible(), "elements that need a script are hidden"
        assert not page.locator("button").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_page_is_not_wider_than_the_screen(
    browser: Any, synthetic_reports: SyntheticReports, width: int, scheme: str
) -> None:
    settings = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with Visit(browser, find_page(synthetic_reports, "good"), "#head=gqa/0/1&q=3", **settings) as visit:
        visit.page.locator("#head-view").wait_for()
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
        paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]


@pytest.mark.parametrize("anchor", ["effects", "heads", "reproduce"])
def test_link_leads_to_its_section(browser: Any, synthetic_reports: SyntheticReports, anchor: str) -> None:
    with Visit(browser, find_page(synthetic_reports, "good"), f"#{anchor}") as visit:
        top = visit.page.evaluate(f"document.getElementById('{anchor}').getBoundingClientRect().top")
        end = visit.page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert 0 <= top < 120 or end


def test_table_is_sorted_by_its_header(browser: Any, synthetic_reports: SyntheticReports) -> None:
    with Visit(browser, find_page(synthetic_reports, "good")) as visit:
        table = visit.page.locator("#effects table").first
        table.locator("th button", has_text="Δ").click()
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


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [("good", "dark", 390), ("broken", "light", 1280), ("nothing", "dark", 1280), ("index", "light", 390),
     ("ledger", "dark", 390), ("ledger", "light", 1280)],
)  # fmt: skip
def test_axe_finds_no_serious_barrier(
    browser: Any, synthetic_reports: SyntheticReports, name: str, scheme: str, width: int
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install -e '.[browser]'"
    )
    settings = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with Visit(browser, find_page(synthetic_reports, name), "#head=gqa/0/1&q=3", **settings) as visit:
        visit.page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        context = {
            "include": [["html"]],
            "exclude": [["figure svg"]],
        }  # slow; their text has the colors of the page
        violations = axe.Axe().run(visit.page, context=context).response["violations"]
        serious = [
            (
                violation["id"],
                violation["nodes"][0]["html"][:160],
                violation["nodes"][0]["failureSummary"][:300],
            )
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]
        assert serious == []


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
def test_ledger_is_filtered_by_keyboard_and_address_keeps_the_filter(
    browser: Any, synthetic_reports: SyntheticReports, width: int
) -> None:
    path = find_page(synthetic_reports, "ledger")
    with Visit(browser, path, viewport={"width": width, "height": 900}) as visit:
        page = visit.page
        rows, summary = page.locator("tr[data-axis]:visible"), page.locator("#filters output")
        total = rows.count()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert summary.inner_text().startswith(f"{total} of {total} claims: ")
        page.locator("select[name=verdict]").focus()
        page.keyboard.type("SUPPORTED")
        n_visible = rows.count()
        assert 0 < n_visible < total
        assert summary.inner_text() == f"{n_visible} of {total} claims: {n_visible} SUPPORTED"
        assert page.locator("[data-tally]").all_inner_texts() == [
            f"{page.locator(f'#{table} tr[data-axis]:visible').count()} SUPPORTED"
            for table in ("hypotheses", "identities")
        ]
        address = page.evaluate("location.hash")
        page.locator("#filters button").press("Enter")
        rows.nth(total - 1).wait_for()  # no script of ours: the page's own policy refuses an eval
        assert rows.count() == total
        assert page.evaluate("location.hash") == ""
    with Visit(browser, path, address) as visit:
        assert visit.page.locator("tr[data-axis]:visible").count() == n_visible
        assert visit.trouble == []
    with Visit(browser, path, java_script_enabled=False) as visit:
        assert visit.page.locator("tr[data-axis]:visible").count() == total
        assert not visit.page.locator("#filters").is_visible()
