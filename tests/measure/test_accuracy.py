"""Accuracy by condition, and steps to 90% accuracy."""

import json
import math
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch

from attnlab.measure.accuracy import compute_steps_to_threshold, summarize_accuracy
from attnlab.model.build import build_model, instantiate_config
from attnlab.training import run

torch.set_num_threads(1)


def test_steps_to_threshold_are_the_first_above_it_or_censored():
    def make_rows(*values):
        return [(10 * (i + 1), 0, "val/accuracy", value) for i, value in enumerate(values)]

    loss_rows = [(5, 0, "val/loss", 0.95)]
    assert compute_steps_to_threshold(loss_rows + make_rows(0.2, 0.9, 0.5, 1.0), 40)["steps_to_90"] == {
        "value": 20,
        "budget": 40,
    }
    assert compute_steps_to_threshold(make_rows(0.2, 0.89), 20)["steps_to_90"] == {
        "value": None,
        "budget": 20,
    }
    assert compute_steps_to_threshold(loss_rows, 20) == {}


def test_conditions_without_targets_have_no_metrics():
    nan = float("nan")
    validation = {"accuracy": 0.4, "by_condition": [0.25, nan, 1.0], "loss_by_condition": [2.0, nan, 0.1]}
    assert summarize_accuracy(validation, ("distance/1", "distance/2", "distance/4", "distance/8")) == {
        "val/accuracy": 0.4,
        "recall/distance/1": 0.25,
        "recall/distance/4": 1.0,
        "loss/distance/1": 2.0,
        "loss/distance/4": 0.1,
    }
    assert summarize_accuracy({"loss": 1.0}, ()) == {}


@pytest.fixture
def echo_module(compose):
    """A module whose model predicts its input token."""
    config = compose()
    module = instantiate_config(config["optim"], model=build_model(config, 5))
    module.logits = lambda batch, auxiliary=None: 9.0 * torch.nn.functional.one_hot(batch["tokens"], 5)
    return module


def test_accuracy_is_over_the_scored_targets_of_all_batches(echo_module, monkeypatch):
    monkeypatch.setattr(type(echo_module), "trainer", SimpleNamespace(global_step=3))
    batch = {
        "tokens": torch.tensor([[0, 1, 2, 3], [4, 4, 4, 4]]),
        "targets": torch.tensor([[0, 2, -100, 3], [-100, 4, 0, 0]]),
        "condition": torch.tensor([[0, 0, 1, 2], [1, 2, 2, 0]]),
    }
    halves = [{key: value[i : i + 1] for key, value in batch.items()} for i in range(2)]
    results = []
    for batches in ([batch], halves):
        echo_module.on_validation_epoch_start()
        for i, one in enumerate(batches):
            echo_module.validation_step(one, i)
        echo_module.on_validation_epoch_end()
        results.append(echo_module.validation_results)
    for validation in results:
        assert validation["accuracy"] == 3 / 6
        assert validation["by_condition"] == [1 / 3, pytest.approx(float("nan"), nan_ok=True), 2 / 3]
        correct_loss, wrong_loss = math.log1p(4 * math.exp(-9)), 9 + math.log1p(4 * math.exp(-9))
        of_three = [(correct_loss + 2 * wrong_loss) / 3, float("nan"), (2 * correct_loss + wrong_loss) / 3]
        assert validation["loss_by_condition"] == pytest.approx(of_three, nan_ok=True, rel=1e-6)


def test_a_run_result_has_accuracy_curve_and_censored_steps(compose, make_run_dir):
    config = compose("trainer.max_steps=4", "measure.every=2")
    config["data"] = {
        "_target_": "attnlab.data.data_module.DataModule",
        "task": {"_target_": "attnlab.data.needle.Needle", "_partial_": True},
        "length": 16, "values": 4, "distances": [2, 8], "earliest": 0,
        "batch_size": 4, "val_windows": 8, "val_batch_size": 5, "seed": 0,
    }  # fmt: skip
    folder = make_run_dir("run", config)
    run.run(folder)
    record = json.loads((folder / "run.json").read_text())
    metrics = record["metrics"]
    assert {name for name in metrics if "/" in name} == {
        "val/loss", "val/best_loss", "train/loss", "val/accuracy", "recall/distance/2", "recall/distance/8",
        "loss/distance/2", "loss/distance/8",
    }  # fmt: skip
    assert metrics["val/loss"] == pytest.approx((metrics["loss/distance/2"] + metrics["loss/distance/8"]) / 2)
    assert metrics["val/accuracy"] == pytest.approx(
        (metrics["recall/distance/2"] + metrics["recall/distance/8"]) / 2
    )
    assert record["censored"]["steps_to_90"]["budget"] == 4
    metric_names = {name for group in ("metrics", "censored", "memory", "speed") for name in record[group]}
    definitions = record["estimate"]["metric_definitions"]
    assert metric_names <= set(definitions)
    assert definitions["recall/distance/8"]["table"] == "Accuracy by condition"
    curves = pq.read_table(folder / "curves.parquet").to_pydict()
    steps = [s for s, n in zip(curves["step"], curves["name"], strict=True) if n == "val/accuracy"]
    assert steps == [2, 4]


def test_a_text_run_has_no_accuracy(compose, make_run_dir):
    folder = make_run_dir("run", compose())
    run.run(folder)
    record = json.loads((folder / "run.json").read_text())
    assert (record["censored"], record["undefined"]) == ({}, [])
    assert set(record["metrics"]) == {"val/loss", "val/bits_per_byte", "val/best_loss", "train/loss"}
