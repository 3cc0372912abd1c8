"""Reports of each kind, built once; tests read them and never change them."""

from collections.abc import Iterator
from typing import Any

import pytest
from worlds import SyntheticReports


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Launch Chromium, if it is installed (`visits`)."""
    from visits import CHROMIUM, playwright

    with playwright.sync_playwright() as session:
        chromium = session.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def synthetic_reports(tmp_path_factory: pytest.TempPathFactory) -> SyntheticReports:
    return SyntheticReports(tmp_path_factory.mktemp("synthetic_reports"))
