"""The page of a sweep without an experiment in a browser: its grid fits the screen and is accessible."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from rendering import make_report
from synthetic import World, write_runs
from visits import BROWSER_MARKS, Visit, find_barriers

from attnlab.report.pages.report_files import write_report
from attnlab.store.experiment_schema import SweptGrid

pytestmark = BROWSER_MARKS
HEADS = ("mha", "gqa", "grouped_latent_heads", "mqa")
POSITIONS = ("rope", "alibi", "relative_bias", "none")
RATES = ("0.001", "0.002")


@pytest.fixture(scope="module")
def grid_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = {
        f"h{i}p{j}r{k}": (head, position, rate)
        for (i, head), (j, position), (k, rate) in itertools.product(
            *map(enumerate, (HEADS, POSITIONS, RATES))
        )
    }
    grid = SweptGrid(
        axes={"heads": HEADS, "position": POSITIONS, "optim.lr": RATES},
        cells=cells,
        rejected={"h3p3r1": "position=none needs a longer explanation than fits into a cell"},
    )
    arms = [arm for arm in cells if arm not in grid.rejected]
    effects = {arm: 0.01 * (7 * i % 20) for i, arm in enumerate(arms)}
    world = World(effects=effects, seeds=[0, 1], status={(arms[3], 1): "diverged"})
    runs = write_runs(tmp_path_factory.mktemp("runs"), world)
    settings = {"baseline": arms[0], "claims": [], "grid": grid, "not_preregistered": True}
    report = make_report(runs, world, is_timed=True, **settings)
    return write_report(tmp_path_factory.mktemp("reports") / "grid", report, runs)


@pytest.mark.parametrize("width", [390, 1280])
def test_grid_is_readable_and_the_page_never_scrolls_sideways(browser: Any, grid_page: Path, width: int):
    with Visit(browser, grid_page, viewport={"width": width, "height": 900}) as visit:
        page = visit.page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#grid table.sortable tbody tr").count() == 32
        assert page.locator("#grid").bounding_box()["y"] < page.locator("#verdict").bounding_box()["y"]
        assert "rejected: position=none" in page.locator("#grid table.sortable").inner_text()
        assert not visit.trouble


def test_grid_is_accessible(browser: Any, grid_page: Path) -> None:
    with Visit(browser, grid_page, color_scheme="dark") as visit:
        assert find_barriers(visit.page) == []
