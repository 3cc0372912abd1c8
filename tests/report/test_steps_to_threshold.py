"""Steps to a threshold: a run that did not reach it, or diverged, took more steps than the budget."""

import json
from pathlib import Path
from typing import Any

import pytest
from rendering import make_report
from synthetic import World, build_context, declare_claim, replace_result, write_runs

from attnlab.report.report_builder import compute_claim_statuses
from attnlab.report.schema import Report
from attnlab.report.section import Heading, list_tables
from attnlab.report.sections import PageContext, length_section
from attnlab.report.tables.wording import describe_claim, format_effect
from attnlab.report.verdicts.results import Run
from attnlab.store.run_schema import CensoredSteps

METRIC, BUDGET = "steps_to_90", 400
STEPS: dict[str, list[float | None]] = {
    "mha": [100, 120, 140, None, 110, 130],
    "gqa": [200, 210, 260, None, None, 250],
    "mqa": [None] * 6,
}


EARLY: list[float | None] = [100, 120, 140, 160, 110, 130]
LATE: list[float | None] = [370, 375, 380, 385, 390, 395]
NEVER: list[float | None] = [None] * 6


def make_steps_report(
    folder: Path, status: dict | None = None, steps: dict[str, list[float | None]] = STEPS, **changes: Any
) -> Report:
    world = World(dict.fromkeys(steps, 0.0), seeds=list(range(6)), status=status or {})
    return make_report(censor(write_runs(folder, world), steps), world, **changes)


def censor(runs: list[Run], steps: dict[str, list[float | None]] = STEPS) -> list[Run]:
    return [
        replace_result(run, censored={METRIC: CensoredSteps(value=steps[run.arm][run.seed], budget=BUDGET)})
        if run.is_done
        else run
        for run in runs
    ]


def test_reached_fraction_median_and_saved_steps(tmp_path: Path) -> None:
    report = make_steps_report(tmp_path)
    [table] = report.steps_to_threshold
    section = length_section.build(report, PageContext())
    assert [block.text for block in section.blocks if isinstance(block, Heading)] == ["Steps to 90% accuracy"]
    [shown] = list_tables([section]).values()
    records = {record["arm"]: record for record in shown.iterate_records()}
    assert {row.arm: (row.reached.count, row.median) for row in table.rows} == {
        arm: (record["reached"], record["median"]) for arm, record in records.items()
    } == {"mha": (5, 120), "gqa": (4, 250), "mqa": (0, None)}  # fmt: skip
    gqa = records["gqa"]
    assert (gqa["n"], gqa["planned"]) == (6, 6)
    [saved] = [row.comparison.steps_saved for row in table.rows if row.arm == "gqa"]
    assert saved.mean == pytest.approx((100 + 90 + 120 + 0 + 290 + 120) / 6)
    ends = [gqa[f"difference{end}"] for end in ("", "_low", "_high")]
    assert ends == [saved.mean, saved.low, saved.high]
    assert records["mha"]["difference"] is records["mha"]["p_sign_flip"] is None


def test_diverged_run_did_not_reach_and_crashed_run_is_left_out(tmp_path: Path) -> None:
    status = {("gqa", 0): "diverged", ("gqa", 1): "crashed"}
    row = next(
        row for row in make_steps_report(tmp_path, status).steps_to_threshold[0].rows if row.arm == "gqa"
    )
    assert (row.reached.n, row.reached.count, row.planned) == (5, 2, 6)
    assert row.comparison.steps_saved.mean == pytest.approx((300 + 120 + 0 + 290 + 120) / 5)


