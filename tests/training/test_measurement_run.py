"""Measurement runs: a result without training steps, or an error in one line."""

import pyarrow.parquet as pq
import pytest
import torch

from attnlab.measure.measurement import MeasurementResult
from attnlab.report.report_builder import build_report
from attnlab.report.section import list_tables
from attnlab.report.sections import build_sections
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.results import SweepContext, read_run
from attnlab.store import run_directories
from attnlab.store.experiment_schema import Claim, Experiment
from attnlab.store.run_schema import Metric
from attnlab.sweep.execute.pool import _count_required_slots
from attnlab.sweep.execute.worker_slots import WorkerSlot, merge_slots
from attnlab.sweep.plan.provenance import collect_provenance
from attnlab.training import run

torch.set_num_threads(1)
THEORY = "measurement={_target_: attnlab.measure.studies.theory.Theory, metrics: {a/b: 2, c: 0.5}}"
LOSSES = "measurement={_target_: attnlab.measure.studies.validation_losses.ValidationLosses}"
GENERATION = (
    "{_target_: attnlab.measure.studies.cached_generation.CachedGeneration, make_cache: null, compared: 2}"
)
PRUNING = "{_target_: attnlab.measure.studies.pruning.Pruning, seed: 0}"


class NanMeasurement:
    """A measurement with a metric that is not finite."""

    def __call__(self, module, data, device):
        return MeasurementResult({"c": float("nan")})


class NamesMeasurement(NanMeasurement):
    """A measurement that names its metrics without defining them."""

    metrics = ("c",)


class CurveMeasurement:
    """A measurement with a curve."""

    metrics = (Metric("c", "slope", "m", kind="time"),)

    def __call__(self, module, data, device):
        assert not torch.is_grad_enabled() or not module.training
        return MeasurementResult({"c": 1.0}, series={"growth": {64: 2.0, 128: 4.0}})


def test_the_result_has_no_training_steps(compose, make_run_dir):
    config = compose(THEORY)
    folder = make_run_dir("a" * 16, config)
    run.run(folder)
    result = run_directories.load_run_result(folder)
    assert result.metrics == {"a/b": 2.0, "c": 0.5}
    assert {result.get_metric(name).kind for name in result.metrics} == {"count"}
    assert (result.estimate.steps, result.estimate.tokens, result.estimate.lr) == (0, 0, None)
    assert result.memory["kv_bytes_per_token_formula"] == result.estimate.kv_bytes_per_token
    assert not (folder / "model.safetensors").exists()


def test_series_become_curve_rows_and_times_keep_their_kind(compose, make_run_dir):
    folder = make_run_dir("a" * 16, compose("measurement={_target_: test_measurement_run.CurveMeasurement}"))
    run.run(folder)
    table = pq.read_table(folder / "curves.parquet").to_pydict()
    assert table == {"step": [64, 128], "tokens": [64, 128], "name": ["growth"] * 2, "value": [2.0, 4.0]}
    assert run_directories.load_run_result(folder).get_metric("c") == Metric("c", "slope", "m", kind="time")


def test_the_page_shows_the_definitions_of_a_measurement(compose, make_run_dir):
    runs = []
    for arm in ("left", "right"):
        folder = make_run_dir(arm, compose("measurement={_target_: test_measurement_run.CurveMeasurement}"))
        run.run(folder)
        runs.append(read_run(folder, arm, 0))
    claim = Claim(says="no difference", arm="right", relation="within", threshold=0.5)
    experiment = Experiment(
        name="lines", arms=["left", "right"], baseline="left", seeds=[0], metric="c", margin=0.5,
        margin_reason="half", claims=[claim],
    )  # fmt: skip
    report = build_report(
        SweepContext(experiment),
        runs,
        None,
        collect_provenance([], {}, [], "cpu", [one.result for one in runs]),
    )
    (claim_result,) = report.verdict.claims
    assert (claim_result.label, claim_result.unit, claim_result.timed) == ("slope", "m", True)
    assert describe_claim(claim_result) == (
        "right vs left: Δ slope = 0 m, exact, margin ±0.5: equivalent (SUPPORTED)."
    )
    assert "slope (m)" in [column.heading for column in list_tables(build_sections(report))["arms"].columns]
    assert set(report.reproduce.versions) >= {"torch", "pytorch-lightning"}


def test_a_nan_metric_raises_and_writes_no_result(compose, make_run_dir):
    folder = make_run_dir("a" * 16, compose("measurement={_target_: test_measurement_run.NanMeasurement}"))
    with pytest.raises(FloatingPointError, match="c is nan, which is not finite"):
        run.run(folder)
    assert not (folder / "run.json").exists()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_a_measurement_uses_weights_and_precision_of_its_parent(compose, make_run_dir, precision):
    line = [f"trainer.precision={precision}", "trainer.max_steps=3", "measure.lengths=[1,2]"]
    parent = make_run_dir("aaaa", compose(*line))
    run.run(parent)
    expected = run_directories.load_run_result(parent).metrics
    metrics = {}
    for name, more in (("bbbb", [f"parent='{parent.name}'"]), ("cccc", [])):
        folder = make_run_dir(name, compose(LOSSES.replace("}", ", lengths: [1,2]}"), *line, *more))
        run.run(folder)
        metrics[name] = run_directories.load_run_result(folder).metrics
    assert len(metrics["bbbb"]) == 6
    assert metrics["bbbb"] == pytest.approx({name: expected[name] for name in metrics["bbbb"]}, abs=1e-6)
    assert metrics["cccc"]["val/loss"] != pytest.approx(expected["val/loss"], abs=1e-4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["measurement={_target_: attnlab.measure.studies.theory.Theory, metrics: {}}"], "metrics is empty"),
        (["measurement={_target_: attnlab.measure.studies.theory.Theory, wings: 2}"], "wings"),
        (["measurement={_target_: builtins.dict}"], "builds a dict, which is not callable"),
        (["measurement={_target_: test_measurement_run.NamesMeasurement}"], "must define its metrics as"),
        ([THEORY, "parent=aaaa"], "uses no weights: set parent=null"),
        ([LOSSES.replace("}", ", lengths: [0.5]}")],
         r"measurement.lengths=\[0.5\]: \[0\] should be greater than or equal to 1"),
        ([LOSSES.replace("}", ", trained: 1}")], "measurement.trained=1: it should be greater"),
        (["measure.lengths=[1,2]", "measure.trained=1"], "measure.trained must be a length"),
        ([f"measurement={GENERATION}"], "make_cache is null"),
        ([f"measurement={PRUNING}", "model=gru", "position=none"], "has another mixer"),
    ],
)  # fmt: skip
def test_invalid_measurements_are_rejected_in_one_line(compose, line, message):
    with pytest.raises(ValueError, match=message) as caught:
        run.check(compose(*line))
    assert "\n" not in str(caught.value)


def test_a_timing_run_uses_all_slots():
    slots = [WorkerSlot(n, None, 1) for n in range(3)]
    assert _count_required_slots({"trainer": {"devices": 1}, "measure": {"exclusive": True}}, slots) == 3
    assert _count_required_slots({"trainer": {"devices": 1}, "measure": {"exclusive": False}}, slots) == 1
    assert merge_slots([WorkerSlot(n, "7", 1) for n in range(3)]).gpu == "7"
