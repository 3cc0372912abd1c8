"""Accuracy, by condition, and the steps until a task is solved."""

import json
import math
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch

from attnlab.measure.accuracy import accuracy, steps_to_solve
from attnlab.model.build import build_model, make
from attnlab.training import run

torch.set_num_threads(1)


def test_steps_to_solve_are_the_first_that_reach_it_and_censored_where_none_does():
    def rows(*values):
        return [(10 * (i + 1), 0, "val/accuracy", value) for i, value in enumerate(values)]

    other = [(5, 0, "val/loss", 0.95)]
    assert steps_to_solve(other + rows(0.2, 0.9, 0.5, 1.0), 40)["steps_to_90"] == {"value": 20, "budget": 40}
    assert steps_to_solve(rows(0.2, 0.89), 20)["steps_to_90"] == {"value": None, "budget": 20}
    assert steps_to_solve(other, 20) == {}


def test_conditions_get_their_names_and_those_without_a_target_none():
    nan = float("nan")
    taken = {"accuracy": 0.4, "by_condition": [0.25, nan, 1.0], "loss_by_condition": [2.0, nan, 0.1]}
    assert accuracy(taken, ("distance/1", "distance/2", "distance/4", "distance/8")) == {
        "val/accuracy": 0.4,
        "recall/distance/1": 0.25,
        "recall/distance/4": 1.0,
        "loss/distance/1": 2.0,
        "loss/distance/4": 0.1,
    }
    assert accuracy({"loss": 1.0}, ()) == {}


@pytest.fixture
def echo(compose):
    """A module whose model answers with its input token."""
    config = compose()
    module = make(config["optim"], model=build_model(config, 5))
    module.logits = lambda batch: 9.0 * torch.nn.functional.one_hot(batch["tokens"], 5)
    return module


def test_accuracy_counts_scored_targets_over_all_batches(echo, monkeypatch):
    monkeypatch.setattr(type(echo), "trainer", SimpleNamespace(global_step=3))
    batch = {
        "tokens": torch.tensor([[0, 1, 2, 3], [4, 4, 4, 4]]),
        "targets": torch.tensor([[0, 2, -100, 3], [-100, 4, 0, 0]]),
        "condition": torch.tensor([[0, 0, 1, 2], [1, 2, 2, 0]]),
    }
    halves = [{key: value[i : i + 1] for key, value in batch.items()} for i in range(2)]
    found = []
    for batches in ([batch], halves):
        echo.on_validation_epoch_start()
        for i, one in enumerate(batches):
            echo.validation_step(one, i)
        echo.on_validation_epoch_end()
        found.append(echo.validation)
    for validation in found:
        assert validation["accuracy"] == 3 / 6
        assert validation["by_condition"] == [1 / 3, pytest.approx(float("nan"), nan_ok=True), 2 / 3]
        right, wrong = math.log1p(4 * math.exp(-9)), 9 + math.log1p(4 * math.exp(-9))
        of_three = [(right + 2 * wrong) / 3, float("nan"), (2 * right + wrong) / 3]
        assert validation["loss_by_condition"] == pytest.approx(of_three, nan_ok=True, rel=1e-6)


def test_a_run_records_accuracy_curve_and_censoring(compose, store):
    config = compose("trainer.max_steps=4", "measure.every=2")
    config["data"] = {
        "_target_": "attnlab.data.module.Data",
        "task": {"_target_": "attnlab.data.needle.Needle", "_partial_": True},
        "length": 16, "values": 4, "distances": [2, 8], "earliest": 0,
        "batch_size": 4, "val_windows": 8, "val_batch_size": 5, "seed": 0,
    }  # fmt: skip
    folder = store("run", config)
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
    measured = {name for group in ("metrics", "censored", "memory", "speed") for name in record[group]}
    assert measured <= set(record["declared"])
    assert record["declared"]["recall/distance/8"]["table"] == "Accuracy by condition"
    curves = pq.read_table(folder / "curves.parquet").to_pydict()
    taken = [s for s, n in zip(curves["step"], curves["name"], strict=True) if n == "val/accuracy"]
    assert taken == [2, 4]


def test_a_text_run_has_no_accuracy(compose, store):
    folder = store("run", compose())
    run.run(folder)
    record = json.loads((folder / "run.json").read_text())
    assert (record["censored"], record["undefined"]) == ({}, [])
    assert set(record["metrics"]) == {"val/loss", "val/bits_per_byte", "val/best_loss", "train/loss"}
