"""The page of error rates of ladders says what the code gives."""

from pathlib import Path

import calibration_ladders as simulate
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "calibration_ladders.md"


def test_the_words_that_a_truth_allows():
    allowed = {truth: simulate.true(values) - {"CANNOT TELL"} for truth, values in simulate.TRUTHS.items()}
    assert allowed["no effect"] == allowed["rises and falls back"] == {"HOLDS"}
    assert allowed["grows by the margin"] == allowed["comes late, to the margin"] == {"GROWS"}
    assert allowed["from the margin to 0"] == {"SHRINKS"}
    assert allowed["through 0, by the margin"] == allowed["flips and saturates"] == {"FLIPS"}
    assert allowed["flips, to three times as much"] == {"FLIPS", "GROWS"}


def test_the_page_has_the_figures_that_the_code_gives():
    truth = "from the margin to 0"
    cells = [f"{100 * simulate.wrong('normal', truth, seeds, 1.65):.1f}" for seeds in simulate.SEEDS]
    assert f"| {truth} | {' | '.join(cells)} |" in PAGE.read_text("utf-8")


@pytest.mark.rare(sample=1)
@pytest.mark.parametrize("name", ["normal", "skewed", "stopped", "powers"])  # the others are of other noise
def test_each_table_of_the_page_is_made_by_its_command(name):
    table = simulate.TABLES[name]()
    assert table in PAGE.read_text("utf-8")
    # no rate is too high but where the page says that it is
    assert ("**" in table) is (name == "skewed")


def test_the_page_says_what_its_template_says():
    words = Path(simulate.__file__).with_suffix(".md").read_text("utf-8")
    parts = words.format(ladders=f"{simulate.LADDERS:,}", **dict.fromkeys(simulate.TABLES, "|")).split("|")
    assert len(parts) == len(simulate.TABLES) + 1
    assert all(part in PAGE.read_text("utf-8") for part in parts)
