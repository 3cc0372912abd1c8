"""What a metric is comes from where it is measured: the report knows no names."""

import ast
from pathlib import Path
from typing import Any

import pytest
from synthetic import World, but, experiment, provenance, timing, write_runs

import attnlab.report
from attnlab.measure import accuracy, size
from attnlab.measure.measurement import Measured
from attnlab.measure.timing import TIMES
from attnlab.report.build import build
from attnlab.report.pages.html import html
from attnlab.report.pages.markdown import markdown
from attnlab.report.schema import Report
from attnlab.report.tables.tradeoff import COSTS
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.budget import TOLERANCES, tolerance_of
from attnlab.report.verdicts.runs import Run
from attnlab.store.schema import Budget, Estimate, Metric
from attnlab.training.end import LOSSES

NAME = "ours/wingspan"
CLAIM = {"says": "gqa has shorter wings", "arm": "gqa", "metric": NAME, "is": "below", "threshold": -0.5}


class Wings:
    """A measurement that somebody else wrote."""

    def __init__(self, kind: str, direction: str | None = "higher") -> None:
        self.metric = Metric(NAME, "span of the wings", "cubits", direction, kind)

    def __call__(self, module: Any, data: Any, device: str) -> Measured:
        return Measured({NAME: module}, declared=[self.metric])


def measured(folder: Path, wings: Wings, **changes: Any) -> Report:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    runs = [_with(run, wings) for run in write_runs(folder, world)]
    return build(experiment(world, claims=[CLAIM], declared=None, **changes), runs, None, provenance())


def feathered(run: Run) -> Estimate:
    """What was known of a run to a trainer that counts feathers."""
    return Estimate.model_validate(run.record.estimate.plain() | {"feathers": 3 + (run.arm == "gqa")})


def _with(run: Run, wings: Wings) -> Run:
    found = wings({"mha": 7.0, "gqa": 5.0}[run.arm], None, "cpu")
    metrics = {**run.record.metrics, **found.metrics}
    return but(run, metrics=metrics, declared=run.record.declared | found.declarations())


@pytest.mark.usefixtures("blank")
def test_the_words_of_a_users_measurement_arrive_in_the_page(tmp_path: Path) -> None:
    report = measured(tmp_path, Wings("count"), metrics=[NAME])
    (claim,) = report.verdict.claims
    assert (claim.label, claim.unit, claim.basis) == ("span of the wings", "cubits", "exact")
    assert claim.direction == "higher"
    assert claim.decision.estimate == -2.0
    assert describe_claim(claim) == (
        "gqa vs mha: Δ span of the wings = −2 cubits, exact, threshold −0.5: "
        "inferior by more than the threshold (SUPPORTED). Exact."
    )
    row = next(row for row in report.effects if row.metric == NAME)
    assert (row.label, row.unit) == ("span of the wings", "cubits")
    for page in (html(report), markdown(report, {})):
        assert "span of the wings" in page
        assert "cubits" in page


@pytest.mark.parametrize(("kind", "basis", "timed"), [("seeds", "t", False), ("time", "t", True)])
def test_the_kind_says_what_decides(tmp_path: Path, kind: str, basis: str, timed: bool) -> None:
    (claim,) = measured(tmp_path, Wings(kind)).verdict.claims
    assert (claim.basis, claim.timed) == (basis, timed)
    assert not claim.decision.exact


def test_what_only_one_arm_has_counted_is_not_exact(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    stated, seen = Wings("count"), Wings("seeds")
    runs = [_with(run, stated if run.arm == "mha" else seen) for run in write_runs(tmp_path, world)]
    (claim,) = build(experiment(world, claims=[CLAIM]), runs, None, provenance()).verdict.claims
    assert claim.basis == "t"


def test_a_metric_that_nobody_declares_is_called_by_its_name(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    runs = [
        but(run, metrics={**run.record.metrics, NAME: 2.0 + run.seed}) for run in write_runs(tmp_path, world)
    ]
    (claim,) = build(experiment(world, claims=[CLAIM]), runs, None, provenance()).verdict.claims
    assert (claim.label, claim.unit, claim.basis, claim.direction) == (NAME, "", "t", None)


def test_a_declaration_without_words_gives_way_to_one_with_words(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    mute = Wings("count")
    mute.metric = Metric(NAME, kind="count")
    runs = [_with(run, mute if run.arm == "mha" else Wings("count")) for run in write_runs(tmp_path, world)]
    (claim,) = build(experiment(world, claims=[CLAIM]), runs, None, provenance()).verdict.claims
    assert claim.label == "span of the wings"


def test_a_users_own_resource_is_counted_and_a_row_where_it_is_held(tmp_path: Path) -> None:
    world = World({"mha": 0.0, "gqa": 0.004}, seeds=[0, 1, 2, 3])
    runs = write_runs(tmp_path, world)
    runs = [but(run, estimate=feathered(run)) for run in runs]
    claim = {**CLAIM, "metric": "feathers", "is": "above"}
    report = build(experiment(world, claims=[claim], held=["feathers"]), runs, None, provenance())
    assert report.verdict.claims[0].basis == "exact"
    assert report.verdict.claims[0].not_comparable == ["feathers declared held, but 4 in gqa and 3 in mha"]


def test_tolerances_are_of_resources_and_words_have_none() -> None:
    assert set(TOLERANCES) <= set(Budget.model_fields)
    assert [key for key in Budget.model_fields if tolerance_of(key) is None] == ["dtype", "kernel", "device"]


def test_the_costs_are_called_what_they_are_called_where_they_are_measured(tmp_path: Path) -> None:
    world = World()
    report = build(experiment(world), write_runs(tmp_path, world), timing(world), provenance())
    known = size.BUDGET | TIMES | {size.THROUGHPUT.name: size.THROUGHPUT}
    shown = [key for key in COSTS if key not in ("carried_bytes", "cache/share")]  # which no arm has here
    assert [panel.key for panel in report.tradeoff] == shown
    for panel in report.tradeoff:
        said = known[panel.key]
        assert (panel.label, panel.unit) == (said.words, said.unit)
        assert panel.lower_is_better == (said.direction != "higher")


def test_the_report_names_no_metric_but_in_what_a_page_shows() -> None:
    declared = {*size.BUDGET, *size.MEMORY, *TIMES, *LOSSES, accuracy.ACCURACY.name, accuracy.STEPS.name}
    declared -= {"device", "steps", "tokens"}  # words of other things too
    shown = {*COSTS, *TOLERANCES, "kv_bytes_per_token_formula", "kv_bytes_per_token_live", "lr"}
    folder = Path(attnlab.report.__file__).parent
    found = {
        node.value
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert found & declared - shown == set()
