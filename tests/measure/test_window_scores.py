"""Scores of validation windows add up to the metrics of the run."""

import pytest
import torch
import yaml
from window_scores import measure_window_scores

from attnlab.config import CONF
from attnlab.store import run_directories
from attnlab.training import run

torch.set_num_threads(1)


def score_windows(folder):
    """Train a run, and return its metrics and the scores of its windows."""
    run.run(folder)
    return run_directories.load_run_result(folder).metrics, measure_window_scores(folder)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
def test_losses_of_all_windows_add_up_to_the_validation_loss(compose, make_run_dir, precision):
    config = compose("trainer.max_steps=1", f"trainer.precision={precision}")
    metrics, scores = score_windows(make_run_dir("text", config))
    assert len(scores["loss"]) == len(scores["targets"]) > 1
    assert sum(scores["loss"]) / sum(scores["targets"]) == pytest.approx(metrics["val/loss"], rel=1e-12)


def test_correct_answers_of_all_windows_add_up_to_the_accuracy(compose, make_run_dir):
    config = compose("trainer.max_steps=1")
    recall = yaml.safe_load((CONF / "data" / "recall.yaml").read_text("utf-8"))
    recall |= {key: config["data"][key] for key in ("length", "batch_size", "seed")}
    metrics, scores = score_windows(make_run_dir("recall", {**config, "data": recall}))
    assert sum(scores["correct"]) / sum(scores["targets"]) == pytest.approx(
        metrics["val/accuracy"], rel=1e-12
    )
    assert sum(scores["loss"]) / sum(scores["targets"]) == pytest.approx(metrics["val/loss"], rel=1e-12)
