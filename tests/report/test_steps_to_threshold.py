"""Steps to a threshold: a run that did not reach it, or diverged, counts with the whole budget."""

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import World, build_context, build_provenance, replace_result, write_runs

from attnlab.report.report_builder import build_report, compute_claim_statuses
from attnlab.report.schema import Report
from attnlab.report.tables.wording import describe_claim
from attnlab.store.run_schema import CensoredSteps

METRIC, BUDGET = "steps_to_90", 400
STEPS: dict[str, list[float | None]] = {
    "mha": [100, 120, 140, None, 110, 130],
    "gqa": [200, 210, 260, None, None, 250],
    "mqa": [None] * 6,
}


def make_report(folder: Path, status: dict | None = None, **changes: Any) -> Report:
    world = World(seeds=list(range(6)), status=status or {})
    runs = [
        replace_result(run, censored={METRIC: CensoredSteps(value=STEPS[run.arm][run.seed], budget=BUDGET)})
        if run.is_done
        else run
        for run in write_runs(folder, world)
    ]
    return build_report(build_context(world, **changes), runs, None, build_provenance())


def test_reached_fraction_median_and_saved_steps(tmp_path: Path) -> None:
    (table,) = make_report(tmp_path).steps_to_threshold
    rows = {row.arm: row for row in table.rows}
    assert (rows["mha"].reached.count, rows["mha"].median) == (5, 120)
    assert (rows["gqa"].reached.count, rows["gqa"].median) == (4, 250)
    assert rows["mqa"].median is None
    assert rows["gqa"].comparison.steps_saved.mean == pytest.approx((100 + 90 + 120 + 0 + 290 + 120) / 6)
    assert rows["mha"].comparison is None
    assert table.label == "steps to 90% accuracy"


def test_diverged_run_did_not_reach_and_crashed_run_is_left_out(tmp_path: Path) -> None:
    status = {("gqa", 0): "diverged", ("gqa", 1): "crashed"}
    row = next(row for row in make_report(tmp_path, status).steps_to_threshold[0].rows if row.arm == "gqa")
    assert (row.reached.n, row.reached.count, row.planned) == (5, 2, 6)
    assert row.comparison.steps_saved.mean == pytest.approx((300 + 120 + 0 + 290 + 120) / 5)


@pytest.mark.parametrize(
    ("threshold", "arm", "verdict"),
    [(-10.0, "mqa", "SUPPORTED"), (390.0, "mqa", "REFUTED"), (120.0, "gqa", "INCONCLUSIVE")],
)
def test_claim_on_steps_is_decided_on_clipped_differences(
    tmp_path: Path, threshold: float, arm: str, verdict: str
) -> None:
    claim = {"says": "slower", "arm": arm, "metric": METRIC, "is": "above", "threshold": threshold}
    (result,) = make_report(tmp_path, claims=[claim]).verdict.claims
    assert result.verdict == verdict
    assert result.basis == "ranks"
    assert describe_claim(result).startswith(f"{arm} vs mha: median Δ steps to 90% accuracy = +")
    assert " steps, 95% CI [" in describe_claim(result)
    assert result.direction == "lower"


def test_steps_can_be_the_primary_metric(tmp_path: Path) -> None:
    report = make_report(tmp_path, metric=METRIC, margin=50, claims=[])
    assert (report.effects[1].verdict, report.effects[1].margin) == ("WORSE by more than the margin", 50)
    assert report.effects[0].label == "steps to 90% accuracy"


def test_direction_of_a_claim_changes_its_conclusion(tmp_path: Path) -> None:
    claim = {"says": "more", "arm": "gqa", "metric": "train/loss", "is": "above", "threshold": -1.0}
    lines = {
        direction: describe_claim(
            make_report(tmp_path / direction, claims=[{**claim, "direction": direction}]).verdict.claims[0]
        )
        for direction in ("lower", "higher")
    }
    assert "margin −1: not superior by more than the threshold (SUPPORTED, exploratory)" in lines["lower"]
    assert "margin −1: non-inferior (SUPPORTED, exploratory)" in lines["higher"]
    with pytest.raises(ValueError, match=r"direction\n.*should be 'lower' or 'higher'"):
        make_report(tmp_path / "up", claims=[{**claim, "direction": "up"}])


def test_seeds_with_both_arms_diverged_decide_no_ratio(tmp_path: Path) -> None:
    """A NaN counted as a ratio of 0 would support that one arm has less."""
    seeds = list(range(10))
    status = {(arm, seed): "diverged" for arm in ("mha", "gqa") for seed in seeds[4:]}
    claim = {"arm": "gqa", "compare": "ratio", "threshold": 0.9}
    claims = [{**claim, "says": f"it is {side} 0.9 times", "is": side} for side in ("below", "above")]
    world = World({"mha": 0.0, "gqa": -0.9}, seeds=seeds, status=status)
    report = build_report(
        build_context(world, claims=claims), write_runs(tmp_path, world), None, build_provenance()
    )
    assert all(pair.value / pair.against < 0.9 for pair in report.effects[0].pairs)
    assert [claim.verdict for claim in report.verdict.claims] == ["INCONCLUSIVE", "INCONCLUSIVE"]


def test_an_unbounded_interval_of_an_interim_analysis_is_stored(tmp_path: Path) -> None:
    world = World(seeds=list(range(6)))
    runs = [
        replace_result(run, censored={METRIC: CensoredSteps(value=STEPS[run.arm][run.seed], budget=BUDGET)})
        for run in write_runs(tmp_path, world)
    ]
    claim = {
        "says": "fewer",
        "arm": "gqa",
        "metric": METRIC,
        "compare": "ratio",
        "is": "below",
        "threshold": 1.0,
    }
    (status,) = compute_claim_statuses(build_context(world, claims=[claim], looks=[3, 6]), runs)
    assert status.interim_analyses is not None
    (first, *_) = status.interim_analyses.completed
    assert (first.low, first.high) == (None, None)  # three pairs bound no median
    json.dumps(status.to_dict(), allow_nan=False)
