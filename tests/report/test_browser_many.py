"""A page of twenty arms in a browser: it stays short, and an arm can be found and highlighted."""

from pathlib import Path
from typing import Any

import pytest
from rendering import make_report
from synthetic import World, declare_claim, write_runs
from visits import BROWSER_MARKS, Visit

from attnlab.report.pages.report_files import write_report

pytestmark = BROWSER_MARKS
ARMS = ["mha", *(f"arm_{i:02}" for i in range(1, 20))]


@pytest.fixture(scope="module")
def many_arms_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    effects = {arm: 0.01 * (i * 7 % 20) for i, arm in enumerate(ARMS)}
    text = list("the dog sat on the mat, and the cat sat on the dog; so it lay.\n\n")
    assert len(text) == 64, "as a probe of size S"
    world = World(effects=effects, seeds=[0, 1, 2], tokens=text, points=3, sample="the dog sat on the cat")
    claims = [declare_claim(f"{arm} is as good", arm, "within", 0.03) for arm in ARMS[1:6]]
    runs = write_runs(tmp_path_factory.mktemp("many"), world)
    report = make_report(runs, world, is_timed=True, claims=claims)
    return write_report(tmp_path_factory.mktemp("reports") / "many", report, runs)


def test_page_of_many_arms_is_short_and_never_scrolls_sideways(browser: Any, many_arms_page: Path) -> None:
    with Visit(browser, many_arms_page) as visit:
        assert visit.page.evaluate("document.documentElement.scrollHeight") <= 9200
        assert not visit.trouble
    with Visit(browser, many_arms_page, viewport={"width": 390, "height": 844}) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_selected_arm_is_highlighted_in_every_chart(browser: Any, many_arms_page: Path) -> None:
    with Visit(browser, many_arms_page) as visit:
        page = visit.page
        page.get_by_label("Find an arm").fill("arm_07")
        rows = page.locator("table.arms tbody tr")
        assert [row.is_visible() for row in rows.all()].count(True) == 1
        button = page.locator('tr[data-arm="arm_07"] th button')
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        for section in ("effects", "tradeoff", "curves", "heads"):
            assert page.locator(f"#{section} svg .dim").count() > 0, section
            highlighted = page.locator(f'#{section} svg [data-arm="arm_07"]')
            assert highlighted.count() > 0, section
            assert page.locator(f'#{section} svg [data-arm="arm_07"].dim').count() == 0
        button.click()
        assert page.locator(".dim").count() == 0
