"""The attention explorer in a real browser: its address, keys and content."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rendering import make_report
from synthetic import World, select_page_maps, write_runs
from visits import BROWSER_MARKS, Visit, find_page, playwright

from attnlab.report.frames import load
from attnlab.report.pages.explorer import write_explorer
from attnlab.report.pages.report_files import write_report

pytestmark = BROWSER_MARKS


def hover_cell(page: Any, q: int, k: int) -> Any:
    """Point at a cell of the first map and return the tooltip."""
    canvas = page.locator("#head-view canvas.map").first
    canvas.wait_for()
    cell, gap = (float(canvas.get_attribute(f"data-{key}")) for key in ("cell", "gap"))
    canvas.hover(position={"x": (k + 0.5) * cell, "y": gap + (q + 0.5) * cell})
    return page.locator("#head-view .tip")


def test_address_restores_the_view_of_a_head(browser: Any, synthetic_reports: Mapping) -> None:
    with Visit(browser, find_page(synthetic_reports, "good"), "#head=gqa/1/2&q=7&rescale&nofirst") as visit:
        page = visit.page
        title = page.locator("#head-view h4")
        title.wait_for()
        assert title.inner_text().startswith("gqa, seed 0, layer 1, head 2 (KV group 1)")
        boxes = page.locator("#head-view input[type=checkbox]").all()
        assert [box.is_checked() for box in boxes] == [True, True]
        assert page.locator("#head-view .text span.query").inner_text() == "the cat sat"[7]
        assert page.evaluate("location.hash") == "#head=gqa/1/2&q=7&rescale&nofirst"
        text, canvas = (page.locator(f"#head-view {part}").first for part in (".text", "canvas.map"))
        assert text.bounding_box()["y"] < canvas.bounding_box()["y"]
        assert float(canvas.get_attribute("data-cell")) >= 8, "room for labels"
        page.get_by_role("navigation").get_by_role("link", name="Attention maps").click()
        top = page.locator("#head-view").evaluate("(view) => view.getBoundingClientRect().top")
        assert 0 < top < 300
    with Visit(browser, find_page(synthetic_reports, "nothing")) as visit:
        assert visit.page.get_by_role("link", name="Attention maps").count() == 0


def test_head_is_opened_by_click_and_controlled_by_keys(browser: Any, synthetic_reports: Mapping) -> None:
    with Visit(browser, find_page(synthetic_reports, "good")) as visit:
        page, title = visit.page, visit.page.locator("#head-view h4")

        def at(hash_: str) -> None:
            playwright.expect(page).to_have_url(find_page(synthetic_reports, "good").as_uri() + hash_)

        page.locator('#gallery .head[data-arm="mqa"][data-layer="0"][data-head="1"] button').click()
        at("#head=mqa/0/1")
        boxes = page.locator("#head-view input[type=checkbox]").all()
        assert [box.is_checked() for box in boxes] == [False, False]
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
        status = page.locator("#head-view [role=status]")
        read = re.compile(
            r'mqa, seed 0, layer 1, head 2: q1 "h" → k(\d) "[th]" (0\.\d{3}), k(\d) "[th]" (0\.\d{3})'
        ).fullmatch(status.inner_text())
        assert {read[1], read[3]} == {"0", "1"}, "keys that query 1 sees"
        assert float(read[2]) >= float(read[4])
        assert float(read[2]) + float(read[4]) == pytest.approx(1, abs=0.01)
        page.keyboard.press("ArrowLeft")
        playwright.expect(status).to_contain_text("layer 1, head 1: q1")
        page.keyboard.press("ArrowRight")
        at("#head=mqa/1/2&q=1")
        page.locator("#head-view select[name=run]").select_option("0")
        at("#head=mha/1/2&q=1")
        page.locator("#head-view .text span").nth(4).click()
        at("#head=mha/1/2&q=4")


def test_hovering_shows_the_weight_in_attention_npz(browser: Any, synthetic_reports: Mapping) -> None:
    from attnlab.report.tables.map_archive import unpack_maps

    report, folder = synthetic_reports["good"]
    mha, gqa = (
        (unpack_maps(entry)[0].astype(float) / 255) ** 2
        for entry in select_page_maps(report, folder).maps
        if entry.arm in ("gqa", "mha")
    )
    with Visit(browser, folder / "report.html", "#head=mha/0/0") as visit:
        for q, k in ((6, 5), (3, 9)):
            hover_cell(visit.page, q, k)
            text = visit.page.locator(".readout").inner_text()
            assert text.startswith(f"(q{q} ")
            assert text.endswith(f"{mha[0, 0, q, k]:.3f}" if k <= q else "masked")
    difference = "#head=gqa/1/mean&beside=mha/1/mean/0&difference"
    with Visit(browser, folder / "report.html", difference) as visit:
        hover_cell(visit.page, 6, 3)
        value = visit.page.locator(".readout").inner_text().rpartition(" ")[2]
        expected = gqa[1, :, 6, 3].mean() - mha[1, :, 6, 3].mean()
        assert float(value.replace("−", "-")) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(
    "address",
    [
        "#head=gqa/1/2&step=133&q=7&beside=mha/1/0/0&view=map&over=0.4",
        "#head=gqa/1/mean&beside=gqa/1/mean/3&difference&rescale",
        "#head=mqa/0/mean&seed=2&view=lines",
    ],
)
@pytest.mark.parametrize("width", [390, 1280])
def test_address_restores_a_comparison(
    browser: Any, synthetic_reports: Mapping, address: str, width: int
) -> None:
    with Visit(
        browser, find_page(synthetic_reports, "good"), address, viewport={"width": width, "height": 900}
    ) as visit:
        page = visit.page
        page.locator("#head-view h4").wait_for()
        assert page.evaluate("location.hash") == address
        assert page.evaluate("document.documentElement.scrollWidth") == width
        panels = 1 + ("&beside" in address and "difference" not in address)
        assert page.locator("#head-view .panel:visible").count() == panels
        assert page.locator("#head-view .scale.signed").count() == ("difference" in address)
        assert page.locator("#head-view .box:visible").count() == (0 if "lines" in address else panels)
        assert visit.trouble == []


def test_difference_across_runs_starts_with_means(browser: Any, synthetic_reports: Mapping) -> None:
    with Visit(browser, find_page(synthetic_reports, "good"), "#head=gqa/1/2") as visit:
        page = visit.page
        page.locator("#head-view select[name=mode]").select_option("difference")
        playwright.expect(page.locator("#head-view .caution")).to_contain_text("Layer means are compared")
        assert page.evaluate("location.hash") == "#head=gqa/1/mean&beside=mha/1/mean/0&difference"
        page.locator("#head-view select[name=head]").select_option("2")
        page.locator("#head-view select[name=head2]").select_option("3")
        playwright.expect(page.locator("#head-view .caution")).to_contain_text("You paired these two heads")


def test_text_and_slider_are_controlled_by_keys(browser: Any, synthetic_reports: Mapping) -> None:
    with Visit(browser, find_page(synthetic_reports, "good")) as visit:
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


def test_hostile_address_opens_nothing(browser: Any, synthetic_reports: Mapping) -> None:
    for address in (
        "#head=%3Cimg src=x onerror=alert(1)%3E/0/0",
        "#head=gqa/99/99",
        "#head=none/0/0&q=99999",
    ):
        with Visit(browser, find_page(synthetic_reports, "good"), address) as visit:
            visit.page.wait_for_timeout(100)
            assert visit.trouble == []


def test_rows_without_the_first_token_sum_to_one(browser: Any, tmp_path: Path) -> None:
    """Also for weights that need not sum to one, as with sinks or a sigmoid."""
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1])
    half = [
        replace(run, maps={**run.maps, "maps": run.maps["maps"] // 2})
        for run in write_runs(tmp_path / "runs", world)
    ]
    folder = write_report(tmp_path / "report", make_report(half, world), half)
    with Visit(browser, folder, "#head=mha/0/2&nofirst") as visit:
        weights = []
        for key in range(6):
            hover_cell(visit.page, 5, key)
            weights.append(float(visit.page.locator(".readout").inner_text().split()[-1]))
        assert weights[0] == 0
        assert sum(weights) == pytest.approx(1, abs=0.01)


def test_notebook_page_is_apart_from_its_surroundings(
    browser: Any, synthetic_reports: Mapping, tmp_path: Path
) -> None:
    page = load(synthetic_reports["good"][1]).show_maps("gqa")
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f'<meta charset="utf-8"><h4 id="head-title">notebook</h4>{page._repr_html_()}')
    with Visit(browser, notebook) as visit:
        frame = visit.page.frame_locator("iframe")
        frame.locator('#gallery .head[data-layer="1"][data-head="1"] button').click()
        title = frame.locator("#head-title")
        playwright.expect(title).to_have_text(re.compile(r"^gqa, seed 0, layer 1, head 1"))
        assert visit.page.locator("#head-title").inner_text() == "notebook"
        assert visit.page.url == notebook.as_uri()
        assert visit.trouble == []


def test_runs_are_grouped_by_arm_with_their_seeds_inside(browser: Any, synthetic_reports: Mapping) -> None:
    with Visit(browser, find_page(synthetic_reports, "good")) as visit:
        groups = visit.page.locator("select[name=run] optgroup")
        assert groups.evaluate_all("(all) => all.map((one) => one.label)") == ["mha", "gqa", "mqa"]
        for group in groups.all():
            options = group.locator("option").all_inner_texts()
            arm = group.get_attribute("label")
            assert all(option.startswith(f"{arm}, seed ") for option in options)
            seeds = [int(re.findall(r"seed (\d+)", option)[0]) for option in options]
            assert seeds == sorted(seeds)
            assert options[0] == f"{arm}, seed 0"
            assert f"{arm}, seed 1, layer means" in options
            assert len(options) == len(set(options))


@pytest.mark.parametrize("width", [390, 1280])
def test_tooltip_stays_at_the_pointer_and_on_the_screen(browser: Any, tmp_path: Path, width: int) -> None:
    world = World({"mha": 0.0, "gqa": 0.0}, seeds=[0, 1], tokens=[f"token_{i:02}" for i in range(40)])
    runs = write_runs(tmp_path / "runs", world)
    report = make_report(runs, world)
    page_file = write_report(tmp_path / "report", report, runs)
    with Visit(
        browser, page_file, "#head=mha/0/0&view=map", viewport={"width": width, "height": 500}
    ) as visit:
        page = visit.page
        page.locator("#head-view h4").wait_for()
        for q, k in ((30, 1), (39, 39)):  # the second one by scrolling the map in its box, to its corner
            tip = hover_cell(page, q, k)
            assert tip.inner_text() == page.locator(".readout").inner_text()
            assert tip.inner_text().startswith(f"(q{q} ")
            at = page.evaluate(
                """([q, k]) => {
              const map = document.querySelector("#head-view canvas.map");
              const { left, top } = map.getBoundingClientRect(), { cell, gap } = map.dataset;
              return [left + (k + 0.5) * cell, top + +gap + (q + 0.5) * cell];
            }""",
                [q, k],
            )
            box = tip.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 500
            assert box["x"] - 16 <= at[0] <= box["x"] + box["width"] + 16
            assert min(abs(box["y"] - at[1]), abs(box["y"] + box["height"] - at[1])) < 24
        page.mouse.move(1, 1)
        assert not tip.is_visible()


def test_page_of_one_model_compares_nothing(browser: Any, tmp_path: Path) -> None:
    run = write_runs(tmp_path / "runs", World({"mha": 0.0}, seeds=[0]))[0]
    page_file = write_explorer(
        tmp_path / "page", "model", 0, "the cat sat", run.maps, run.result.head_scores, run.result.kernels
    )
    with Visit(browser, page_file, "#head=model/0/1&beside=model/0/2/0") as visit:
        page = visit.page
        page.locator("#head-view h4").wait_for()
        assert page.locator("h1").inner_text() == "Attention of model on “the cat sat”"
        assert page.title() == "Attention of model on “the cat sat” · attnlab"
        assert page.locator("select[name=run]").is_visible()
        assert not page.locator("select[name=mode]").is_visible()
        assert page.locator("#head-view .panel:visible").count() == 1
        assert visit.trouble == []
