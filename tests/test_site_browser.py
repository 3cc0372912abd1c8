"""Pages of the documentation site in a real browser: no barrier, no sideways scroll, no other host."""

from pathlib import Path
from typing import Any

import pytest
from sampling import FULL, full
from visits import BROWSER_MARKS, Visit, find_barriers, follow_skip_link

pytestmark = [*BROWSER_MARKS, pytest.mark.timeout(1800)]
PAGES = ["docs/bibliography", "docs/tour", "", "reference/python", "reference/options"]
VIEWS = [("light", 390), ("dark", 1280), ("dark", 390), ("light", 1280)]
CASES = [(page, *view) for page in PAGES for view in VIEWS] if FULL else [(PAGES[0], *VIEWS[0])]


@pytest.mark.rare(sample=len(CASES))
@pytest.mark.parametrize(("page", "scheme", "width"), CASES)
def test_axe_finds_no_serious_barrier_on_the_site(
    browser: Any, site: Path, page: str, scheme: str, width: int
) -> None:
    settings = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with Visit(browser, site / page / "index.html", **settings) as visit:
        visit.page.wait_for_timeout(500)  # the theme wraps tables and marks the current page
        assert find_barriers(visit.page) == []


@pytest.mark.rare(sample=len(PAGES))
@pytest.mark.parametrize("page", PAGES)
def test_page_of_the_site_fits_a_phone_and_requests_no_other_host(
    browser: Any, site: Path, page: str
) -> None:
    _check_width_and_requests(browser, site / page / "index.html")


@full
def test_every_page_of_the_site_fits_a_phone(browser: Any, site: Path) -> None:
    for path in sorted(site.rglob("*.html")):
        if path.stat().st_size:  # the others stand for reports
            _check_width_and_requests(browser, path)


def _check_width_and_requests(browser: Any, path: Path) -> None:
    with Visit(browser, path, viewport={"width": 390, "height": 844}) as visit:
        visit.page.wait_for_timeout(500)
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert not [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))], path


def test_first_element_of_the_site_skips_to_the_content(browser: Any, site: Path) -> None:
    with Visit(browser, site / "docs/tour/index.html") as visit:
        follow_skip_link(visit.page, "#__skip")
