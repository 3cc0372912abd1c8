"""docs/calibration_budgets.md has the computed error rates of budget verdicts."""

from pathlib import Path

import calibration_budgets as simulate
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "calibration_budgets.md"


def test_true_verdicts_of_each_truth():
    allowed = {
        truth: simulate.list_true_verdicts(values) - {"INCONCLUSIVE"}
        for truth, values in simulate.TRUTHS.items()
    }
    assert allowed["no effect"] == allowed["the margin everywhere"] == allowed["through 0"] == {*()}
    assert allowed["shrinks to the margin"] == allowed["grows to the margin"] == {*()}
    assert allowed["shrinks to 0"] == {"SAME PLATEAU"}
    assert allowed["shrinks to twice the margin"] == allowed["twice the margin everywhere"] == {"PERSISTS"}
    assert allowed["grows to three margins"] == {"PERSISTS", "GROWS"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", simulate.TABLES)
def test_each_table_of_the_page_is_reproduced(name):
    table = simulate.TABLES[name]()
    assert table in PAGE.read_text("utf-8")
    # no rate is too high but where the page says that it is
    assert ("**" in table) is (name in ("skewed", "learning"))
