"""docs/calibration_ladders.md has the computed error rates of scaling verdicts."""

from pathlib import Path

import calibration_budgets
import calibration_ladders as simulate
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "calibration_ladders.md"


def test_true_verdicts_of_each_truth():
    allowed = {
        truth: simulate.list_true_verdicts(values) - {"INCONCLUSIVE"}
        for truth, values in simulate.TRUTHS.items()
    }
    assert allowed["no effect"] == allowed["rises and falls back"] == {"HOLDS"}
    assert allowed["grows by the margin"] == allowed["comes late, to the margin"] == {"GROWS"}
    assert allowed["from the margin to 0"] == {"SHRINKS"}
    assert allowed["through 0, by the margin"] == allowed["flips and saturates"] == {"FLIPS"}
    assert allowed["flips, to three times as much"] == {"FLIPS", "GROWS"}


def test_page_has_the_computed_figures():
    truth = "from the margin to 0"
    cells = [
        f"{100 * simulate.measure_error_rate('normal', truth, seeds, 1.65):.1f}" for seeds in simulate.SEEDS
    ]
    assert f"| {truth} | {' | '.join(cells)} |" in PAGE.read_text("utf-8")


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize(  # the others are of other noise, or of another claim
    "name", ["normal", "skewed", "stopped", "stopped_above_0", "powers"]
)
def test_each_table_of_the_page_is_reproduced(name):
    table = simulate.TABLES[name]()
    assert table in PAGE.read_text("utf-8")
    # no rate is too high but where the page says that it is
    assert ("**" in table) is (name in ("skewed", "stopped_above_0"))


@pytest.mark.parametrize("module", [simulate, calibration_budgets], ids=["ladders", "budgets"])
def test_page_matches_its_template(module):
    template = Path(module.__file__).with_suffix(".md")
    page = PAGE.with_name(template.name).read_text("utf-8")
    text = template.read_text("utf-8").format(
        ladders=f"{module.LADDERS:,}", **dict.fromkeys(module.TABLES, "|")
    )
    parts = text.split("|")
    assert len(parts) == len(module.TABLES) + 1
    assert all(part in page for part in parts)
