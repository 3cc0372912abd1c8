"""A run that only measures leaves the record of any run, with no step in it, or says in one line why not."""

import json

import pyarrow.parquet as pq
import pytest
import torch

from attnlab.measure.measurement import Measured
from attnlab.report.build import build
from attnlab.report.pages.html import html
from attnlab.report.tables.wording import describe_claim
from attnlab.report.verdicts.runs import Asked, read_run
from attnlab.store import runs as stored
from attnlab.store.declarations import Claim, Experiment
from attnlab.store.schema import Metric
from attnlab.sweep.execute.pool import _need
from attnlab.sweep.execute.slots import Slot, together
from attnlab.sweep.plan.provenance import provenance
from attnlab.training import run

torch.set_num_threads(1)
STATED = "measurement={_target_: attnlab.measure.studies.stated.Stated, metrics: {a/b: 2, c: 0.5}}"
LOSSES = "measurement={_target_: attnlab.measure.studies.losses.Losses}"
GENERATION = "{_target_: attnlab.measure.studies.generation.Generation, make_cache: null, compared: 2}"
PRUNING = "{_target_: attnlab.measure.studies.pruning.Pruning, seed: 0}"


class Endless:
    """A measurement whose figure is no number."""

    def __call__(self, module, data, device):
        return Measured({"c": float("nan")})


class Line:
    """A measurement with a curve."""

    def __call__(self, module, data, device):
        assert not torch.is_grad_enabled() or not module.training
        slope = Metric("c", "slope", "m", kind="time")
        return Measured({"c": 1.0}, declared=[slope], series={"growth": {64: 2.0, 128: 4.0}})


def test_the_record_is_that_of_a_run_of_no_steps(compose, store):
    config = compose(STATED)
    folder = store("a" * 16, config)
    run.run(folder)
    record = stored.record(folder)
    assert record.metrics == {"a/b": 2.0, "c": 0.5}
    assert {record.metric(name).kind for name in record.metrics} == {"count"}
    assert (record.estimate.steps, record.estimate.tokens, record.estimate.lr) == (0, 0, None)
    assert record.memory["kv_bytes_per_token_formula"] == record.estimate.kv_bytes_per_token
    assert not (folder / "model.safetensors").exists()


def test_a_curve_becomes_rows_and_a_time_is_named_as_one(compose, store):
    folder = store("a" * 16, compose("measurement={_target_: test_measuring.Line}"))
    run.run(folder)
    table = pq.read_table(folder / "curves.parquet").to_pydict()
    assert table == {"step": [64, 128], "tokens": [64, 128], "name": ["growth"] * 2, "value": [2.0, 4.0]}
    assert stored.record(folder).metric("c") == Metric("c", "slope", "m", kind="time")


@pytest.mark.usefixtures("blank")
def test_what_a_measurement_declares_is_what_the_page_says(compose, store):
    runs = []
    for arm in ("left", "right"):
        folder = store(arm, compose("measurement={_target_: test_measuring.Line}"))
        run.run(folder)
        runs.append(read_run(folder, arm, 0))
    claim = Claim(says="no difference", arm="right", relation="within", threshold=0.5)
    asked = Experiment(
        name="lines", arms=["left", "right"], baseline="left", seeds=[0], metric="c", margin=0.5,
        margin_reason="half", claims=[claim],
    )  # fmt: skip
    report = build(Asked(asked), runs, None, provenance([], {}, [], "cpu", [one.record for one in runs]))
    (found,) = report.verdict.claims
    assert (found.label, found.unit, found.timed) == ("slope", "m", True)
    assert describe_claim(found) == (
        "right vs left: Δ slope = +0.000 m, no interval, margin ±0.5: INCONCLUSIVE. 1 paired seed."
    )
    assert "slope (m)" in html(report)
    assert set(report.reproduce.versions) >= {"torch", "pytorch-lightning"}


def test_a_figure_that_is_no_number_is_a_divergence_and_no_record(compose, store):
    folder = store("a" * 16, compose("measurement={_target_: test_measuring.Endless}"))
    with pytest.raises(FloatingPointError, match="c is measured as nan"):
        run.run(folder)
    assert not (folder / "run.json").exists()


def test_a_parents_weights_are_what_is_measured(compose, store):
    parent = store("aaaa", compose("trainer.max_steps=3"))
    run.run(parent)
    wanted = json.loads((parent / "run.json").read_text())["metrics"]["val/loss"]
    losses = {}
    for name, line in (("bbbb", ["parent=aaaa"]), ("cccc", [])):
        folder = store(name, compose(LOSSES, *line))
        run.run(folder)
        losses[name] = json.loads((folder / "run.json").read_text())["metrics"]["val/loss"]
    assert losses["bbbb"] == pytest.approx(wanted, abs=1e-6)
    assert losses["cccc"] != pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["measurement={_target_: attnlab.measure.studies.stated.Stated, metrics: {}}"], "metrics is empty"),
        (["measurement={_target_: attnlab.measure.studies.stated.Stated, wings: 2}"], "wings"),
        (["measurement={_target_: builtins.dict}"], "makes a dict, which cannot be called"),
        ([STATED, "parent=aaaa"], "looks at no weights: set parent=null"),
        ([LOSSES.replace("}", ", lengths: [0.5]}")],
         r"measurement.lengths=\[0.5\]: \[0\] should be greater than or equal to 1"),
        ([LOSSES.replace("}", ", trained: 1}")], "measurement.trained=1: it should be greater"),
        (["measure.lengths=[1,2]", "measure.trained=1"], "measure.trained must be a length"),
        ([f"measurement={GENERATION}"], "make_cache is null"),
        ([f"measurement={PRUNING}", "model=gru", "position=none"], "has another mixer"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_in_one_line(compose, line, told):
    with pytest.raises(ValueError, match=told) as caught:
        run.check(compose(*line))
    assert "\n" not in str(caught.value)


def test_a_run_whose_times_count_has_the_machine_to_itself():
    slots = [Slot(n, None, 1) for n in range(3)]
    assert _need({"trainer": {"devices": 1}, "measure": {"exclusive": True}}, slots) == 3
    assert _need({"trainer": {"devices": 1}, "measure": {"exclusive": False}}, slots) == 1
    assert together([Slot(n, "7", 1) for n in range(3)]).gpu == "7"
