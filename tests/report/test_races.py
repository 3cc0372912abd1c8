"""Phase-change metrics: not reached counts with the whole budget, and so does diverging."""

from pathlib import Path
from typing import Any

import pytest
from synthetic import World, but, experiment, provenance, write_runs

from attnlab.report.build import build
from attnlab.report.schema import Report
from attnlab.report.tables.wording import describe_claim
from attnlab.store.schema import Censored

METRIC, BUDGET = "steps_to_90", 400
STEPS: dict[str, list[float | None]] = {
    "mha": [100, 120, 140, None, 110, 130],
    "gqa": [200, 210, 260, None, None, 250],
    "mqa": [None] * 6,
}


def raced(folder: Path, status: dict | None = None, **changes: Any) -> Report:
    world = World(seeds=list(range(6)), status=status or {})
    runs = [
        but(run, censored={METRIC: Censored(value=STEPS[run.arm][run.seed], budget=BUDGET)})
        if run.done
        else run
        for run in write_runs(folder, world)
    ]
    return build(experiment(world, **changes), runs, None, provenance())


def test_solved_fraction_median_and_saved_steps_are_told(tmp_path: Path) -> None:
    (table,) = raced(tmp_path).races
    rows = {row.arm: row for row in table.rows}
    assert (rows["mha"].solved.count, rows["mha"].median) == (5, 120)
    assert (rows["gqa"].solved.count, rows["gqa"].median) == (4, 250)
    assert rows["mqa"].median is None
    assert rows["gqa"].race.saved.mean == pytest.approx((100 + 90 + 120 + 0 + 290 + 120) / 6)
    assert rows["mha"].race is None
    assert table.label == "steps to 90 % accuracy"


def test_diverging_is_not_getting_there_and_crashing_says_nothing(tmp_path: Path) -> None:
    status = {("gqa", 0): "diverged", ("gqa", 1): "crashed"}
    row = next(row for row in raced(tmp_path, status).races[0].rows if row.arm == "gqa")
    assert (row.solved.n, row.solved.count, row.planned) == (5, 2, 6)
    assert row.race.saved.mean == pytest.approx((300 + 120 + 0 + 290 + 120) / 5)


@pytest.mark.parametrize(
    ("threshold", "arm", "word"),
    [(-10.0, "mqa", "SUPPORTED"), (390.0, "mqa", "REFUTED"), (120.0, "gqa", "INCONCLUSIVE")],
)
def test_a_claim_on_steps_is_decided_on_the_clipped_differences(
    tmp_path: Path, threshold: float, arm: str, word: str
) -> None:
    claim = {"says": "slower", "arm": arm, "metric": METRIC, "is": "above", "threshold": threshold}
    (found,) = raced(tmp_path, claims=[claim]).verdict.claims
    assert found.verdict == word
    assert found.basis == "ranks"
    assert describe_claim(found).startswith(f"{arm} vs mha: median Δ steps to 90 % accuracy = +")
    assert " steps, 95% CI [" in describe_claim(found)
    assert found.direction == "lower"


def test_steps_can_be_the_primary_metric(tmp_path: Path) -> None:
    report = raced(tmp_path, metric=METRIC, margin=50, claims=[])
    assert (report.effects[1].word, report.effects[1].margin) == ("WORSE by more than the margin", 50)
    assert report.effects[0].label == "steps to 90 % accuracy"


def test_a_claims_own_direction_turns_its_words(tmp_path: Path) -> None:
    claim = {"says": "more", "arm": "gqa", "metric": "train/loss", "is": "above", "threshold": -1.0}
    said = {
        direction: describe_claim(
            raced(tmp_path / direction, claims=[{**claim, "direction": direction}]).verdict.claims[0]
        )
        for direction in ("lower", "higher")
    }
    assert "margin −1: not superior by more than the threshold (SUPPORTED, exploratory)" in said["lower"]
    assert "margin −1: non-inferior (SUPPORTED, exploratory)" in said["higher"]
    with pytest.raises(ValueError, match=r"direction\n.*should be 'lower' or 'higher'"):
        raced(tmp_path / "up", claims=[{**claim, "direction": "up"}])


def test_seeds_at_which_both_arms_diverged_are_on_no_side_of_a_ratio(tmp_path: Path) -> None:
    """A NaN that counted as a ratio of 0 would support that one arm has less."""
    seeds = list(range(10))
    status = {(arm, seed): "diverged" for arm in ("mha", "gqa") for seed in seeds[4:]}
    claim = {"arm": "gqa", "compare": "ratio", "threshold": 0.9}
    claims = [{**claim, "says": f"it is {side} 0.9 times", "is": side} for side in ("below", "above")]
    world = World({"mha": 0.0, "gqa": -0.9}, seeds=seeds, status=status)
    told = build(experiment(world, claims=claims), write_runs(tmp_path, world), None, provenance())
    assert all(pair.value / pair.against < 0.9 for pair in told.effects[0].pairs)
    assert [claim.verdict for claim in told.verdict.claims] == ["INCONCLUSIVE", "INCONCLUSIVE"]