@pytest.mark.parametrize(
    ("mha", "gqa", "relation", "threshold", "verdict", "effect"),
    [
        (EARLY, LATE, "above", -10.0, "SUPPORTED", "+260 steps, 95% CI [+225, +280]"),
        (EARLY, LATE, "above", 270.0, "INCONCLUSIVE", "+260 steps, 95% CI [+225, +280]"),
        (EARLY, NEVER, "above", -10.0, "SUPPORTED", "+275 steps, 95% CI [+240, ∞)"),
        (EARLY, NEVER, "above", 390.0, "INCONCLUSIVE", "+275 steps, 95% CI [+240, ∞)"),
        (LATE, NEVER, "below", 50.0, "INCONCLUSIVE", "+18 steps, 95% CI [+5, ∞)"),
        (NEVER, NEVER, "within", 50.0, "INCONCLUSIVE", "0 steps"),
        (NEVER, LATE, "below", 50.0, "SUPPORTED", "−18 steps, 95% CI (−∞, −5]"),
        (LATE, NEVER, "ratio", 1.25, "INCONCLUSIVE", "1.046×, 95% CI [1.013×, ∞)"),
        (NEVER, EARLY, "ratio", 1.25, "SUPPORTED", "0.31×, 95% CI [0.00×, 0.40×]"),
    ],
)
def test_claim_on_steps_uses_only_that_a_run_exceeded_the_budget(
    tmp_path: Path, mha: list, gqa: list, relation: str, threshold: float, verdict: str, effect: str
) -> None:
    ratio = {"compare": "ratio"} if relation == "ratio" else {}
    relation = "below" if ratio else relation
    claim = declare_claim("slower", "gqa", relation, threshold, metric=METRIC, **ratio)
    [result] = make_steps_report(tmp_path, steps={"mha": mha, "gqa": gqa}, claims=[claim]).verdict.claims
    assert (result.verdict, result.basis, result.direction) == (verdict, "ranks", "lower")
    quantity = "steps to 90% accuracy ratio =" if ratio else "Δ steps to 90% accuracy ="
    assert f"gqa vs mha: median {quantity} {effect}" in describe_claim(result)


def test_steps_can_be_the_primary_metric(tmp_path: Path) -> None:
    steps = {"mha": EARLY, "gqa": LATE, "mqa": NEVER}
    report = make_steps_report(tmp_path, steps=steps, metric=METRIC, margin=50, claims=[])
    assert [row.verdict for row in report.effects] == ["WORSE"] * 2
    assert (report.effects[0].label, report.effects[0].margin) == ("steps to 90% accuracy", 50)
    assert [(row.low, row.high) for row in report.effects] == [(225, 280), (240, None)]
    assert [format_effect(row) for row in report.effects] == [
        "median +260 steps, 95% CI [+225, +280]", "median +275 steps, 95% CI [+240, ∞)",
    ]  # fmt: skip


def test_direction_of_a_claim_changes_its_conclusion(tmp_path: Path) -> None:
    claim = declare_claim("more", "gqa", "above", -1.0, metric="train/loss")
    lines = {
        direction: describe_claim(
            make_steps_report(
                tmp_path / direction, claims=[{**claim, "direction": direction}]
            ).verdict.claims[0]
        )
        for direction in ("lower", "higher")
    }
    assert "margin −1: not better by more than the threshold (SUPPORTED)" in lines["lower"]
    assert "margin −1: non-inferior (SUPPORTED)" in lines["higher"]
    with pytest.raises(ValueError, match=r"direction\n.*should be 'lower' or 'higher'"):
        make_steps_report(tmp_path / "up", claims=[{**claim, "direction": "up"}])


def test_seeds_with_both_arms_diverged_decide_no_ratio(tmp_path: Path) -> None:
    """A NaN counted as a ratio of 0 would support that one arm has less."""
    seeds = list(range(10))
    status = {(arm, seed): "diverged" for arm in ("mha", "gqa") for seed in seeds[4:]}
    claim = {"arm": "gqa", "compare": "ratio", "threshold": 0.9}
    claims = [{**claim, "says": f"it is {side} 0.9 times", "is": side} for side in ("below", "above")]
    world = World({"mha": 0.0, "gqa": -0.9}, seeds=seeds, status=status)
    report = make_report(tmp_path, world, claims=claims)
    assert all(pair.value / pair.against < 0.9 for pair in report.effects[0].pairs)
    assert [claim.verdict for claim in report.verdict.claims] == ["INCONCLUSIVE", "INCONCLUSIVE"]


def test_an_unbounded_interval_of_an_interim_analysis_is_stored(tmp_path: Path) -> None:
    world = World(seeds=list(range(6)))
    claim = declare_claim("fewer", "gqa", "below", 1.0, metric=METRIC, compare="ratio")
    context = build_context(world, claims=[claim], looks=[3, 6])
    [status] = compute_claim_statuses(context, censor(write_runs(tmp_path, world)))
    first = status.interim_analyses.completed[0]
    assert (first.low, first.high) == (None, None)  # three pairs bound no median
    json.dumps(status.to_dict(), allow_nan=False)
