"""Open a page in a real browser and record its activity."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ledger
import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install -e '.[browser]'"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSER_MARKS = [
    pytest.mark.rare,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Visit:
    """An open page with its requests, console messages and dialogs."""

    def __init__(self, browser: Any, path: Path, address: str = "", **settings: Any):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.trouble: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on(
            "console", lambda message: self.trouble.append(message.text) if message.type != "log" else None
        )
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.trouble.append("a dialog"), dialog.dismiss()))
        self.page.goto(path.as_uri() + address)

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()


def find_barriers(page: Any) -> list[tuple[str, str, str]]:
    """Find the serious and critical violations that axe-core reports, with all folds of the page open."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install -e '.[browser]'"
    )
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    context = {
        "include": [["html"]],
        "exclude": [["figure svg"]],
    }  # slow; its text has the colors of the page
    return [
        (violation["id"], violation["nodes"][0]["html"][:160], violation["nodes"][0]["failureSummary"][:300])
        for violation in axe.Axe().run(page, context=context).response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


def follow_skip_link(page: Any, target: str) -> None:
    """Press Tab and Enter on a fresh page: its first element leads to `target`, and is visible meanwhile."""
    page.keyboard.press("Tab")
    link = page.locator("a:focus")
    assert link.inner_text().strip() == "Skip to content"
    page.wait_for_timeout(400)  # it may fade in
    box = link.bounding_box()
    assert box["x"] >= 0
    assert box["y"] >= 0
    assert link.evaluate("link => getComputedStyle(link).opacity") == "1"
    page.keyboard.press("Enter")
    playwright.expect(page.locator(f"{target}:focus")).to_have_count(1)


def find_page(made: Mapping, name: str) -> Path:
    if name == "ledger":
        for world in made:  # a ledger of all of them, whichever test comes first
            assert made[world]
        return ledger.write_ledger(made["good"][1].parent)[1]
    if name == "index":
        return made["good"][1].parent / "index.html"
    return made[name][1] / ("inspect.html" if name == "inspect" else "report.html")
