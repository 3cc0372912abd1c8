"""A page of twenty arms in a browser: it stays short, and an arm is found and picked out in every chart."""

from pathlib import Path
from typing import Any

import pytest
from synthetic import World, experiment, provenance, timing, write_runs
from visits import MARKS, Visit

from attnlab.report.build import build
from attnlab.report.pages.files import write

pytestmark = MARKS
ARMS = ["mha", *(f"arm_{i:02}" for i in range(1, 20))]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    effects = {arm: 0.01 * (i * 7 % 20) for i, arm in enumerate(ARMS)}
    text = list("the dog sat on the mat, and the cat sat on the dog; so it lay.\n\n")
    assert len(text) == 64, "as a probe of size S"
    world = World(effects=effects, seeds=[0, 1, 2], tokens=text, points=3, sample="the dog sat on the cat")
    claims = [
        {"says": f"{arm} is as good", "arm": arm, "is": "within", "threshold": 0.03} for arm in ARMS[1:6]
    ]
    runs = write_runs(tmp_path_factory.mktemp("many"), world)
    report = build(experiment(world, claims=claims), runs, timing(world), provenance())
    return write(tmp_path_factory.mktemp("reports") / "many", report, runs)


def test_it_is_no_longer_than_ten_screens_and_never_scrolls_sideways(browser: Any, many: Path) -> None:
    with Visit(browser, many) as visit:
        assert visit.page.evaluate("document.documentElement.scrollHeight") <= 9000
        assert not visit.trouble
    with Visit(browser, many, viewport={"width": 390, "height": 844}) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_an_arm_is_found_and_picked_out_in_every_chart(browser: Any, many: Path) -> None:
    with Visit(browser, many) as visit:
        page = visit.page
        page.get_by_label("Find an arm").fill("arm_07")
        rows = page.locator("table.arms tbody tr")
        assert [row.is_visible() for row in rows.all()].count(True) == 1
        button = page.locator('tr[data-arm="arm_07"] th button')
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        for section in ("effects", "tradeoff", "curves", "heads"):
            assert page.locator(f"#{section} svg .dim").count() > 0, section
            kept = page.locator(f'#{section} svg [data-arm="arm_07"]')
            assert kept.count() > 0, section
            assert page.locator(f'#{section} svg [data-arm="arm_07"].dim').count() == 0
        button.click()
        assert page.locator(".dim").count() == 0
