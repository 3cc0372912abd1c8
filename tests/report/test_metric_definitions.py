"""Metric definitions come from the measuring code; the report hard-codes no metric names."""

import ast
from pathlib import Path
from typing import Any

import pytest
from rendering import render_texts
from synthetic import (
    World,
    declare_claim,
    replace_result,
    write_runs,
)

import attnlab.report
from attnlab.measure import accuracy, resources
from attnlab.measure.measurement import MeasurementResult
from attnlab.measure.step_timing import TIME_METRICS
from attnlab.report.schema import OLD_PROPORTIONS, Report
from attnlab.report.tables.tradeoff import PANEL_COSTS
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.budget_check import TOLERANCES, get_tolerance
from attnlab.report.verdicts.results import Run
from attnlab.store.run_schema import Budget, Metric, RunEstimate, index_by_name
from attnlab.training.final_metrics import LOSS_METRICS

METRIC = "ours/wingspan"
CLAIM = declare_claim("gqa has shorter wings", "gqa", "below", -0.5, metric=METRIC)


class UserMeasurement:
    """A user's own measurement."""

    def __init__(self, kind: str, direction: str | None = "higher") -> None:
        self.metrics = [Metric(METRIC, "span of the wings", "cubits", direction, kind)]

    def __call__(self, module: Any, data: Any, device: str) -> MeasurementResult:
        return MeasurementResult({METRIC: module})


def make_report(folder: Path, measure: UserMeasurement, **changes: Any) -> Report:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    runs = [_with_measurement(run, measure) for run in write_runs(folder, world)]
    return make_report(runs, world, claims=[CLAIM], **changes)


def with_user_resource(run: Run) -> RunEstimate:
    """Add a user's own resource to the estimate of a run."""
    return RunEstimate.model_validate(run.result.estimate.to_dict() | {"feathers": 3 + (run.arm == "gqa")})


def _with_measurement(run: Run, measure: UserMeasurement) -> Run:
    measurement = measure({"mha": 7.0, "gqa": 5.0}[run.arm], None, "cpu")
    definitions = run.result.metric_definitions | index_by_name(*measure.metrics)
    return replace_result(
        run, metrics={**run.result.metrics, **measurement.metrics}, metric_definitions=definitions
    )


def test_definition_of_a_user_measurement_reaches_the_page(tmp_path: Path) -> None:
    report = make_report(tmp_path, UserMeasurement("count"), metrics=[METRIC])
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


@pytest.mark.parametrize(("kind", "basis", "timed"), [("seeds", "t", False), ("time", "t", True)])
def test_metric_kind_selects_the_basis(tmp_path: Path, kind: str, basis: str, timed: bool) -> None:
    (claim,) = make_report(tmp_path, UserMeasurement(kind)).verdict.claims
    assert (claim.basis, claim.timed) == (basis, timed)
    assert not claim.decision.exact


def test_metric_counted_in_one_arm_only_is_not_exact(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    counted, by_seed = UserMeasurement("count"), UserMeasurement("seeds")
    runs = [
        _with_measurement(run, counted if run.arm == "mha" else by_seed)
        for run in write_runs(tmp_path, world)
    ]
    (claim,) = make_report(runs, world, claims=[CLAIM]).verdict.claims
    assert claim.basis == "t"


def test_metric_without_definition_is_labeled_by_its_name(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    runs = [
        replace_result(run, metrics={**run.result.metrics, METRIC: 2.0 + run.seed})
        for run in write_runs(tmp_path, world)
    ]
    (claim,) = make_report(runs, world, claims=[CLAIM]).verdict.claims
    assert (claim.label, claim.unit, claim.basis, claim.direction) == (METRIC, "", "t", None)


def test_definition_with_a_label_replaces_one_without(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    without_label = UserMeasurement("count")
    without_label.metric = Metric(METRIC, kind="count")
    runs = [
        _with_measurement(run, without_label if run.arm == "mha" else UserMeasurement("count"))
        for run in write_runs(tmp_path, world)
    ]
    (claim,) = make_report(runs, world, claims=[CLAIM]).verdict.claims
    assert claim.label == "span of the wings"


def test_user_resource_is_exact_and_a_controlled_budget_row(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    runs = write_runs(tmp_path, world)
    runs = [replace_result(run, estimate=with_user_resource(run)) for run in runs]
    claim = {**CLAIM, "metric": "feathers", "is": "above"}
    report = make_report(runs, world, claims=[claim], controlled=["feathers"])
    assert report.verdict.claims[0].basis == "exact"
    assert report.verdict.claims[0].not_comparable == ["feathers: controlled, but 4 in gqa and 3 in mha"]


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
