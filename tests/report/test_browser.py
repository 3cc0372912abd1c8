"""The page in a real browser: nothing is asked for, nothing fails, and it can be read, driven and printed."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import EVIL

from attnlab.report import ledger

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install -e '.[browser]'"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
PAGES = ["good", "broken", "nothing", "single", "index", "ledger"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Visit:
    """An open page and what it did: requests, console messages, dialogs."""

    def __init__(self, browser: Any, path: Path, address: str = "", **how: Any):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **how})
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.trouble: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda said: self.trouble.append(said.text) if said.type != "log" else None)
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.trouble.append("a dialog"), dialog.dismiss()))
        self.page.goto(path.as_uri() + address)

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()


def where(made: dict, name: str) -> Path:
    if name == "ledger":
        return ledger.write(made["good"][1].parent)[1]
    return made["good"][1].parent / "index.html" if name == "index" else made[name][1] / "report.html"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_nothing_and_reports_no_error(browser: Any, made: dict, name: str) -> None:
    with Visit(browser, where(made, name)) as visit:
        visit.page.mouse.wheel(0, 20_000)
        visit.page.wait_for_load_state()
        other = [url for url in visit.requests if not url.startswith("data:image/png;base64,")]
        assert other == [where(made, name).as_uri()]
        assert visit.trouble == []


def test_without_scripts_everything_can_be_read(browser: Any, made: dict) -> None:
    report, folder = made["good"]
    with Visit(browser, folder / "report.html", java_script_enabled=False) as visit:
        page = visit.page
        assert page.locator("#verdict h2").inner_text() == f"Verdict: {report['verdict']['headline']}"
        assert page.locator("#verdict .claim").count() == 3
        assert page.locator("#effects tbody").first.is_visible()
        assert page.locator("#gallery img").first.is_visible()
        assert page.locator("#effects svg").first.is_visible()
        fold = page.locator("#tradeoff details")
        assert not fold.locator("table").is_visible()
        fold.locator("summary").click()
        assert fold.locator("table").is_visible()
        assert not page.locator("#head-view").is_visible(), "what needs a script is not there"
        assert not page.locator("button").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_is_wider_than_the_screen(browser: Any, made: dict, width: int, scheme: str) -> None:
    look = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with Visit(browser, where(made, "good"), "#head=gqa/0/1&q=3", **look) as visit:
        visit.page.locator("#head-view").wait_for()
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
        paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]


@pytest.mark.parametrize("anchor", ["effects", "heads", "reproduce"])
def test_a_link_leads_to_its_section(browser: Any, made: dict, anchor: str) -> None:
    with Visit(browser, where(made, "good"), f"#{anchor}") as visit:
        top = visit.page.evaluate(f"document.getElementById('{anchor}').getBoundingClientRect().top")
        end = visit.page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert 0 <= top < 120 or end


def test_a_link_restores_the_whole_view_of_a_head(browser: Any, made: dict) -> None:
    with Visit(browser, where(made, "good"), "#head=gqa/1/2&q=7&rescale&nofirst") as visit:
        page = visit.page
        page.locator("#head-view h4").wait_for()
        assert (
            page.locator("#head-view h4").inner_text().startswith("gqa, seed 0, layer 1, head 2 (KV group 1)")
        )
        assert [box.is_checked() for box in page.locator("#head-view input[type=checkbox]").all()] == [
            True,
            True,
        ]
        assert page.locator("#head-view .text span.query").inner_text() == "the cat sat"[7]
        assert page.evaluate("location.hash") == "#head=gqa/1/2&q=7&rescale&nofirst"


def test_a_head_is_opened_by_click_and_driven_by_keys(browser: Any, made: dict) -> None:
    with Visit(browser, where(made, "good")) as visit:
        page, title = visit.page, visit.page.locator("#head-view h4")

        def at(hash_: str) -> None:
            playwright.expect(page).to_have_url(where(made, "good").as_uri() + hash_)

        page.locator('#gallery .head[data-arm="mqa"][data-layer="0"][data-head="1"] button').click()
        at("#head=mqa/0/1")
        assert [box.is_checked() for box in page.locator("#head-view input[type=checkbox]").all()] == [
            False,
            False,
        ]
        assert "chance" in page.locator("#head-view table").inner_text()
        page.keyboard.press("ArrowRight")
        at("#head=mqa/0/2")
        page.keyboard.press("ArrowDown")
        at("#head=mqa/1/2")
        page.keyboard.press("PageDown")
        at("#head=mqa/1/2&q=0")
        page.keyboard.press("PageDown")
        at("#head=mqa/1/2&q=1")
        assert "layer 1, head 2" in title.inner_text()
        page.locator("#head-view select[name=run]").select_option("0")
        at("#head=mha/1/2&q=1")
        page.locator("#head-view .text span").nth(4).click()
        at("#head=mha/1/2&q=4")


def test_hovering_reads_the_weight_that_report_json_holds(browser: Any, made: dict) -> None:
    from attnlab.report.tables.maps import decode

    report, folder = made["good"]
    entry = report["heads"]["maps"][0]
    weights, _ = decode(entry)
    with Visit(browser, folder / "report.html", "#head=mha/0/0") as visit:
        canvas, readout = visit.page.locator("#head-view canvas.map").first, visit.page.locator(".readout")
        canvas.wait_for()
        cell, gap = (float(canvas.get_attribute(f"data-{key}")) for key in ("cell", "gap"))
        for q, k in ((6, 5), (3, 9)):
            canvas.hover(position={"x": (k + 0.5) * cell, "y": gap + (q + 0.5) * cell})
            value = f"{(weights[0, 0, q, k] / 255) ** 2:.3f}" if k <= q else "masked"
            assert readout.inner_text().startswith(f"(q{q} ")
            assert readout.inner_text().endswith(value)


@pytest.mark.parametrize(
    "address",
    [
        "#head=gqa/1/2&step=133&q=7&beside=mha/1/0/0&view=map&over=0.4",
        "#head=gqa/1/mean&beside=gqa/1/mean/3&difference&rescale",
        "#head=mqa/0/mean&seed=2&view=lines",
    ],
)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_comparison_is_restored_from_its_address_alone(
    browser: Any, made: dict, address: str, width: int
) -> None:
    with Visit(browser, where(made, "good"), address, viewport={"width": width, "height": 900}) as visit:
        page = visit.page
        page.locator("#head-view h4").wait_for()
        assert page.evaluate("location.hash") == address
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator("#head-view .panel:visible").count() == 1 + (
            "&beside" in address and "mean" not in address
        )
        assert page.locator("#head-view .scale.signed").count() == ("difference" in address)
        assert page.locator("#head-view .box:visible").count() == (
            0 if "lines" in address else page.locator("#head-view .panel:visible").count()
        )
        assert visit.trouble == []


def test_a_difference_across_runs_begins_with_means_and_says_so(browser: Any, made: dict) -> None:
    with Visit(browser, where(made, "good"), "#head=gqa/1/2") as visit:
        page = visit.page
        page.locator("#head-view select[name=mode]").select_option("difference")
        playwright.expect(page.locator("#head-view .caution")).to_contain_text("Means over a layer's heads")
        assert page.evaluate("location.hash") == "#head=gqa/1/mean&beside=mha/1/mean/0&difference"
        page.locator("#head-view select[name=head]").select_option("2")
        page.locator("#head-view select[name=head2]").select_option("3")
        playwright.expect(page.locator("#head-view .caution")).to_contain_text("paired by hand")


def test_a_difference_is_what_the_two_maps_differ_by(browser: Any, made: dict) -> None:
    from attnlab.report.tables.maps import decode

    weights = [
        (decode(entry)[0][1].astype(float) / 255) ** 2
        for entry in made["good"][0]["heads"]["maps"]
        if entry["arm"] in ("gqa", "mha")
    ]
    mha, gqa = (of_layer.mean(0)[6, 3] for of_layer in weights)
    with Visit(browser, where(made, "good"), "#head=gqa/1/mean&beside=mha/1/mean/0&difference") as visit:
        canvas = visit.page.locator("#head-view canvas.map").first
        canvas.wait_for()
        cell, gap = (float(canvas.get_attribute(f"data-{key}")) for key in ("cell", "gap"))
        canvas.hover(position={"x": 3.5 * cell, "y": gap + 6.5 * cell})
        said = visit.page.locator(".readout").inner_text().rpartition(" ")[2]
        assert float(said.replace("−", "-")) == pytest.approx(gqa - mha, abs=6e-4)


def test_the_text_and_the_slider_are_driven_by_keys(browser: Any, made: dict) -> None:
    with Visit(browser, where(made, "good")) as visit:
        page = visit.page
        page.locator("#head-view .text span").nth(0).focus()
        page.keyboard.press("Enter")
        playwright.expect(page).to_have_url(re.compile("#head=mha/0/0&q=0$"))
        page.keyboard.press("ArrowRight")
        playwright.expect(page).to_have_url(re.compile("&q=1$"))
        assert page.locator('#head-view .text span[aria-pressed="true"]').count() == 1
        page.locator("#head-view input[name=step]").focus()
        page.keyboard.press("Home")
        playwright.expect(page).to_have_url(re.compile("&step=133&q=1$"))
        assert page.locator("#head-view .steps").inner_text().endswith("133 of 400 steps")


def test_the_text_stands_before_the_map_and_its_labels_are_on_both_axes(browser: Any, made: dict) -> None:
    for width in (390, 1280, 1920):
        with Visit(
            browser, where(made, "good"), "#head=gqa/1/2", viewport={"width": width, "height": 900}
        ) as visit:
            page = visit.page
            page.locator("#head-view canvas.map").first.wait_for()
            top = [
                page.locator(f"#head-view {part}").first.bounding_box()["y"]
                for part in (".text", "canvas.map")
            ]
            assert top == sorted(top)
            assert float(page.locator("canvas.map").first.get_attribute("data-cell")) >= 8


def test_a_head_drawn_by_lot_opens_too(browser: Any, made: dict) -> None:
    with Visit(browser, where(made, "good")) as visit:
        holder = visit.page.locator(".picks .picked").nth(1).locator(".head").first
        arm, seed, layer, head = (
            holder.get_attribute(f"data-{key}") for key in ("arm", "seed", "layer", "head")
        )
        holder.locator("button").click()
        visit.page.locator("#head-view h4").wait_for()
        said = visit.page.locator("#head-view h4").inner_text()
        assert said.startswith(f"{arm}, seed {seed}, layer {layer}, head {head} ")


def test_a_table_is_sorted_by_its_header(browser: Any, made: dict) -> None:
    with Visit(browser, where(made, "good")) as visit:
        table = visit.page.locator("#effects table").first
        table.locator("th button", has_text="mean").click()
        values = [float(cell.get_attribute("value")) for cell in table.locator("td:nth-child(4) data").all()]
        assert values == sorted(values)
        assert table.locator('th[aria-sort="ascending"]').count() == 1


def test_it_prints_with_all_folds_open(browser: Any, made: dict) -> None:
    with Visit(browser, where(made, "good")) as visit:
        page = visit.page
        page.evaluate(
            "const closed = () => document.querySelectorAll('details:not([open])').length;"
            "addEventListener('beforeprint', () => { window.opened = closed(); })"
        )
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
def test_no_serious_barrier_is_found(browser: Any, made: dict, name: str, scheme: str, width: int) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install -e '.[browser]'"
    )
    look = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with Visit(browser, where(made, name), "#head=gqa/0/1&q=3", **look) as visit:
        visit.page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        many = {
            "include": [["html"]],
            "exclude": [["figure svg"]],
        }  # slow; their text has the colours of the page
        found = axe.Axe().run(visit.page, context=many).response["violations"]
        serious = [
            (one["id"], one["nodes"][0]["html"][:160], one["nodes"][0]["failureSummary"][:300])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_hostile_tokens_messages_and_config_values_stay_text(browser: Any, made: dict) -> None:
    with Visit(browser, where(made, "broken"), "#head=mha/0/0&q=0") as visit:
        page = visit.page
        page.locator("#head-view .text span").first.wait_for()
        assert visit.trouble == []
        assert page.locator('img[src="x"]').count() == 0
        assert page.locator("#head-view .text span").first.inner_text() == EVIL
        for section in ("verdict", "failures", "config"):
            assert EVIL in page.locator(f"#{section}").text_content(), section


def test_a_hostile_address_opens_nothing(browser: Any, made: dict) -> None:
    for address in (
        "#head=%3Cimg src=x onerror=alert(1)%3E/0/0",
        "#head=gqa/99/99",
        "#head=none/0/0&q=99999",
    ):
        with Visit(browser, where(made, "good"), address) as visit:
            visit.page.wait_for_timeout(100)
            assert visit.trouble == []


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_ledger_is_filtered_by_keyboard_and_its_address_keeps_the_filter(
    browser: Any, made: dict, width: int
) -> None:
    path = where(made, "ledger")
    with Visit(browser, path, viewport={"width": width, "height": 900}) as visit:
        page = visit.page
        rows, said = page.locator("tr[data-axis]:visible"), page.locator("#filters output")
        total = rows.count()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert said.inner_text().startswith(f"{total} of {total} claims: ")
        page.locator("select[name=verdict]").focus()
        page.keyboard.type("SUPPORTED")
        left = rows.count()
        assert 0 < left < total
        assert said.inner_text() == f"{left} of {total} claims: {left} SUPPORTED"
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
        assert visit.page.locator("tr[data-axis]:visible").count() == left
        assert visit.trouble == []
    with Visit(browser, path, java_script_enabled=False) as visit:
        assert visit.page.locator("tr[data-axis]:visible").count() == total
        assert not visit.page.locator("#filters").is_visible()
