"""Scores of validation windows add up to the metrics of the run."""

import pytest
import torch

from attnlab.measure.window_scores import measure_window_scores
from attnlab.store import run_directories
from attnlab.training import run

torch.set_num_threads(1)


@pytest.mark.parametrize("data", ["pydocs", "recall"])
def test_sums_over_all_windows_are_the_metrics_of_the_run(data, compose, make_run_dir):
    folder = make_run_dir("run", compose("trainer.max_steps=1", f"data={data}"))
    run.run(folder)
    metrics = run_directories.load_run_result(folder).metrics
    scores = measure_window_scores(folder)
    targets = sum(scores["targets"])
    assert sum(scores["loss"]) / targets == pytest.approx(metrics["val/loss"], rel=1e-12)
    if "val/accuracy" in metrics:
        assert sum(scores["correct"]) / targets == pytest.approx(metrics["val/accuracy"], rel=1e-12)
    assert len({*map(len, scores.values())}) == 1
    assert len(scores["loss"]) > 1
