"""One report of each kind, built once: tests read them and never change them."""

from collections.abc import Iterator
from typing import Any

import pytest
from worlds import Made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Only where there is one (`visits`)."""
    from visits import CHROMIUM, playwright

    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))
