"""Saved charts in a browser: they stand alone, in the light scheme, whatever the scheme of the page."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from visits import BROWSER_MARKS, Visit, find_page
from worlds import SyntheticReports

from attnlab.report.charts.svg import BAND, LITERAL_COLORS

pytestmark = BROWSER_MARKS


def save_chart(page: Any, figure: Any, format: str) -> Any:
    figure.get_by_role("button", name=re.compile(f"^Save .* as {format}$")).focus()
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    return download.value


def count_band_pixels(picture: bytes) -> int:
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)
    band = [int(LITERAL_COLORS[BAND][i : i + 2], 16) for i in (1, 3, 5)]
    return int((abs(pixels - band) <= 2).all(-1).sum())


@pytest.mark.parametrize(("scheme", "width"), [("dark", 390), ("light", 1280)])
def test_chart_is_saved_in_the_light_scheme(
    browser: Any, synthetic_reports: SyntheticReports, tmp_path: Path, scheme: str, width: int
) -> None:
    page_file = find_page(synthetic_reports, "good")
    settings: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    with Visit(browser, page_file, **settings) as visit:
        figure = visit.page.locator("#verdict figure").first
        saved = save_chart(visit.page, figure, "SVG")
        assert saved.suggested_filename == "gqa_vs_mha-verdict.svg"
        file = tmp_path / "chart.svg"
        saved.save_as(file)
        picture = save_chart(visit.page, figure, "PNG")
        assert picture.suggested_filename == "gqa_vs_mha-verdict.png"
        png = Path(picture.path()).read_bytes()
        names = visit.page.locator(".save button").evaluate_all("(all) => all.map((one) => one.ariaLabel)")
        assert len(names) == len(set(names))
        figures = visit.page.locator("figure:has(svg[data-figure])").count()
        assert len(names) == 2 * figures + 1, "the attention explorer has one, too"
        assert [url for url in visit.requests if not url.startswith(("data:image", "blob:"))] == [
            page_file.as_uri()
        ]
        assert visit.trouble == []
    source = file.read_text("utf-8")
    assert "var(" not in source
    assert "currentColor" not in source
    with Visit(browser, file, color_scheme="dark", viewport={"width": 640, "height": 200}) as visit:
        alone = visit.page.screenshot()
    assert Image.open(io.BytesIO(alone)).convert("RGB").getpixel((1, 1)) == (255, 255, 255)
    assert count_band_pixels(alone) > 1000
    size = [float(n) for n in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', source)[0]]
    assert Image.open(io.BytesIO(png)).size == tuple(int(2 * side) for side in size)
    assert count_band_pixels(png) > 4000


def test_map_is_saved_as_it_is_drawn(browser: Any, synthetic_reports: SyntheticReports) -> None:
    with Visit(browser, find_page(synthetic_reports, "good"), "#head=gqa/1/2&q=3") as visit:
        view = visit.page.locator("#head-view")
        view.locator("h4").wait_for()
        saved = save_chart(visit.page, view, "PNG")
        assert saved.suggested_filename == "gqa_vs_mha-attention.png"
        picture = Image.open(saved.path())
        parts = view.locator(".panels canvas:visible").all()
        assert picture.width == sum(int(part.get_attribute("width")) for part in parts)
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 50


def test_controls_are_absent_from_print_and_without_scripts(
    browser: Any, synthetic_reports: SyntheticReports
) -> None:
    with Visit(browser, find_page(synthetic_reports, "good")) as visit:
        assert visit.page.locator("#effects .save").first.is_visible()
        visit.page.emulate_media(media="print")
        visit.page.evaluate("document.documentElement.classList.add('whole')")
        assert visit.page.locator("#effects svg").first.is_visible()
        assert not visit.page.locator(".save").filter(visible=True).count()
    with Visit(browser, find_page(synthetic_reports, "good"), java_script_enabled=False) as visit:
        assert visit.page.locator(".save").count() == 0
