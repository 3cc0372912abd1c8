"""Metric definitions come from the measuring code; the report hard-codes no metric names."""

import ast
from pathlib import Path
from typing import Any

import pytest
from rendering import make_report, render_texts
from synthetic import (
    World,
    declare_claim,
    replace_result,
    write_runs,
)

import attnlab.report
from attnlab.measure import accuracy, resources
from attnlab.measure.step_timing import TIME_METRICS
from attnlab.report.schema import OLD_PROPORTIONS, Report
from attnlab.report.tables.tradeoff import PANEL_COSTS
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.budget_check import TOLERANCES, get_tolerance
from attnlab.store.run_schema import Budget, Metric, RunEstimate
from attnlab.training.final_metrics import LOSS_METRICS

METRIC = "ours/wingspan"
CLAIM = declare_claim("gqa has shorter wings", "gqa", "below", -0.5, metric=METRIC)


def define(kind: str, label: str = "span of the wings") -> Metric:
    """A user's own metric."""
    return Metric(METRIC, label, "cubits", "higher", kind)


def make_report_of_metric(
    folder: Path, mha: Metric | None, gqa: Metric | None, by_seed: float = 0.0, **changes: Any
) -> Report:
    """Build a report of a user's metric with these definitions in the runs of each arm."""
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    runs = []
    for run in write_runs(folder, world):
        value, metric = (7.0, mha) if run.arm == "mha" else (5.0, gqa)
        definitions = run.result.metric_definitions | ({METRIC: metric} if metric else {})
        metrics = run.result.metrics | {METRIC: value + by_seed * run.seed}
        runs.append(replace_result(run, metrics=metrics, metric_definitions=definitions))
    return make_report(runs, world, claims=[CLAIM], **changes)


def test_definition_of_a_user_measurement_reaches_the_page(tmp_path: Path) -> None:
    report = make_report_of_metric(tmp_path, define("count"), define("count"), metrics=[METRIC])
    (claim,) = report.verdict.claims
    assert (claim.label, claim.unit, claim.basis) == ("span of the wings", "cubits", "exact")
    assert claim.direction == "higher"
    assert claim.decision.estimate == -2.0
    assert describe_claim(claim) == (
        "gqa vs mha: Δ span of the wings = −2 cubits, exact, claim Δ < −0.5: "
        "worse by more than the threshold (SUPPORTED)."
    )
    row = next(row for row in report.effects if row.metric == METRIC)
    assert (row.label, row.unit) == ("span of the wings", "cubits")
    for page in render_texts(report):
        assert "span of the wings" in page
        assert "cubits" in page


@pytest.mark.parametrize(
    ("mha", "gqa", "by_seed", "label", "basis", "is_timed"),
    [
        (define("seeds"), define("seeds"), 0.0, "span of the wings", "t", False),
        (define("time"), define("time"), 0.0, "span of the wings", "t", True),
        (define("count"), define("seeds"), 0.0, "span of the wings", "t", False),  # in one arm only
        (Metric(METRIC, kind="count"), define("count"), 0.0, "span of the wings", "exact", False),
        (None, None, 1.0, METRIC, "t", False),
    ],
)
def test_definition_gives_the_label_and_selects_the_basis(
    tmp_path: Path, mha: Metric, gqa: Metric, by_seed: float, label: str, basis: str, is_timed: bool
) -> None:
    [claim] = make_report_of_metric(tmp_path, mha, gqa, by_seed).verdict.claims
    assert (claim.label, claim.basis, claim.timed) == (label, basis, is_timed)
    assert claim.direction == (None if label == METRIC else "higher")
    assert claim.decision.exact == (basis == "exact")


def test_user_resource_is_exact_and_a_controlled_budget_row(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, World())
    estimates = [run.result.estimate.to_dict() | {"feathers": 3 + (run.arm == "gqa")} for run in runs]
    runs = [
        replace_result(run, estimate=RunEstimate.model_validate(estimate))
        for run, estimate in zip(runs, estimates, strict=True)
    ]
    claim = {**CLAIM, "metric": "feathers", "is": "above"}
    [result] = make_report(runs, claims=[claim], controlled=["feathers"]).verdict.claims
    assert result.basis == "exact"
    assert result.not_comparable == ["feathers: controlled, but 4 in gqa and 3 in mha"]


def test_tolerances_exist_for_numeric_resources_only() -> None:
    assert set(TOLERANCES) <= set(Budget.model_fields)
    assert [key for key in Budget.model_fields if get_tolerance(key) is None] == ["dtype", "kernel", "device"]


def test_cost_panels_use_the_labels_of_the_measuring_code(tmp_path: Path) -> None:
    world = World()
    report = make_report(tmp_path, world, is_timed=True)
    definitions = resources.BUDGET_METRICS | TIME_METRICS | {resources.THROUGHPUT.name: resources.THROUGHPUT}
    expected = [key for key in PANEL_COSTS if key != "carried_bytes"]  # no arm has these here
    assert [panel.key for panel in report.tradeoff] == expected
    for panel in report.tradeoff:
        definition = definitions[panel.key]
        assert (panel.label, panel.unit) == (definition.display_name, definition.unit)
        assert panel.lower_is_better == (definition.direction != "higher")


def test_report_code_names_no_metric_except_displayed_ones() -> None:
    declared = {
        *resources.BUDGET_METRICS,
        *resources.MEMORY_METRICS,
        *TIME_METRICS,
        *LOSS_METRICS,
        accuracy.ACCURACY.name,
        accuracy.STEPS_TO_90.name,
    }
    declared -= {"device", "steps", "tokens"}  # also ordinary words
    expected = {
        *PANEL_COSTS,
        *TOLERANCES,
        "kv_bytes_per_token_formula",
        "kv_bytes_per_token_live",
        "lr",
        "dtype",
    }
    expected |= {*OLD_PROPORTIONS, "batch_tokens", "epochs"}  # which show that training was short
    folder = Path(attnlab.report.__file__).parent
    constants = {
        node.value
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert constants & declared - expected == set()
