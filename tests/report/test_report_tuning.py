"""How the learning rates came about: every rate that was tried, where it was dropped, and what it cost."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from rates import tuned
from synthetic import World, experiment, provenance, write_runs

from attnlab.report.build import build
from attnlab.report.pages.html import html
from attnlab.report.pages.markdown import markdown
from attnlab.report.schema import Report, TuningFound

ARMS = ("mha", "gqa")


def bowl(rate: float, seed: int) -> float:
    return math.inf if rate > 0.01 and seed == 101 else abs(math.log10(rate / 0.01)) + seed / 1000


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-3)


@pytest.fixture
def built(tmp_path: Path) -> Any:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2])
    runs = write_runs(tmp_path, world)

    def call(tuning: TuningFound) -> Report:
        report = build(experiment(world, tuning=tuning), runs, None, provenance())
        assert Report.model_validate(report.plain()) == report
        return report

    return call


def test_every_rate_stands_on_the_page_with_its_seeds_its_rung_and_the_cost(built: Any) -> None:
    report = built(tuned(ARMS, bowl))
    page = html(report)
    assert [row.plain() for row in report.budget.tuning.arms[0].rows] == [
        {"lr": 0.001, "values": [1.1, None, None], "median": None, "picked": False,
         "fate": "dropped in the first rung"},
        {"lr": 0.003, "values": [near(0.6229), near(0.6239), near(0.6249)],
         "median": near(0.6239), "picked": False, "fate": "second rung"},
        {"lr": 0.01, "values": [0.1, 0.101, 0.102], "median": 0.101, "picked": True, "fate": "picked"},
        {"lr": 0.03333, "values": [near(0.6229), "diverged", near(0.6249)],
         "median": near(0.6249), "picked": False, "fate": "second rung, beyond the grid"},
    ]  # fmt: skip
    table = re.search(
        r'<div class="scroll" tabindex="0"><table><caption>Every learning rate.*?</div>', page, re.S
    )
    assert table, "what is wider than the screen is scrolled by itself"
    for words in ("diverged", "dropped in the first rung", "second rung, beyond the grid", "seed 101"):
        assert words in table[0]
    assert re.search(r"mha <span.*?>100</data> tokens.*?>0.56</data>× its comparison", table[0])
    told = report.budget.lr_tuning
    assert told.count(". ") == 1, "two sentences"
    assert "3 rates with seed 100 (the first rung)" in told
    assert "neighbours with 101, 102 too (the second), each time for 33 % of its steps" in told
    assert "the best median val/loss" in told
    assert told.endswith("3 times at most; all that took 56 % of the comparison's tokens")
    lines = [line for line in markdown(report, {}).splitlines() if line.startswith("| gqa | 0.0")]
    assert lines[2] == "| gqa | 0.01 | 0.100 | 0.101 | 0.102 | 0.101 | **picked** |"
    assert lines[0] == "| gqa | 0.001 | 1.100 | – | – | – | dropped in the first rung |"


def test_a_steady_pick_is_told_by_its_rule(tmp_path: Path) -> None:
    def found(rate: float, seed: int) -> float:
        return {0.001: 0.6, 0.003: 0.505, 0.01: 0.5}.get(rate, 0.7)

    picks = {}
    for steady in (None, 0.01):
        world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1])
        asked = experiment(world, tuning=tuned(ARMS, found, steady=steady))
        told = build(asked, write_runs(tmp_path / str(steady), world), None, provenance()).budget
        picks[steady] = [row.lr for row in told.tuning.arms[0].rows if row.picked]
        assert ("whose mean val/loss is at most 0.01 worse" in told.lr_tuning) == (steady is not None)
    assert picks == {None: [0.01], 0.01: [0.003]}


def test_the_cost_is_a_share_of_the_seeds_that_the_looks_have_come_to(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2])
    asked = experiment(world, tuning=tuned(ARMS, bowl), wanted={"gqa": 2})
    arms = build(asked, write_runs(tmp_path, world), None, provenance()).budget.tuning.arms
    shares = {arm.arm: arm.of_comparison for arm in arms}
    assert shares == {"mha": pytest.approx(100 / 180), "gqa": pytest.approx(100 / 120)}


def test_a_reader_is_told_of_a_pick_at_an_end_of_no_pick_and_of_other_settings(built: Any) -> None:
    def warned(**changes: Any) -> str:
        return " ".join(built(tuned(ARMS, **changes)).warnings)

    end = "gqa: the learning rate picked, 0.01, is at the end of those tried"
    assert end in warned(found=bowl, widen=0)
    assert end not in warned(found=bowl)
    assert "has no run" not in warned(found=bowl)
    lost = warned(found=lambda rate, seed: None if seed == 101 else rate)
    assert "gqa: its learning rate is not known: no result at 3.703e-05 with seed 101" in lost
    assert "so it has no run" in lost
    assert "gqa: its learning rate was tuned for other settings" in warned(found=bowl, settings="config-b")


@pytest.mark.parametrize(("off", "told"), [(0.0, False), (0.5, False), (0.7, True), (math.inf, True)])
def test_a_reader_is_told_of_a_pick_at_which_one_tuning_seed_went_wrong(
    built: Any, off: float, told: bool
) -> None:
    """The median of the other rate is 0.52 worse, its worst seed too."""

    def found(rate: float, seed: int) -> float:
        return bowl(rate, seed) + (off if rate == 0.01 and seed == 102 else 0.0)

    warned = " ".join(built(tuned(ARMS, found)).warnings)
    words = "gqa: by the worst of its tuning seeds 0.003 would have been picked, not 0.01"
    assert (words in warned) == told
