"""Every kind of page in a real browser: no barrier that axe-core finds, no sideways scroll, a skip link."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rendering import REFERENCES
from sampling import FULL
from visits import BROWSER_MARKS, Visit, find_barriers, find_page, follow_skip_link
from worlds import SyntheticReports

from attnlab.report.pages.explorer import write_explorer
from attnlab.report.replications.ladder_page import render_ladder
from attnlab.report.verdicts.results import read_run

pytestmark = BROWSER_MARKS
LADDER = "mla_vs_gqa@depth"
KINDS = ["good", "ladder", "inspect", "index", "ledger", "broken", "nothing"]
VIEWS = [("light", 390), ("dark", 390), ("dark", 1280), ("light", 1280)]
# One view of each kind, or all of them if ATTNLAB_TESTS=all.
CASES = [
    (kind, *view) for n, kind in enumerate(KINDS) for view in (VIEWS if FULL else [VIEWS[n % len(VIEWS)]])
]
HEAD = "#head=gqa/0/1&q=3"


@pytest.fixture(scope="session")
def find_kind(
    synthetic_reports: SyntheticReports, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`find_kind(name)`: the page of a kind, written on first use."""
    folder = tmp_path_factory.mktemp("kinds")

    @cache
    def find(kind: str) -> Path:
        if kind == "ladder":
            shutil.copytree(REFERENCES / LADDER, folder / LADDER)
            return render_ladder(folder / LADDER)
        if kind == "inspect":
            assert synthetic_reports["good"]
            run = next(
                run
                for source in sorted((synthetic_reports.folder / "runs-good").iterdir())
                if (run := read_run(source, "gqa", 0)).maps
            )
            assert run.maps
            assert run.result
            result = run.result
            return write_explorer(
                folder / "inspect", "mine", 0, "the cat sat", run.maps, result.head_scores, result.kernels
            )
        return find_page(synthetic_reports, kind)

    return find


@pytest.mark.rare(sample=len(KINDS))
@pytest.mark.parametrize("kind", KINDS)
def test_page_never_scrolls_sideways_on_a_phone_and_has_a_skip_link(
    browser: Any, find_kind: Callable[[str], Path], kind: str
) -> None:
    with Visit(browser, find_kind(kind), viewport={"width": 390, "height": 844}) as visit:
        page = visit.page
        follow_skip_link(page, "main#content")
        page.evaluate(f"location.hash = '{HEAD}'")
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.evaluate("scrollTo(9999, 0)")
        assert page.evaluate("scrollX") == 0
        assert visit.trouble == []


@pytest.mark.rare(sample=len(CASES))
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "scheme", "width"), CASES)
def test_axe_finds_no_serious_barrier(
    browser: Any, find_kind: Callable[[str], Path], kind: str, scheme: str, width: int
) -> None:
    settings = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with Visit(browser, find_kind(kind), HEAD, **settings) as visit:
        assert find_barriers(visit.page) == []
