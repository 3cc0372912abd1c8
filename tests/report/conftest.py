"""Reports of each kind, built once; tests read them and never change them."""

import pytest
from worlds import SyntheticReports


@pytest.fixture(scope="session")
def synthetic_reports(tmp_path_factory: pytest.TempPathFactory) -> SyntheticReports:
    return SyntheticReports(tmp_path_factory.mktemp("synthetic_reports"))
